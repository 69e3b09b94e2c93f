"""Helpers that several test folders share: small runs, episodes, plugins, servers and processes."""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent  # on the PYTHONPATH of child processes, so that they find `support.module:Class`
