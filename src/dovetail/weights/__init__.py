"""Versioned snapshots, from the learner to every actor."""
