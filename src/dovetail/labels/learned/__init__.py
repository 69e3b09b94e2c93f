"""Labelers that compute with torch: the only ones that may."""
