"""A hint appears only if the arm makes no progress, actions are at their limit, or the episode is long."""

import numpy as np
import pytest

from dovetail.actor.board import Board, BoardLayout
from dovetail.core.types import Observation, Source, Verdict
from dovetail.live.help_hints import hint_for
from dovetail.testing.fakes import FakeArm, FakeArmConfig

SPEC = FakeArm(FakeArmConfig()).spec  # 10 Hz


def make_board(poses, actions):
    board = Board(BoardLayout.of(SPEC, extras={}, horizon=1, num_rows=100))
    board.begin()
    for row, (pose, action) in enumerate(zip(poses, actions, strict=True)):
        values = {
            "ee_pose": np.array((*pose, 1.0, 0.0, 0.0, 0.0), np.float32),
            "gripper": np.ones(1, np.float32),
            "goal": np.zeros(3, np.float32),
        }
        board.observe(Observation(time_ns=row, values=values))
        board.act(
            row,
            proposed=action,
            executed=action,
            source=Source.POLICY,
            policy_version=1,
            chunk_id=0,
            chunk_index=0,
            extras={},
        )
        board.judge(row, Verdict(outcome=None), first=row == 0)
    return board


def moving(num, step=0.01):
    return [(step * i, 0.0, 0.1) for i in range(num)]


def still(num):
    return [(0.3, 0.001 * (i % 2), 0.1) for i in range(num)]


def gentle(num):
    return [np.array((0.01, 0, 0, 0, 0, 0, 1.0), np.float32)] * num  # an open gripper does not count


def hard(num):
    return [np.array((0.02, 0, 0, 0, 0, 0, 0.5), np.float32)] * num


@pytest.mark.parametrize(
    ("board", "usual_steps", "text"),
    [
        (make_board(moving(40), gentle(40)), None, None),
        (make_board(still(29), gentle(29)), None, None),  # less than three seconds
        (make_board(still(40), gentle(40)), None, "no progress for 3 s"),
        (make_board(moving(10) + still(40), gentle(50)), None, "no progress"),
        (make_board(moving(40), hard(40)), None, "at their limit"),
        (make_board(moving(40), gentle(40)), 30.0, None),
        (make_board(moving(40), gentle(40)), 25.0, "longer than the usual 2 s"),
    ],
)
def test_hint_depends_on_recent_motion(board, usual_steps, text):
    hint = hint_for(board, SPEC, usual_steps=usual_steps)
    if text is None:
        assert hint is None
    else:
        assert text in hint.text
        assert 0.5 <= hint.seconds <= 3.0
