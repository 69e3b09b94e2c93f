"""Wait for something that another thread or process does."""

import time
from collections.abc import Callable
from typing import Any

__all__ = ["wait_until"]


def wait_until(
    condition: Callable[[], Any],
    *,
    timeout_s: float = 10.0,
    what: str = "the condition",
    details: Callable[[], Any] = str,
) -> Any:
    """The first true value of `condition()`. `details` are printed after a timeout."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what} {details()}"
        time.sleep(0.005)
    return value
