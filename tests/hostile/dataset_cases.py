"""Hostile LeRobot datasets."""
