"""What a run is, for both runtimes: its folder, phases, episodes, labels, checkpoints, schedules and evaluations."""
