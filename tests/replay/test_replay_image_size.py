"""The replay stores images as the policy sees them, and says the same as the actor."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from dovetail.actor.board import Board, BoardLayout
from dovetail.core.errors import SpecMismatch
from dovetail.core.images import resize_images, seen_robot
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import (
    Episode,
    EpisodeStart,
    Labels,
    Observation,
    Outcome,
    Purpose,
    Segment,
    Source,
    Step,
    Verdict,
    View,
    Window,
)

CAMERAS = ("head", "left", "right")
ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={
        "joints": ArraySpec(shape=(7,)),
        **{key: ArraySpec(shape=(480, 640, 3), dtype="uint8") for key in CAMERAS},
        "head_depth": ArraySpec(shape=(480, 640, 1), dtype="uint16"),
    },
    action=ArraySpec(shape=(7,), low=(-1.0,) * 7, high=(1.0,) * 7),
    action_kind="joint_target",
    control_hz=50.0,
)
SMALL = replace(
    ROBOT,
    observation={
        "joints": ROBOT.observation["joints"],
        **{key: ArraySpec(shape=(24, 32, 3), dtype="uint8") for key in CAMERAS},
        "head_depth": ArraySpec(shape=(24, 32, 1), dtype="uint16"),
    },
)
START = EpisodeStart(
    id="e1",
    task="t",
    prompt="",
    robot=ROBOT,
    operator="none",
    purpose=Purpose.ONLINE,
    seed=0,
    config_hash="",
    started_unix_ns=0,
)


def observation(robot, tick):
    """Cameras have every third, second and tick's own frame; joint 0 is the tick."""
    values = {"joints": np.full(7, tick, np.float32)}
    for key, every in zip((*CAMERAS, "head_depth"), (3, 2, 1, 3), strict=True):
        spec = robot.observation[key]
        rng = np.random.default_rng((tick // every, every))
        values[key] = rng.integers(0, 256 if spec.is_image else 5000, spec.shape).astype(spec.dtype)
    return Observation(time_ns=tick, values=values)


def step(robot, tick):
    action = np.full(7, tick / 100, np.float32)
    return Step(
        observation=observation(robot, tick),
        proposed=action,
        executed=action,
        source=Source.POLICY,
        policy_version=1,
        chunk_id=0,
        chunk_index=0,
        verdict=Verdict(outcome=None, rewards={"r": 0.0}),
    )


def episode(robot, num_steps, *, cuts=()):
    borders = [0, *cuts, num_steps]
    segments = [
        Segment.of(
            [step(robot, tick) for tick in range(a, b)],
            episode_id="e1",
            first=a,
            last_observation=observation(robot, num_steps) if b == num_steps else None,
        )
        for a, b in itertools.pairwise(borders)
    ]
    return Episode.of(replace(START, robot=robot), segments, outcome=Outcome.SUCCESS)


def labels(num_steps):
    ones = np.ones(num_steps, np.float32)
    return Labels(
        episode_id="e1", rewards=ones, discounts=ones, success=True, confidence=1.0, labeler="l", version="1"
    )


def draw(replay, robot, size=64, *, window=None):
    history = window.history if window else {}
    into = {}
    for key, spec in robot.observation.items():
        ticks = (history[key],) if key in history else ()
        into[f"observation/{key}"] = np.zeros((size, *ticks, *spec.shape), spec.dtype)
        if ticks:
            into[f"observation/{key}/mask"] = np.zeros((size, *ticks), np.bool_)
    replay.sample(into, view=View(), rng=np.random.default_rng(0), window=window or Window())
    return into


def test_eight_gigabytes_hold_50_000_steps_of_three_cameras(open_replay, tmp_path):
    """By the real sizes of the files, for a camera that has a new image at every tick."""
    num_rows = 12
    replay = open_replay(folder="r", keys=("joints", *CAMERAS), capacity_rows=num_rows)
    replay.add(episode(ROBOT, num_rows - 1), labels(num_rows - 1))
    num_bytes = sum(
        path.stat().st_size for path in (tmp_path / "r").iterdir() if path.name.startswith(("rows-", "frames-"))
    )
    assert 8e9 / (num_bytes / num_rows) >= 50_000
    whole = open_replay(keys=("joints", *CAMERAS), capacity_rows=None)
    assert whole.total_rows(ROBOT) >= 50_000
    full = open_replay(keys=("joints", *CAMERAS), capacity_rows=None, image_size="full")
    assert full.total_rows(ROBOT) < 3000, "as it was in 0.6"


def test_stored_images_are_those_that_the_policy_sees(open_replay):
    replay, seen = open_replay(keys=tuple(ROBOT.observation), image_size=64), seen_robot(ROBOT, 64)
    replay.add(episode(ROBOT, 5), labels(5))
    drawn = draw(replay, seen)
    assert drawn["observation/head"].shape[1:] == (48, 64, 3)
    for row, joints in enumerate(drawn["observation/joints"]):
        values = observation(ROBOT, int(joints[0])).values
        for key in (*CAMERAS, "head_depth"):
            expected = resize_images(values[key], seen.observation[key])
            np.testing.assert_array_equal(drawn[f"observation/{key}"][row], expected)


@pytest.mark.parametrize("image_size", ["auto", 64])
def test_streamed_and_whole_episodes_give_the_same_replay(open_replay, image_size):
    live, rebuilt = (open_replay(keys=tuple(ROBOT.observation), image_size=image_size) for _ in range(2))
    parts = episode(ROBOT, 7, cuts=(2, 3))
    for segment in parts.segments[:2]:
        live.extend(parts.start, segment)
    live.add(parts, labels(7))
    rebuilt.add(episode(ROBOT, 7), labels(7))
    seen = seen_robot(ROBOT, 128 if image_size == "auto" else image_size)
    one, other = draw(live, seen), draw(rebuilt, seen)
    assert one and all(np.array_equal(one[name], other[name]) for name in one)


def test_replay_of_small_cameras_is_the_same_as_without_the_setting(open_replay, tmp_path):
    for name, image_size in (("auto", "auto"), ("full", "full")):
        replay = open_replay(folder=name, keys=tuple(SMALL.observation), image_size=image_size)
        replay.add(episode(SMALL, 7, cuts=(3,)), labels(7))
        replay.close()
    before, after = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.name != "counters"}
        for name in ("full", "auto")
    )
    assert before.keys() == after.keys()
    different = [name for name in before if before[name] != after[name] and name not in ("lock", "writer.lock")]
    assert not different


