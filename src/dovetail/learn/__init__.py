"""Batches in, weights out."""
