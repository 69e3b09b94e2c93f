"""Dovetail: a robot arm learns a manipulation task while it works."""

__version__ = "0.1.0"
