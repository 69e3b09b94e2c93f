"""Labelled steps in, batches out, fast."""
