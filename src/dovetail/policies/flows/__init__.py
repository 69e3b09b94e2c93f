"""Flow-matching policies: chunks of actions, single actions with a density, and steering by DSRL."""
