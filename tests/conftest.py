import sys

import pytest


@pytest.fixture(autouse=True)
def _keep_denormal_numbers():
    """Undo the flushing of denormal numbers by a command: all tests share one process, and property tests use them."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
