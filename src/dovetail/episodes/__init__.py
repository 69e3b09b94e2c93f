"""Durable storage of episodes: the spool while they are recorded, the log afterwards, LeRobot datasets and videos."""
