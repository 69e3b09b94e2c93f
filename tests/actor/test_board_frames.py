"""Rings of frames that are shorter than the ring of rows, for cameras that are slower than the robot."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.actor.actors import ActorConfig, board_layout
from dovetail.actor.board import Board, BoardLayout
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import Observation, Source, Verdict

FRAME_BYTES = 640 * 480 * 3


def robot(control_hz: float, *cameras: str, shape: tuple[int, ...] = (480, 640, 3)) -> RobotSpec:
    images = {name: ArraySpec(shape=shape, dtype="uint8") for name in cameras}
    return RobotSpec(
        name="r",
        embodiment="r",
        observation={"joints": ArraySpec(shape=(2,)), **images},
        action=ArraySpec(shape=(2,)),
        action_kind="any",
        control_hz=control_hz,
    )


@pytest.mark.parametrize(
    ("control_hz", "max_fps", "num_frames"),
    [
        (50.0, {}, 309),  # 6 s at 50 Hz, 8 spare rows and 1 of history
        (50.0, {"a": 30.0, "b": 30.0, "c": 30.0}, 189),  # 6 s at 30 fps
        (20.0, {"a": 30.0, "b": 30.0, "c": 30.0}, 129),  # never more than one per tick
        (200.0, {"a": 30.0, "b": 30.0, "c": 30.0}, 189),
    ],
)
def test_memory_of_three_cameras_follows_their_rate(
    control_hz: float, max_fps: dict[str, float], num_frames: int
) -> None:
    layout = board_layout(
        ActorConfig(), robot=robot(control_hz, "a", "b", "c"), policy=None, extras={}, max_fps=max_fps
    )
    assert [layout.num_kept(key) for key in "abc"] == [num_frames] * 3
    assert layout.num_rows == 6 * control_hz + 9
    assert 0 <= layout.num_bytes - 3 * num_frames * FRAME_BYTES < 2_000_000


def fill(board: Board, first: int, end: int, *, ticks_per_frame: int) -> None:
    """Rows whose frame number is in its pixels."""
    for number in range(first, end):
        frame = number // ticks_per_frame
        row = board.observe(
            Observation(
                time_ns=10 * number,
                values={"joints": np.full(2, number, np.float32), "a": np.full((2, 2, 3), frame, np.uint8)},
                captured_ns={"a": 1000 + frame},
            )
        )
        board.act(
            row,
            proposed=np.zeros(2),
            executed=np.zeros(2),
            source=Source.POLICY,
            policy_version=0,
            chunk_id=0,
            chunk_index=0,
            extras={},
        )
        board.judge(row, Verdict(outcome=None), first=number == 0)


def small(num_frames: int | None) -> Board:
    frames = {} if num_frames is None else {"a": num_frames, "other": 3}
    layout = BoardLayout.of(
        robot(10.0, "a", shape=(2, 2, 3)), extras={}, horizon=1, num_rows=12, num_frames=frames
    )
    return Board(BoardLayout.from_json(layout.to_json()))


def test_frames_of_a_slow_camera_are_those_of_a_full_ring() -> None:
    full, short = small(None), small(6)
    for board in (full, short):
        fill(board, 0, 30, ticks_per_frame=3)
    rows = (19, 30)  # the oldest row that is not overwritten, and the end
    for name, column in full.columns(*rows).items():
        assert np.array_equal(short.columns(*rows)[name], column), name
    assert short.columns(*rows)["observation/a"][:, 0, 0, 0].tolist() == [row // 3 for row in range(*rows)]
    assert [short.is_overwritten(row) for row in (18, 19)] == [full.is_overwritten(row) for row in (18, 19)]
    assert not short.is_overwritten(19)
    spec = PolicySpec(
        name="p",
        observation={"a": ArraySpec(shape=(2, 2, 3), dtype="uint8")},
        action=ArraySpec(shape=(2,)),
        action_kind="any",
        horizon=1,
        history={"a": 7},
    )
    expected = full.inputs(spec, row=29, first=0)["a"]
    assert np.array_equal(short.inputs(spec, row=29, first=0)["a"], expected)
    assert expected[0, :, 0, 0, 0].tolist() == [7, 8, 8, 8, 9, 9, 9]  # rows 23 to 29


def test_camera_that_is_faster_than_its_rate_is_reported_as_overwritten() -> None:
    board = small(6)
    fill(board, 0, 12, ticks_per_frame=1)
    # 6 frames are kept, and the next one may be half written: the rows are there, their frames are not
    assert [board.is_overwritten(row) for row in range(12)] == [True] * 7 + [False] * 5
