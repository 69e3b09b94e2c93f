import sys

import pytest


@pytest.fixture(autouse=True)
def _whole_floats():
    """A command flushes denormal numbers in its process. Tests share one, and property tests want all numbers."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
