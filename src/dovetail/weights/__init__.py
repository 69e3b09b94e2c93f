"""Versioned weight snapshots: published by the learner, loaded by actors."""