def test_reopened_replay_keeps_its_content_and_refuses_other_sizes(open_replay, tmp_path):
    first = open_replay(folder="r", keys=("joints", "head"))
    first.add(episode(ROBOT, 3), labels(3))
    first.close()
    assert json.loads((tmp_path / "r/layout.json").read_text())["robot"]["observation"]["head"]["shape"] == [
        96,
        128,
        3,
    ]
    again = open_replay(folder="r", keys=("joints", "head"))
    assert again.reset_reason is None and again.ids() == ["e1"]
    again.close()
    other = open_replay(folder="r", keys=("joints", "head"), image_size=256)
    with pytest.raises(SpecMismatch, match="observation 'head'"):
        other.add(replace(episode(ROBOT, 3), id="e2"), replace(labels(3), episode_id="e2"))


def test_actor_and_replay_give_the_same_history_of_three_cameras(open_replay):
    """50 ticks of joints and 4 frames of each camera: left-padded and masked in the same way, to the bit."""
    num_steps, history = 60, {"joints": 50, **dict.fromkeys(CAMERAS, 4)}
    seen = seen_robot(ROBOT, 32)
    policy = PolicySpec(
        name="p", observation=seen.observation, action=ROBOT.action, action_kind="joint_target", history=history
    )
    board = Board(BoardLayout.of(ROBOT, extras={}, horizon=1, num_rows=64))
    board.begin()
    inputs = []
    for tick in range(num_steps):
        row = board.observe(observation(ROBOT, tick))
        inputs.append(board.inputs(policy, row=row, first=board.first))
    replay = open_replay(keys=tuple(ROBOT.observation), image_size=32)
    replay.add(episode(ROBOT, num_steps), labels(num_steps))
    drawn = draw(replay, seen, 150, window=Window(history=history))
    ticks = drawn["observation/joints"][:, -1, 0].astype(int)
    assert {0, 1, 2, 3} & set(ticks) and ticks.max() > 50, "with and without padding"
    for row, tick in enumerate(ticks):
        for key, value in inputs[tick].items():
            np.testing.assert_array_equal(drawn[f"observation/{key}"][row], value[0], err_msg=f"{key} at {tick}")
        assert inputs[tick]["joints/mask"].sum() == min(tick + 1, 50)
        assert inputs[tick]["left/mask"].sum() == min(tick + 1, 4)
