from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import UsageError
from dovetail.episodes.ids import check_episode_id, new_episode_id

NOW = 1_700_000_000_123_456_789


def test_id_contains_time_and_robot() -> None:
    assert new_episode_id(unix_ns=NOW, robot="panda").startswith("20231114T221320-123456789-panda-")


@given(st.lists(st.integers(0, 4_000_000_000_000_000_000), min_size=2, max_size=5))
def test_ids_sort_by_time(times: list[int]) -> None:
    ids = [new_episode_id(unix_ns=t, robot="x") for t in sorted(set(times))]
    assert ids == sorted(ids)


@given(st.text(), st.integers(0, 4_000_000_000_000_000_000))
def test_any_robot_name_gives_valid_id(robot: str, unix_ns: int) -> None:
    check_episode_id(new_episode_id(unix_ns=unix_ns, robot=robot))


def test_same_robot_name_and_time_give_different_ids() -> None:
    assert len({new_episode_id(unix_ns=NOW, robot="panda") for _ in range(10_000)}) == 10_000


def test_id_with_generator_is_repeatable() -> None:
    a, b = (new_episode_id(unix_ns=NOW, robot="panda", rng=np.random.default_rng(1)) for _ in range(2))
    assert a == b


@pytest.mark.parametrize("bad", ["", ".", "..", "../x", "a/b", "a\\b", ".tmp", "-rf", "x\n", "x\0", "a" * 121])
def test_invalid_ids_are_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="not an episode id"):
        check_episode_id(bad)
