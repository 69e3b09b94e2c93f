"""Observation in, action chunk out. torch lives here (and in learn/) and goes nowhere else."""
