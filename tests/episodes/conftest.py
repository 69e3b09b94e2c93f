from __future__ import annotations

from collections.abc import Callable

import pytest
import some_episodes

from dovetail.core.types import Episode


@pytest.fixture(scope="session")
def make_episode() -> Callable[..., Episode]:
    return some_episodes.make_episode
