"""Labelers that learn: the one place among the labels where torch may be."""
