"""Collecting in a process of its own, `python -m dovetail.runtime.onpolicy.collector DESCRIPTOR`, while another one learns.

A process, not a thread: what a tick costs is mostly Python (inverse kinematics, the safety filter, verdicts), and so is an
update of a small network. Two threads would share one interpreter lock, and take turns; two processes share nothing, so that
a round takes as long as the longer of the two, and no optimiser ever writes to weights that somebody acts with.

The learner numbers its weights by the rollouts it has learned from. Rollout r will meet version r, so a collector whose
weights are version v waits for newer ones where r - v would exceed `max_staleness`: the bound holds however fast either is.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from dovetail.config.safety import SafetyConfig
from dovetail.config.schema import PluginSection, RunConfig
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.types import Array
from dovetail.learn.rollouts import Practice
from dovetail.policies.trainable import ValuedPolicy
from dovetail.processes.array_channel import ArrayChannel, run_child
from dovetail.processes.channel import ChannelClosed
from dovetail.runs.assembly.workcell import build_workcell
from dovetail.runs.folder import RunFolder
from dovetail.runtime.onpolicy.recording import Recording
from dovetail.runtime.onpolicy.worlds import Collector

__all__ = ["ProcessCollector", "build_collector", "collector_orders"]

_LOOK_S = 0.05
_END_S = 2.0


def collector_orders(
    config: RunConfig,
    practice: Practice,
    *,
    num_rollouts: int,
    folder: RunFolder | None = None,
) -> dict[str, Any]:
    """All that a collector has to know, in plain values; `folder` is the run's, where episodes are recorded."""
    if practice.record and folder is None:
        raise UsageError("algorithm.record needs a run's folder to record to: leave it out, or use `dovetail run`")
    return {
        "task": config.task.to_plain() if config.task else None,
        "robot": config.robot.to_plain(),
        "policy": config.policy.to_plain(),
        "safety": config.safety.model_dump(mode="json"),
        "seed": config.run.seed,
        "practice": asdict(practice),
        "num_rollouts": num_rollouts,
        "record": _record_orders(folder) if practice.record and folder else None,
    }


def _record_orders(folder: RunFolder) -> dict[str, Any]:
    return {
        "folder": str(folder.episodes.absolute()),
        "config_hash": folder.config_hash,
        "images": folder.config.images.model_dump(mode="json"),
    }


def build_collector(orders: Mapping[str, Any], worlds: Mapping[str, Array]) -> Collector:
    """One in this process; `worlds` are where those before it stood, and empty if there were none."""
    kinds = ("task", "robot", "policy")
    parts = {kind: PluginSection.parse(kind, orders[kind]) for kind in kinds if orders[kind] is not None}
    practice, safety = Practice(**orders["practice"]), SafetyConfig.from_mapping(orders["safety"])
    cells = [
        build_workcell(task=parts.get("task"), robot=parts["robot"], safety=safety)
        for _ in range(practice.num_envs)
    ]
    policy: ValuedPolicy = parts["policy"].build(robot=cells[0].robot.spec, seed=orders["seed"])
    return Collector(
        cells,
        policy=policy,
        practice=practice,
        seed=orders["seed"],
        num_rollouts=orders["num_rollouts"],
        worlds=worlds,
        recordings=[Recording.of(cell, orders["record"], seed=orders["seed"]) for cell in cells]
        if orders["record"]
        else (),
    )


class ProcessCollector:
    """A Collector elsewhere: `load` sends it weights, `collect` waits for the rollout that it is at."""

    def __init__(
        self,
        orders: Mapping[str, Any],
        worlds: Mapping[str, Array],
        *,
        should_stop: Callable[[], bool] = lambda: False,
        patience_s: float = 600.0,
    ) -> None:
        self._should_stop, self._patience_s = should_stop, patience_s
        self._frames, theirs = ArrayChannel.pair()
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "dovetail.runtime.onpolicy.collector", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                process_group=0,  # a terminal's Ctrl-C is for the learner, who then ends it
            )
        finally:
            theirs.close()
        self._error: str | None = None
        self._rollouts: queue.SimpleQueue[dict[str, Array] | None] = queue.SimpleQueue()
        # Whatever comes is taken at once: were both sides to send and neither to receive, they would wait for ever.
        # There is room for all, for the bound on staleness bounds how far a collector can be ahead.
        self._reader = threading.Thread(target=self._read, name="rollouts", daemon=True)
        self._reader.start()
        self._tell(orders, worlds)

    def load(self, weights: Mapping[str, Mapping[str, Array]], *, version: int) -> None:
        flat = {f"{component}|{name}": array for component, w in weights.items() for name, array in w.items()}
        self._tell({"version": version}, flat)

    def collect(self) -> dict[str, Array] | None:
        """The next rollout; None if the run is to end. Raises FailureError where none will come."""
        until_s = time.monotonic() + self._patience_s
        while not self._should_stop():
            try:
                rollout = self._rollouts.get(timeout=_LOOK_S)
            except queue.Empty:
                if time.monotonic() > until_s:
                    raise FailureError(f"no rollout came from the collector in {self._patience_s:.0f} s") from None
                continue
            if rollout is None:
                self._rollouts.put(None)  # for whoever asks again
                raise FailureError(self._obituary())
            return rollout
        return None

    def close(self) -> None:
        self._frames.hang_up()  # it looks up at each tick
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(_END_S)
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self._reader.join()
        self._frames.close()

    def _tell(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        with contextlib.suppress(ChannelClosed):  # the dead are told nothing: whoever waits for them will see
            self._frames.send(facts, arrays)

    def _read(self) -> None:
        try:
            while True:
                facts, rollout = self._frames.receive()
                if "error" in facts:
                    self._error = facts["error"]
                else:
                    self._rollouts.put(rollout)
        except ChannelClosed:
            self._rollouts.put(None)

    def _obituary(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(_END_S)
        code = self.popen.poll()
        if self._error:
            return f"the collector has died: {self._error}"
        if code is not None and code < 0:
            return f"the collector has died: killed by {signal.Signals(-code).name}"
        return f"the collector has died (exit status {code})"


def _serve(frames: ArrayChannel) -> None:
    import torch

    torch.set_num_threads(1)
    orders, worlds = frames.receive()
    collector = build_collector(orders, worlds)
    max_staleness, version = orders["practice"]["max_staleness"], -1

    def take_weights() -> None:
        nonlocal version
        while version < 0 or collector.num_rollouts - version > max_staleness or frames.waits():
            facts, flat = frames.receive()
            weights: dict[str, dict[str, Array]] = {}
            for name, array in flat.items():
                component, _, inner = name.partition("|")
                weights.setdefault(component, {})[inner] = array
            version = facts["version"]
            collector.load(weights, version=version)

    while True:
        frames.send({}, collector.collect(before_tick=take_weights))


if __name__ == "__main__":
    os._exit(run_child(_serve))  # to tear torch down piece by piece takes a second
