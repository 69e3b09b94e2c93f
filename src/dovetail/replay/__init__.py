"""Replay buffer in memory-mapped files: one writer, many readers. It can be rebuilt from episodes and labels."""
