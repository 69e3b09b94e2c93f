"""Dovetail: a robot arm learns a manipulation task while it works."""

from dovetail import envs

__version__ = "0.6.0"

envs.register()
