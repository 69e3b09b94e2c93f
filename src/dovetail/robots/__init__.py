"""Robots and the safety filter. A driver imports its library when it is built."""
