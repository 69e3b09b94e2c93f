from __future__ import annotations

from collections.abc import Callable

import pytest

from dovetail.core.types import Episode
from support import small_episodes


@pytest.fixture(scope="session")
def make_episode() -> Callable[..., Episode]:
    return small_episodes.make_episode
