"""An actor in processes, as a real arm wants it: control, inference and recorder, sharing memory; this supervises.

    supervisor ──orders──▶ control ◀──chunk── inference        recorder ──▶ spool
        │ heartbeat          │ observations ──▶ │                 ▲
        └────────────────────┴──── one mapping, without a name ───┘

The memory has no name, so nothing is left behind whoever is killed. Everybody sees a death as an end of file: control
then holds and stops the arm, inference and recorder end.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dovetail.actor.actors import ActorConfig, board_layout, make_start
from dovetail.actor.board import Board
from dovetail.config.schema import RunConfig
from dovetail.core import errors
from dovetail.core.errors import DovetailError, FailureError, RobotFault, StoreError
from dovetail.core.specs import PolicySpec
from dovetail.core.types import Episode, EpisodeOrder, Outcome, WeightSnapshot
from dovetail.episodes.spool import Spool
from dovetail.runtime._bell import bell
from dovetail.runtime._channel import Channel, Gone
from dovetail.runtime.cell import Cell
from dovetail.weights.store import DiskWeightStore

__all__ = ["RobotHost"]

_START_S = 120.0  # a large policy takes its time
_REPLY_S = 60.0
_END_S = 1.0
_LOOK_S = 0.02


@dataclass(slots=True, kw_only=True)
class _Process:
    name: str
    popen: subprocess.Popen[bytes]
    channel: Channel
    error: str | None = None

    def ask(self, message: Mapping[str, Any], *, timeout_s: float = _REPLY_S) -> dict[str, Any]:
        """Send, and wait for the reply."""
        try:
            self.channel.send(message)
            return self.reply(timeout_s)
        except Gone:
            raise FailureError(self.obituary()) from None

    def reply(self, timeout_s: float) -> dict[str, Any]:
        reply = self.channel.receive(timeout_s=timeout_s)
        if reply is None:
            raise FailureError(f"the {self.name} process has not replied for {timeout_s:.0f} s")
        if "error" in reply:
            self.error = reply["error"]
            raise FailureError(self.obituary())
        return reply

    def obituary(self) -> str:
        """What it died of, in one line."""
        with contextlib.suppress(Gone, OSError):
            while (last := self.channel.receive(timeout_s=0.0)) is not None:
                self.error = last.get("error", self.error)
        if self.error:
            return f"the {self.name} process has died: {self.error}"
        code = self.popen.poll()
        return f"the {self.name} process has died" + ("" if code is None else f" (exit status {code})")


class RobotHost:
    """See the Actor contract. Processes start with the first episode, or with `start()`."""

    def __init__(
        self,
        config: RunConfig,
        *,
        cell: Cell,
        policy: PolicySpec,
        spool: Path | None = None,
        follow: Path | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        assert isinstance(config.actor.config, ActorConfig)
        self._config, self._actor, self._cell, self._policy = config, config.actor.config, cell, policy
        self._scratch = tempfile.TemporaryDirectory(prefix="dovetail-host-")
        self._spool = Spool((spool or Path(self._scratch.name) / "spool").absolute())
        self._forget_episodes = spool is None  # nobody else would
        self._inbox = DiskWeightStore(Path(self._scratch.name) / "weights", keep=1)
        self._follow = follow if self._actor.swap == "chunk" else None
        self._should_stop = should_stop
        self._processes: dict[str, _Process] = {}
        self._board: Board | None = None
        self._heart: threading.Thread | None = None
        self._stopped = False
        self._telemetry: Mapping[str, float] = {}
        self._snapshot: WeightSnapshot | None = None
        self.fault: str | None = None

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def processes(self) -> Mapping[str, int]:
        """Their process ids, by role."""
        return {name: process.popen.pid for name, process in self._processes.items()}

    def telemetry(self) -> Mapping[str, float]:
        return self._telemetry

    # ---- episodes

    def run(self, order: EpisodeOrder) -> Episode | None:
        self.start()
        assert self._board is not None
        self._stopped = False
        control, recorder = self._processes["control"], self._processes["recorder"]
        self._processes["inference"].ask({"reset": True})
        operator = self._cell.operator(
            order.purpose, self._config.operator, demo_noise=self._config.run.demo_noise
        ).name
        start = make_start(order, task=self._cell.task, robot=self._cell.robot.spec, operator=operator)
        first = self._board.num_seen
        recorder.ask({"begin": start.to_json(), "first": first})
        with contextlib.suppress(Gone):
            control.channel.send({"run": {**asdict(order), "purpose": order.purpose.value}})
        ended = self._await(control, first)
        end = {name: ended[name] for name in ("outcome", "judgement", "num_steps")}
        try:
            recorder.ask({"end": end})
        except FailureError as error:
            self.fault = f"{self.fault}; {error}" if self.fault else str(error)
        if self.fault is None:
            self._telemetry = {
                **self._telemetry,
                **self._processes["inference"].ask({"report": True})["telemetry"],
            }
        return self._collect(order.id)

    def _await(self, control: _Process, first: int) -> dict[str, Any]:
        """How the episode ended, or what is known of that."""
        assert self._board is not None
        try:
            while True:
                if self._should_stop():
                    self._board.ask_to_stop()
                reply = control.channel.receive(timeout_s=_LOOK_S)
                if reply is not None:
                    break
        except Gone:
            self.fault = control.obituary()
            num_steps = max(0, self._board.num_stepped - first)
            return {"outcome": Outcome.ABORTED, "judgement": None, "num_steps": num_steps}
        if "failed" in reply:
            self.fault = reply["failed"]
            raise _error(reply["kind"], reply["failed"])
        if "error" in reply:
            raise FailureError(f"the control process has died: {reply['error']}")
        self._telemetry = reply["telemetry"]
        ended: dict[str, Any] = reply["ended"]
        self._stopped = ended["stopped"]
        if ended["fault"]:
            self.fault = "; ".join([ended["fault"], *self._what_else()])
        return ended

    def _what_else(self) -> list[str]:
        """What may explain a fault: who has died of what, or what the policy had to say."""
        deaths = [process.obituary() for process in self._processes.values() if process.popen.poll() is not None]
        if deaths:
            return deaths
        with contextlib.suppress(FailureError):  # it may hang: then that is known already
            problem = self._processes["inference"].ask({"report": True}, timeout_s=0.5)["problem"]
            return [problem] if problem else []
        return []

    def _collect(self, episode_id: str) -> Episode | None:
        episode = self._spool.load(episode_id)
        if episode is None or self._forget_episodes:
            self._spool.acknowledge(episode_id)
        return episode

    def load(self, snapshot: WeightSnapshot) -> None:
        """Act with these weights from the next episode on. Ones that do not fit are refused, and nothing changes."""
        if self._processes:
            stored = self._inbox.publish(snapshot.components)
            reply = self._processes["inference"].ask({"load": stored, "version": snapshot.version})
            if "refused" in reply:
                raise StoreError(reply["refused"])
        self._snapshot = snapshot

    def acknowledge(self) -> None:
        """A person has seen the fault: what has died is started anew, and the robot may move again."""
        self.fault = None
        if any(process.popen.poll() is not None for process in self._processes.values()):
            self._end()
        elif self._processes:
            self._processes["control"].channel.send({"acknowledge": True})

    # ---- processes

    def start(self) -> None:
        if self.fault is not None:
            raise RobotFault(f"robot '{self._cell.robot.spec.name}' stands still after a fault: {self.fault}")
        if self._processes:
            return
        cell = self._cell
        layout = board_layout(
            self._actor,
            robot=cell.robot.spec,
            policy=self._policy,
            extras={**cell.probe(), **cell.robot.safety_extras()},
        )
        memory = _nameless_memory(layout.num_bytes)
        self._board = Board(layout, memoryview(mmap.mmap(memory, layout.num_bytes)))
        self._beat()
        ask_ear, ask_bell = bell()
        answer_ear, answer_bell = bell()
        alive_ear, alive_bell = bell()
        given = {
            "control": {"ask": ask_bell, "inference": answer_ear, "recorder": alive_ear},
            "inference": {"ask": ask_ear, "answer": answer_bell},
            "recorder": {"alive": alive_bell},
        }
        try:
            for name, descriptors in given.items():
                self._processes[name] = _spawn(name, {**descriptors, "memory": memory})
        finally:  # only those they are meant for hold them: then a death is an end of file
            for descriptor in (memory, *(d for part in given.values() for d in part.values())):
                os.close(descriptor)
        for name, process in self._processes.items():
            with contextlib.suppress(Gone):
                process.channel.send({"layout": layout.to_json(), **self._orders(name)})
        self._await_ready()
        if self._snapshot is not None:
            self.load(self._snapshot)

    def _await_ready(self) -> None:
        """All of them, or none: one that dies before it is ready must not leave the others waiting."""
        waiting, until_s = dict(self._processes), time.monotonic() + _START_S
        try:
            while waiting:
                for name, process in list(waiting.items()):
                    try:
                        if process.channel.receive(timeout_s=_LOOK_S) is None:
                            continue
                    except Gone:
                        raise FailureError(process.obituary()) from None
                    process_error = process.error
                    if process_error is not None:
                        raise FailureError(process.obituary())
                    del waiting[name]
                if time.monotonic() > until_s:
                    raise FailureError(f"not ready after {_START_S:.0f} s: the {' and '.join(waiting)} process")
                if self._should_stop():
                    raise FailureError("asked to stop while the robot's processes were starting")
        except FailureError:
            self._end()
            raise

    def _orders(self, name: str) -> dict[str, Any]:
        config = self._config
        if name == "control":
            return {
                "task": config.task.to_plain() if config.task else None,
                **{kind: getattr(config, kind).to_plain() for kind in ("robot", "safety", "operator", "actor")},
                "policy": self._policy.to_json(),
                "demo_noise": config.run.demo_noise,
            }
        if name == "inference":
            return {
                "policy": config.policy.to_plain(),
                "robot": self._cell.robot.spec.to_json(),
                "seed": config.run.seed,
                "inbox": str(Path(self._scratch.name) / "weights"),
                "follow": str(self._follow) if self._follow else None,
            }
        flush_steps = max(1, round(self._actor.flush_s * self._cell.robot.spec.control_hz))
        return {"spool": str(self._spool.folder), "flush_steps": flush_steps}

    def _beat(self) -> None:
        board, ended = self._board, threading.Event()
        assert board is not None
        board.beat(time.monotonic_ns())

        def beat() -> None:
            while not ended.wait(min(0.1, self._actor.heartbeat_s / 8)):
                board.beat(time.monotonic_ns())

        self._heart = threading.Thread(target=beat, name="heartbeat", daemon=True)
        self._silence = ended.set
        self._heart.start()

    def close(self) -> None:
        self._end()
        self._spool.close()
        self._scratch.cleanup()

    def _end(self) -> None:
        """Nobody outlives this: asked, then told, then killed."""
        processes, self._processes = self._processes, {}
        if self._board is not None:
            self._board.ask_to_stop()
        for process in processes.values():
            with contextlib.suppress(Gone):
                process.channel.send({"close": True})
        until_s = time.monotonic() + _END_S
        for process in processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, until_s - time.monotonic()))
            process.channel.close()
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()
        if self._heart is not None:
            self._silence()
            self._heart.join()
        self._board = self._heart = None


def _nameless_memory(num_bytes: int) -> int:
    """A descriptor of zeros that several processes can map, and that no file system shows."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("dovetail-board", 0)
    else:
        with tempfile.TemporaryFile(prefix="dovetail-board-") as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor


def _spawn(name: str, descriptors: dict[str, int]) -> _Process:
    ours, theirs = Channel.pair()
    descriptors = {**descriptors, "channel": theirs.fileno()}
    popen = subprocess.Popen(
        [sys.executable, "-m", "dovetail.runtime.roles", name, json.dumps(descriptors)],
        pass_fds=tuple(descriptors.values()),
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    theirs.close()
    return _Process(name=name, popen=popen, channel=ours)


def _error(kind: str, message: str) -> DovetailError:
    found = getattr(errors, kind, FailureError)
    return (
        found(message) if isinstance(found, type) and issubclass(found, DovetailError) else FailureError(message)
    )
