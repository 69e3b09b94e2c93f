"""Each sampled row has the prompt of its own step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.prompts import MAX_PROMPT_BYTES, decode_prompt
from dovetail.core.types import Episode, Purpose, View
from dovetail.replay.mapped import MappedReplay
from support.prompt_changes import with_prompts
from support.traceable_episodes import label, make_traceable_episode

Open = Callable[..., MappedReplay]

LONG = "pick up the screw and " * 100  # 2200 bytes


def prompts(replay: MappedReplay, size: int = 500) -> dict[tuple[int, int], str]:
    """The prompt of each (episode, step) that was drawn. Equal steps must have equal prompts."""
    into = {
        "observation/state": np.zeros((size, 2), np.float32),
        "prompt": np.full((size, MAX_PROMPT_BYTES), 7, np.uint8),
    }
    replay.sample(into, view=View(), rng=np.random.default_rng(0))
    found: dict[tuple[int, int], str] = {}
    for (number, tick), row in zip(into["observation/state"].astype(int), into["prompt"], strict=True):
        assert found.setdefault((number, tick), decode_prompt(row)) == decode_prompt(row)
    return found


def staged(number: int = 1, **other: object) -> Episode:
    """open, open, LONG, LONG, open, close"""
    plain = make_traceable_episode(number, 6, prompt="open", **other)  # type: ignore[arg-type]
    return with_prompts(plain, {2: LONG, 4: "open", 5: "close"})


def expected(number: int) -> dict[tuple[int, int], str]:
    texts = ["open", "open", LONG, LONG, "open", "close"]
    return {(number, tick): text for tick, text in enumerate(texts)}


def test_rows_before_and_after_a_change_have_their_own_prompts(open_replay: Open) -> None:
    replay = open_replay()
    other, longer = make_traceable_episode(2, 2, prompt="wait"), make_traceable_episode(3, 2, prompt=LONG + "x")
    for episode in (staged(), other, longer):
        replay.add(episode, label(episode))
    assert prompts(replay) == {
        **expected(1),
        (2, 0): "wait",
        (2, 1): "wait",
        (3, 0): LONG + "x",
        (3, 1): LONG + "x",
    }


@pytest.mark.parametrize("cuts", [(3,), (2,), (1, 4), (2, 3, 5)])
def test_segments_of_a_running_episode_carry_the_prompt_on(open_replay: Open, cuts: tuple[int, ...]) -> None:
    replay, episode = open_replay(), staged(cuts=cuts)
    for segment in episode.segments[:-1]:
        replay.extend(episode.start, segment)
        replay.extend(episode.start, segment)  # repeated after a lost answer
    known = prompts(replay)
    assert known and known.items() <= expected(1).items()
    replay.add(episode, label(episode))  # the rest of it
    assert prompts(replay) == expected(1)


def test_kept_demonstration_keeps_its_prompts_when_it_is_moved(open_replay: Open) -> None:
    replay = open_replay(capacity_rows=20)
    demo = staged(purpose=Purpose.DEMO)
    replay.add(demo, label(demo))
    for number in range(2, 8):
        episode = make_traceable_episode(number, 6, prompt="wait")
        replay.add(episode, label(episode))
    found = prompts(replay)
    assert expected(1).items() <= found.items()
    assert {text for (number, _), text in found.items() if number > 1} == {"wait"}


def test_replay_is_opened_again_with_its_prompts(open_replay: Open, tmp_path: Path) -> None:
    replay = open_replay()
    replay.add(staged(), label(staged()))
    replay.close()
    assert replay.open() is None
    assert prompts(replay) == expected(1)


def test_change_outside_of_the_segment_is_refused(open_replay: Open) -> None:
    replay, episode = open_replay(), with_prompts(make_traceable_episode(1, 6, cuts=(3,)), {4: "close"})
    first, second = episode.segments
    with pytest.raises(UsageError, match="step 4 is out of order or after the last step"):
        replay.extend(episode.start, replace(first, prompt_changes=second.prompt_changes))
    assert replay.size(View()) == 0
