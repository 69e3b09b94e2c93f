"""A fake arm on the real clock and a policy that fails on request, for tests that kill processes.

journal = read_journal(path)                      # from any process, at any time
last = [note for note in journal if note.what == "send"][-1]
assert journal[-1].what == "stop" and journal[-1].time_ns - last.time_ns < 1e9
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Task
from dovetail.core.errors import StoreError
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array, Observation, WeightSnapshot
from dovetail.testing.fakes import FakeArm, FakeArmConfig

__all__ = ["FaultyPolicy", "FaultyPolicyConfig", "JournalNote", "LiveArm", "LiveArmConfig", "read_journal"]


_MAX_JUMP_M = 0.1  # of a reset: more within the guard's window would be a runaway arm


class LiveArmConfig(Config):
    """A fake arm on the real clock."""

    control_hz: float = Field(default=50.0, gt=0)
    """Control ticks per second."""
    image_size: tuple[int, int] | None = None
    """Width and height of a camera `front` in pixels, which runs in a thread. Null: no camera."""
    camera_hz: float = Field(default=30.0, gt=0)
    """Frames per second."""
    freeze_camera_after_s: float | None = None
    """Seconds after which the camera gives no new frames. Null: never."""
    watchdog_s: float | None = None
    """Seconds without a command after which the arm stops itself. Null: no watchdog."""
    journal: str | None = None
    """File to which every command is appended. Null: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalNote:
    """A command to the arm, its time and its process."""

    time_ns: int  # monotonic, of this machine
    pid: int
    what: Literal["send", "stop", "watchdog"]
    action: tuple[float, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether the command is a motion."""
        return any(self.action[:6])


def read_journal(path: Path | str) -> list[JournalNote]:
    """All commands so far."""
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return []
    return [
        JournalNote(time_ns=time_ns, pid=pid, what=what, action=tuple(action))
        for time_ns, pid, what, action in map(
            json.loads, text[: text.rfind("\n") + 1].splitlines()
        )  # ignores an incomplete line
    ]


class LiveArm:
    """A `FakeArm` that moves in real time.

    The constructor does no I/O: the camera starts with the first observation, the journal with the first command.
    """

    Config: ClassVar[type[LiveArmConfig]] = LiveArmConfig

    def __init__(self, config: LiveArmConfig, *, task: Task | None = None) -> None:
        self._config = config
        self._arm = FakeArm(FakeArmConfig(control_hz=config.control_hz, max_jump_m=_MAX_JUMP_M), task=task)
        observation = dict(self._arm.spec.observation)
        if config.image_size is not None:
            width, height = config.image_size
            observation["front"] = ArraySpec(shape=(height, width, 3), dtype="uint8")
        self._spec = replace(self._arm.spec, name="live_arm", observation=observation)
        self._now_ns = time.monotonic_ns()
        self._commanded_ns: int | None = None  # time of the last command other than a stop
        self._journal: int | None = None
        self._camera: _Camera | None = None

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        self._move()
        seen = replace(self._arm.observe(), time_ns=self._now_ns)
        if self._config.image_size is None:
            return seen
        if self._camera is None:
            self._camera = _Camera(self._config, shape=self._spec.observation["front"].shape)
        frame, captured_ns = self._camera.newest()
        return replace(seen, values={**seen.values, "front": frame}, captured_ns={"front": captured_ns})

    def send(self, action: Array) -> Array:
        self._move()
        executed = self._arm.send(action)
        self._commanded_ns = self._now_ns
        self._note("send", executed)
        return executed

    def stop(self) -> None:
        self._move()
        self._arm.stop()
        self._commanded_ns = None
        self._note("stop")

    def close(self) -> None:
        if self._camera is not None:
            self._camera.close()
            self._camera = None
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None

    def _move(self) -> None:
        """Advance to now, or to the moment when the watchdog stopped the arm."""
        now_ns, watchdog_s = time.monotonic_ns(), self._config.watchdog_s
        self._arm.advance(now_ns - self._now_ns)
        if watchdog_s is not None and self._commanded_ns is not None:
            expires_ns = self._commanded_ns + round(watchdog_s * NS_PER_S)
            if now_ns > expires_ns:
                self._arm.stop()
                self._commanded_ns = None
                self._note("watchdog", time_ns=expires_ns)
        self._now_ns = now_ns

    def _note(self, what: str, action: Array | None = None, *, time_ns: int | None = None) -> None:
        if self._config.journal is None:
            return
        if self._journal is None:
            self._journal = os.open(self._config.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        numbers = [] if action is None else action.tolist()
        line = json.dumps((time.monotonic_ns() if time_ns is None else time_ns, os.getpid(), what, numbers))
        os.write(self._journal, line.encode() + b"\n")  # one write per line, because several processes write


class _Camera:
    """Takes images in a thread. The gray value is the number of the image."""

    def __init__(self, config: LiveArmConfig, *, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._period_s = 1.0 / config.camera_hz
        self._freeze_s = config.freeze_camera_after_s
        self._number = 0
        self._newest = self._take()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)
        self._thread.start()

    def newest(self) -> tuple[Array, int]:
        """Return the newest image and its time."""
        return self._newest

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._ended.wait(self._period_s):
            if self._freeze_s is None or time.monotonic() - began_s < self._freeze_s:
                self._newest = self._take()

    def _take(self) -> tuple[Array, int]:
        self._number += 1
        frame = np.full(self._shape, self._number % 256, np.uint8)
        frame.setflags(write=False)
        return frame, time.monotonic_ns()


class FaultyPolicyConfig(Config):
    """A policy that fails on request."""

    horizon: int = Field(default=16, ge=1)
    """Actions per chunk."""
    inference_s: float = Field(default=0.0, ge=0)
    """Seconds per inference."""
    guidable: bool = False
    """Whether real-time chunking may use it."""
    nan_after: int | None = None
    """Number of chunks before it returns NaN. Null: never."""
    raise_after: int | None = None
    """Number of chunks before it raises. Null: never."""
    hang_after: int | None = None
    """Number of chunks before it hangs. Null: never."""
    fail_to_start: bool = False
    """Raise in `warmup`."""
    exit_at_start: bool = False
    """Exit the process in `warmup`."""


class FaultyPolicy:
    """Moves back and forth, without torch, until it fails. The weight `actor/gain` sets the amplitude."""

    Config: ClassVar[type[FaultyPolicyConfig]] = FaultyPolicyConfig

    def __init__(self, config: FaultyPolicyConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self._config = config
        self._spec = PolicySpec(
            name="faulty",
            observation=robot.observation,
            action=robot.action,
            action_kind=robot.action_kind,
            horizon=config.horizon,
            guidable=config.guidable,
        )
        low, high = robot.action.bounds
        self._middle, self._reach = (low + high) / 2, (high - low) / 2
        self._gain = np.array([0.1], np.float32)
        self._version = 0
        self._num_chunks = 0

    @property
    def spec(self) -> PolicySpec:
        return self._spec

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        config, num = self._config, self._num_chunks
        self._num_chunks += 1
        if config.hang_after is not None and num >= config.hang_after:
            threading.Event().wait()
        if config.inference_s:
            time.sleep(config.inference_s)
        if config.raise_after is not None and num >= config.raise_after:
            raise RuntimeError(f"the policy failed on purpose after {num} chunks")
        there = np.where(np.arange(config.horizon) < config.horizon / 2, 1.0, -1.0)[:, None]  # forward, then back
        actions = (self._middle + self._gain * there * self._reach).astype(np.float32)  # [H, A]
        if config.nan_after is not None and num >= config.nan_after:
            actions[-1, 0] = np.nan
        batch = len(next(iter(observations.values())))
        return ActionChunk(actions=actions[None].repeat(batch, 0), observed_ns=0, policy_version=self._version)

    def warmup(self) -> None:
        if self._config.exit_at_start:
            os._exit(3)
        if self._config.fail_to_start:
            raise RuntimeError("the policy failed on purpose in warmup")

    def weights(self) -> Mapping[str, Mapping[str, Array]]:
        return {"actor": {"gain": self._gain.copy()}}

    def load(self, snapshot: WeightSnapshot) -> None:
        gain = snapshot.components.get("actor", {}).get("gain")
        if gain is None or gain.shape != self._gain.shape:
            raise StoreError(
                f"weights version {snapshot.version} do not fit policy 'faulty': no gain of shape (1,)"
            )
        if not np.isfinite(gain).all():
            raise StoreError(f"weights version {snapshot.version} hold non-finite numbers; not loaded")
        self._gain, self._version = gain.copy(), snapshot.version

    def reset(self) -> None:
        pass
