"""Which role runs where. `inline`: one process, one thing after another, deterministic for a seed."""
