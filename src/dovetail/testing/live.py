"""A stand-in for a real arm, on the real clock, and a policy with moods: for tests that kill what drives it.

journal = read_journal(path)                      # by anybody, at any time, whoever was killed
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

__all__ = ["JournalNote", "LiveArm", "LiveArmConfig", "MoodyPolicy", "MoodyPolicyConfig", "read_journal"]


class LiveArmConfig(Config):
    control_hz: float = Field(default=50.0, gt=0)
    image_size: tuple[int, int] | None = None
    """Width and height of a camera `front`, which films in a thread of its own; none: no camera."""
    camera_hz: float = Field(default=30.0, gt=0)
    freeze_camera_after_s: float | None = None
    """The camera gives no new picture from then on; none: it never freezes."""
    watchdog_s: float | None = None
    """Without a command for so long, the arm stops by itself, as real ones do; none: it has no such thing."""
    journal: str | None = None
    """A file that every command is appended to; none: it keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalNote:
    """What the arm was told, when, and by which process."""

    time_ns: int  # monotonic, of this machine
    pid: int
    what: Literal["send", "stop", "watchdog"]
    action: tuple[float, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether it is told to go somewhere, in place or angle."""
        return any(self.action[:6])


def read_journal(path: Path | str) -> list[JournalNote]:
    """All notes so far; none if the arm was never told anything."""
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return []
    return [
        JournalNote(time_ns=time_ns, pid=pid, what=what, action=tuple(action))
        for time_ns, pid, what, action in map(
            json.loads, text[: text.rfind("\n") + 1].splitlines()
        )  # more may be on its way
    ]


class LiveArm:
    """A `FakeArm` that moves with the time of the world, and not when a clock of ours says so.

    Building it touches nothing: its camera starts with the first observation, its journal with the first command.
    """

    Config: ClassVar[type[LiveArmConfig]] = LiveArmConfig

    def __init__(self, config: LiveArmConfig, *, task: Task | None = None) -> None:
        self._config = config
        self._arm = FakeArm(FakeArmConfig(control_hz=config.control_hz), task=task)
        observation = dict(self._arm.spec.observation)
        if config.image_size is not None:
            width, height = config.image_size
            observation["front"] = ArraySpec(shape=(height, width, 3), dtype="uint8")
        self._spec = replace(self._arm.spec, name="live_arm", observation=observation)
        self._now_ns = time.monotonic_ns()
        self._told_ns: int | None = None  # when a command came that was not to stop
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
        self._told_ns = self._now_ns
        self._note("send", executed)
        return executed

    def stop(self) -> None:
        self._move()
        self._arm.stop()
        self._told_ns = None
        self._note("stop")

    def close(self) -> None:
        if self._camera is not None:
            self._camera.close()
            self._camera = None
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None

    def _move(self) -> None:
        """Up to now; or up to when its watchdog stopped it."""
        now_ns, watchdog_s = time.monotonic_ns(), self._config.watchdog_s
        self._arm.advance(now_ns - self._now_ns)
        if watchdog_s is not None and self._told_ns is not None:
            bites_ns = self._told_ns + round(watchdog_s * NS_PER_S)
            if now_ns > bites_ns:
                self._arm.stop()
                self._told_ns = None
                self._note("watchdog", time_ns=bites_ns)
        self._now_ns = now_ns

    def _note(self, what: str, action: Array | None = None, *, time_ns: int | None = None) -> None:
        if self._config.journal is None:
            return
        if self._journal is None:
            self._journal = os.open(self._config.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        numbers = [] if action is None else action.tolist()
        line = json.dumps((time.monotonic_ns() if time_ns is None else time_ns, os.getpid(), what, numbers))
        os.write(self._journal, line.encode() + b"\n")  # whole, whoever else writes


class _Camera:
    """Takes a picture now and then, in a thread; the number of the picture is its shade."""

    def __init__(self, config: LiveArmConfig, *, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._period_s = 1.0 / config.camera_hz
        self._freeze_s = config.freeze_camera_after_s
        self._number = 0
        self._newest = self._take()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._film, name="camera", daemon=True)
        self._thread.start()

    def newest(self) -> tuple[Array, int]:
        """A picture, and when it was taken."""
        return self._newest

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _film(self) -> None:
        began_s = time.monotonic()
        while not self._ended.wait(self._period_s):
            if self._freeze_s is None or time.monotonic() - began_s < self._freeze_s:
                self._newest = self._take()

    def _take(self) -> tuple[Array, int]:
        self._number += 1
        frame = np.full(self._shape, self._number % 256, np.uint8)
        frame.setflags(write=False)
        return frame, time.monotonic_ns()


class MoodyPolicyConfig(Config):
    horizon: int = Field(default=16, ge=1)
    think_s: float = Field(default=0.0, ge=0)
    """How long it takes to answer."""
    guidable: bool = False
    nan_after: int | None = None
    """After so many chunks it gives NaN; none: never."""
    raise_after: int | None = None
    """After so many chunks it raises; none: never."""
    hang_after: int | None = None
    """After so many chunks it never answers again; none: it always does."""
    fail_to_start: bool = False
    """It cannot even be warmed up."""
    exit_at_start: bool = False
    """Its process is gone without a word before it is ready."""


class MoodyPolicy:
    """To and fro for ever, without torch, until its mood changes. One weight, `actor/gain`, says how far."""

    Config: ClassVar[type[MoodyPolicyConfig]] = MoodyPolicyConfig

    def __init__(self, config: MoodyPolicyConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self._config = config
        self._spec = PolicySpec(
            name="moody",
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
        mood, num = self._config, self._num_chunks
        self._num_chunks += 1
        if mood.hang_after is not None and num >= mood.hang_after:
            threading.Event().wait()
        if mood.think_s:
            time.sleep(mood.think_s)
        if mood.raise_after is not None and num >= mood.raise_after:
            raise RuntimeError(f"the policy has had enough after {num} chunks")
        there = np.where(np.arange(mood.horizon) < mood.horizon / 2, 1.0, -1.0)[:, None]  # and back again
        actions = (self._middle + self._gain * there * self._reach).astype(np.float32)  # [H, A]
        if mood.nan_after is not None and num >= mood.nan_after:
            actions[-1, 0] = np.nan
        batch = len(next(iter(observations.values())))
        return ActionChunk(actions=actions[None].repeat(batch, 0), observed_ns=0, policy_version=self._version)

    def warmup(self) -> None:
        if self._config.exit_at_start:
            os._exit(3)
        if self._config.fail_to_start:
            raise RuntimeError("the policy does not feel like starting")

    def weights(self) -> Mapping[str, Mapping[str, Array]]:
        return {"actor": {"gain": self._gain.copy()}}

    def load(self, snapshot: WeightSnapshot) -> None:
        gain = snapshot.components.get("actor", {}).get("gain")
        if gain is None or gain.shape != self._gain.shape:
            raise StoreError(
                f"weights version {snapshot.version} do not fit policy 'moody': no gain of shape (1,)"
            )
        if not np.isfinite(gain).all():
            raise StoreError(f"weights version {snapshot.version} hold non-finite numbers; not loaded")
        self._gain, self._version = gain.copy(), snapshot.version

    def reset(self) -> None:
        pass
