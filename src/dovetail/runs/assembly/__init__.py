"""Builds the objects of a run from its config: robots, tasks, policies, labelers, replays and actors."""
