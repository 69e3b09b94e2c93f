"""Labelers give episodes rewards and success. Labels are stored separately from episodes."""
