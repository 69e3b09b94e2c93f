"""Labelled steps -> batches: one writer, many readers, over memory-mapped files that can always be rebuilt."""
