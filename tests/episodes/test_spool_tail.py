"""Reading an episode while it is recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.types import Outcome, Segment
from dovetail.episodes.spool import Spool
from support.small_episodes import after, make_episode


def test_tail_returns_new_segments_of_running_episode(tmp_path: Path) -> None:
    episode = make_episode(num_steps=6, cuts=(2, 3))
    recorder, outside = Spool(tmp_path), Spool(tmp_path)
    assert outside.running() == []
    recorder.begin(episode.start)
    assert outside.running() == [episode.id]
    tail = outside.tail(episode.id)
    assert tail is not None and tail.segments == () and tail.start == episode.start
    steps: list[Segment] = []
    offset = 0
    for index, segment in enumerate(episode.segments):
        recorder.append(segment, after=after(episode, index))
        tail = outside.tail(episode.id, offset=offset)
        assert tail is not None
        assert [(segment_read.first, len(segment_read)) for segment_read in tail.segments] == [
            (segment.first, len(segment))
        ]
        np.testing.assert_array_equal(tail.segments[0].columns["executed"], segment.columns["executed"])
        steps += tail.segments
        offset = tail.offset
    recorder.end(outcome=Outcome.SUCCESS, judgement=None)
    assert outside.running() == []
    tail = outside.tail(episode.id, offset=offset)
    assert tail is not None and tail.segments == ()
    assert sum(len(segment_read) for segment_read in steps) == len(episode)
    outside.acknowledge(episode.id)
    assert outside.tail(episode.id) is None


@settings(max_examples=25, deadline=None)
@given(torn=st.integers(1, 400))
def test_tail_ignores_incomplete_record(tmp_path_factory, torn: int) -> None:
    folder = tmp_path_factory.mktemp("spool")
    episode = make_episode(num_steps=4, cuts=(2,))
    recorder = Spool(folder)
    recorder.begin(episode.start)
    for index, segment in enumerate(episode.segments):
        recorder.append(segment, after=after(episode, index))
    recorder.close()
    path = next(folder.glob("*.journal"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - min(torn, len(whole) // 3)])
    tail = Spool(folder).tail(episode.id)
    assert tail is not None
    assert [segment_read.first for segment_read in tail.segments] == [0]
    path.write_bytes(whole)
    rest = Spool(folder).tail(episode.id, offset=tail.offset)
    assert rest is not None
    assert [segment_read.first for segment_read in rest.segments] == [2]
