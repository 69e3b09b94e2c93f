"""A chunk of policy `pi0` through the real inference process: from images in shared memory to actions in shared memory.

Of a robot's processes, only inference runs; this process takes the place of the control loop. It needs neither a simulator
nor Ray.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.actor.board import Board, BoardLayout
from dovetail.actor.inference import ProcessInference, Request
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import PrefersImageScaling
from dovetail.core.contracts import Policy
from dovetail.core.errors import FailureError
from dovetail.core.images import seen_robot
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext, Array, Observation
from dovetail.processes.shared_memory import anonymous_memory, map_memory
from dovetail.processes.wakeup import WakeupReader, WakeupWriter
from dovetail.robot_host.host_process import HostProcess
from dovetail.runs.assembly.policy_components import build_acting_policy

__all__ = ["NUM_ACTIONS", "NUM_STATE", "ChunkTimes", "bare_chunks", "chunks_of_process", "make_robot"]

NUM_STATE, NUM_ACTIONS = 8, 7
_CAMERAS = {"base_0_rgb": "front", "left_wrist_0_rgb": "left", "right_wrist_0_rgb": "right"}
_PROMPT = "push the cube to the mark"
_NUM_ROWS = 8
_START_S = 300.0
_PAUSE_S = 0.005  # between two chunks, so that the process waits for its wakeup as it does beside a control loop


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Milliseconds of each chunk, and the last chunk, [H, A]."""

    times_ms: list[float]
    actions: Array


def make_robot(*, width: int, height: int) -> RobotSpec:
    """An arm with seven joints and three cameras."""
    cameras = {name: ArraySpec(shape=(height, width, 3), dtype="uint8") for name in _CAMERAS.values()}
    return RobotSpec(
        name="bench_arm",
        embodiment="bench_arm",
        observation={"state": ArraySpec(shape=(NUM_STATE,)), **cameras},
        action=ArraySpec(shape=(NUM_ACTIONS,), low=(-3.0,) * NUM_ACTIONS, high=(3.0,) * NUM_ACTIONS),
        action_kind="joint_target",
        control_hz=50.0,
    )


def _section(folder: Path, device: str) -> PluginSection:
    settings = {"checkpoint": str(folder), "stats": str(folder / "stats.json"), "images": _CAMERAS}
    return PluginSection.parse("policy", {"type": "pi0", "state": ["state"], "device": device, **settings})


def _seen(robot: RobotSpec, section: PluginSection, image_size: int) -> RobotSpec:
    """As in a run: larger images are scaled as the checkpoint was trained."""
    assert isinstance(section.config, PrefersImageScaling)
    return seen_robot(robot, image_size, section.config.preferred_image_scaling)


def _observation(robot: RobotSpec, number: int) -> Observation:
    """Another image and state for each number."""
    rng = np.random.default_rng(number)
    values: dict[str, Array] = {"state": rng.normal(size=NUM_STATE).astype(np.float32)}
    for name in _CAMERAS.values():
        values[name] = rng.integers(0, 256, robot.observation[name].shape, np.uint8)
    return Observation(time_ns=number + 1, values=values)


def _context(number: int) -> ActContext:
    return ActContext(deterministic=True, seed=number, horizon=1)


def bare_chunks(folder: Path, robot: RobotSpec, *, device: str, image_size: int, num: int) -> ChunkTimes:
    """Call the policy in this process: numpy arrays in, numpy array out."""
    section = _section(folder, device)
    seen = _seen(robot, section, image_size)
    policy: Policy = build_acting_policy(section, robot=seen, seed=0)
    policy.warmup()
    times, actions = [], np.zeros(0, np.float32)
    for number in range(num + 2):
        values = _observation(seen, number).values
        inputs = {key: value[None] for key, value in values.items()} | {"prompt": encode_prompt(_PROMPT)[None]}
        time.sleep(_PAUSE_S)
        start_s = time.perf_counter()
        actions = policy.act(inputs, _context(number)).at(0).actions
        times.append(1e3 * (time.perf_counter() - start_s))
    return ChunkTimes(times_ms=times[2:], actions=actions)


def chunks_of_process(
    folder: Path, robot: RobotSpec, *, device: str, image_size: int, horizon: int, num: int
) -> ChunkTimes:
    """Ask the inference process: the time from the request, when the images are on the board, until the actions are."""
    layout = BoardLayout.of(robot, extras={}, horizon=horizon, num_rows=_NUM_ROWS)
    section = _section(folder, device)
    settings = {
        "policy": section.to_plain(),
        "robot": _seen(robot, section, image_size).to_json(),
        "seed": 0,
        "components": None,
        "run_id": None,
        "follow": None,
        "server": None,
        "simulated": False,
    }
    times, actions = [], np.zeros(0, np.float32)
    with _inference(layout, settings) as (board, inference):
        first = board.begin(prompt=_PROMPT)
        for number in range(num + 2):
            row = board.observe(_observation(robot, number))
            context = _context(number)
            time.sleep(_PAUSE_S)
            start_s = time.perf_counter()
            inference.ask(
                Request(
                    row=row,
                    first=first,
                    delay=context.delay,
                    horizon=1,
                    seed=number,
                    deterministic=context.deterministic,
                    prefix=None,
                )
            )
            answer = inference.answer(wait=True)
            times.append(1e3 * (time.perf_counter() - start_s))
            assert answer is not None
            actions = answer.actions
    return ChunkTimes(times_ms=times[2:], actions=actions)


@contextmanager
def _inference(layout: BoardLayout, settings: Mapping[str, Any]) -> Iterator[tuple[Board, ProcessInference]]:
    """The board and the inference process, ready."""
    memory = anonymous_memory(layout.num_bytes)
    board = Board(layout, map_memory(memory, layout.num_bytes))
    (request_reader, request_writer), (answer_reader, answer_writer) = os.pipe(), os.pipe()
    process = HostProcess("inference", {"request": request_reader, "answer": answer_writer, "memory": memory})
    for descriptor in (request_reader, answer_writer, memory):
        os.close(descriptor)  # the pipe ends with the process
    answers = WakeupReader(answer_reader)

    def listen(timeout_s: float) -> None:
        if not answers.wait(timeout_s):
            raise FailureError(process.exit_reason())

    try:
        process.send({"layout": layout.to_json(), **settings})
        if process.receive(timeout_s=_START_S) is None:
            raise FailureError(f"the inference process is not ready after {_START_S:.0f} s")
        yield board, ProcessInference(board, wake=WakeupWriter(request_writer).wake, listen=listen)
    finally:
        os.close(request_writer)  # it ends then
        process.close(timeout_s=5.0)
        os.close(answer_reader)
