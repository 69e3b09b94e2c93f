"""EpisodeWriter: every step once and in order, with the last observation, or an error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.actor.board import Board, BoardLayout
from dovetail.actor.episode_writer import EpisodeWriter
from dovetail.core.errors import FailureError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import EpisodeStart, Observation, Outcome, Purpose, Source, Verdict

ROBOT = RobotSpec(
    name="r",
    embodiment="r",
    observation={"x": ArraySpec(shape=(1,)), "front": ArraySpec(shape=(1, 1, 3), dtype="uint8")},
    action=ArraySpec(shape=(2,)),
    action_kind="any",
    control_hz=10.0,
)
START = EpisodeStart(
    id="e",
    task="t",
    prompt="p",
    robot=ROBOT,
    operator="o",
    purpose=Purpose.ONLINE,
    seed=0,
    config_hash="h",
    started_unix_ns=0,
)


class Journal:
    def __init__(self):
        self.begun, self.segments, self.afters, self.ended = [], [], [], []

    def begin(self, start):
        self.begun.append(start.id)

    def append(self, segment, *, after):
        self.segments.append(segment)
        self.afters.append(after.values["x"][0])

    def end(self, *, outcome, judgement, reset_s=None, has_success=True):
        self.ended.append((outcome, judgement))


class FakeControl:
    """The control loop's side: one row per tick, which contains its number."""

    def __init__(self, num_rows):
        self.board = Board(BoardLayout.of(ROBOT, extras={}, horizon=1, num_rows=num_rows))

    def see(self):
        number = self.board.num_seen
        values = {"x": np.array([number], np.float32), "front": np.full((1, 1, 3), number % 256, np.uint8)}
        self.board.observe(Observation(time_ns=number, values=values))

    def step(self, *, first=False):
        row = self.board.num_seen - 1
        action = np.full(2, row, np.float32)
        self.board.act(
            row,
            proposed=action,
            executed=action,
            source=Source.POLICY,
            policy_version=1,
            chunk_id=0,
            chunk_index=0,
            extras={},
        )
        self.see()
        self.board.judge(row, Verdict(outcome=None, rewards={"r": row}), first=first)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=0, max_size=12), min_size=1, max_size=3))
def test_every_step_is_written_once_for_any_flushes(episodes):
    """`episodes`: for each step of each, whether it is flushed after it."""
    control, journal = FakeControl(num_rows=20), Journal()
    episode_writer = EpisodeWriter(control.board, journal, keep=True)
    assert episode_writer.num_unwritten_steps == 0
    for flushes in episodes:
        first = control.board.begin()
        journal.segments, journal.afters = [], []
        episode_writer.begin(START, first=first)
        control.see()
        for index, flush in enumerate(flushes):
            control.step(first=index == 0)
            if flush:
                episode_writer.flush()
                assert episode_writer.num_unwritten_steps == 1  # the newest may be the last
        episode = episode_writer.end(outcome=Outcome.SUCCESS, judgement=None, num_steps=len(flushes))
        assert episode_writer.num_unwritten_steps == 0
        if not flushes:
            assert episode is None
            continue
        rows = np.arange(first, first + len(flushes))
        np.testing.assert_array_equal(episode.column("executed")[:, 0], rows)
        np.testing.assert_array_equal(episode.column("reward/r"), rows)
        np.testing.assert_array_equal(episode.column("observation/front")[:, 0, 0, 0], rows)
        assert episode.last_observation.values["x"][0] == rows[-1] + 1
        starts = np.cumsum([0, *(len(segment) for segment in journal.segments)])
        assert [segment.first for segment in journal.segments] == starts[:-1].tolist()
        assert [segment.final for segment in journal.segments] == [False] * (len(starts) - 2) + [True]
        assert journal.afters == (first + starts[1:]).tolist()
    assert len(journal.begun) == len(journal.ended) == len(episodes)


def test_slow_writer_raises_instead_of_leaving_a_gap():
    control = FakeControl(num_rows=5)
    episode_writer = EpisodeWriter(control.board, None, keep=True)
    episode_writer.begin(START, first=control.board.begin())
    control.see()
    for index in range(3):
        control.step(first=index == 0)
    episode_writer.flush()
    for _ in range(3):
        control.step()
    with pytest.raises(FailureError, match="more than 5 ticks behind the robot"):
        episode_writer.flush()


def test_writer_at_the_limit_of_the_ring_succeeds():
    control = FakeControl(num_rows=5)
    episode_writer = EpisodeWriter(control.board, None, keep=True)
    episode_writer.begin(START, first=control.board.begin())
    control.see()
    for index in range(3):
        control.step(first=index == 0)  # rows 0 to 3 are seen; row 4 may be being written, and it is not row 0's
    episode_writer.flush()
    assert (
        episode_writer.end(outcome=Outcome.TIMEOUT, judgement=Outcome.SUCCESS, num_steps=3).judgement
        is Outcome.SUCCESS
    )


def test_incomplete_step_is_not_written():
    """A fault between sending and judging: two steps count, the third does not; it is what was seen last."""
    control = FakeControl(num_rows=20)
    episode_writer = EpisodeWriter(control.board, None, keep=True)
    episode_writer.begin(START, first=control.board.begin())
    control.see()
    for index in range(2):
        control.step(first=index == 0)
    episode = episode_writer.end(outcome=Outcome.ABORTED, judgement=None, num_steps=2)
    assert (len(episode), episode.last_observation.time_ns) == (2, 2)


def test_without_keep_no_episode_is_returned():
    control, journal = FakeControl(num_rows=20), Journal()
    episode_writer = EpisodeWriter(control.board, journal, keep=False)
    episode_writer.begin(START, first=control.board.begin())
    control.see()
    control.step(first=True)
    assert episode_writer.end(outcome=Outcome.FAILURE, judgement=None, num_steps=1) is None
    assert len(journal.segments) == 1
    assert journal.ended == [(Outcome.FAILURE, None)]
