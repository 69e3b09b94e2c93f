"""An arm as a Ray actor. An episode is on the arm's own disk first, and stays there until the store has it.

One thread touches the arm. Another delivers the spool's episodes and streams the running one. A third waits for weights. The
arm never waits for the other two.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dovetail
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import ConfiguresSwap
from dovetail.core.disk import private_folder, read_file
from dovetail.core.errors import DovetailError, RobotFault, StoreError, one_line
from dovetail.core.figures import EpisodeScore
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, Outcome, Purpose, WeightSnapshot
from dovetail.episodes.spool import Spool
from dovetail.live.link import LiveLink
from dovetail.live.run_stop import NotRunning, RunStop
from dovetail.live.stop_relay import Exchange, RelayedStop, Reply
from dovetail.runs.assembly.arms import arm_name
from dovetail.runs.assembly.stop_devices import StopDevices
from dovetail.runs.drain_spool import drain_spool
from dovetail.runtime.ray.roles.handles import StoreHandle
from dovetail.runtime.ray.roles.role import Role, exclusive_lock
from dovetail.runtime.ray.roles.weights import WeightsReader
from dovetail.weights.store import DiskWeightStore

if TYPE_CHECKING:  # they load torch: a new process first opens the input devices
    from dovetail.runs.assembly.build import Assembly
    from dovetail.runs.roles.robot import RobotRunner

__all__ = ["KEY", "Arm", "RobotRole"]

KEY = ".cluster"  # a file in the run's folder: an arm that can read it sees that folder
_POLL_S = 0.2
_WAIT_S = 2.0
_LOST_S = 5.0  # without a call of the driver: the arm is cut off, or the run has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What an arm must know of its run."""

    name: str
    config: Mapping[str, Any]  # plain
    config_hash: str
    run: Path
    key: str
    live: bool = False  # a console is attached: after a fault, wait for its acknowledgement
    first: bool = True  # its link to the console is in the run's folder
    stop_token: str = ""  # of the emergency stop in the run's folder
    run_id: str | None = None  # for a policy server, see RunFolder

    def folder(self) -> Path:
        """The arm's folder on its own machine: in the run's folder if that is visible, otherwise a temporary one that a
        restarted process finds again."""
        try:
            if read_file(self.run / KEY).decode() == self.key:
                return self.run / "robots" / self.name
        except DovetailError:
            pass
        return Path(tempfile.gettempdir()) / f"dovetail-{self.run.name}-{self.key}" / self.name

    def make_folder(self) -> Path:
        """Other users of the machine cannot read it: it holds images."""
        folder = self.folder()
        if not folder.is_relative_to(self.run):
            private_folder(folder.parent)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


def _attached_stop(arm: Arm) -> RunStop | None:
    """The emergency stop of the run. None if this process is not on the driver's machine."""
    with contextlib.suppress(NotRunning):
        stop = RunStop.attach(arm.run, arm=arm.name)
        if stop.token == arm.stop_token:
            return stop
        stop.close()
    return None


class RobotRole(Role):
    """`start` it; `run_one` runs a demonstration or evaluation; `report(online=True)` lets it act online."""

    def __init__(self, arm: Arm, *, store: Any, weights: Any) -> None:
        super().__init__(arm.name)
        self._arm, self._config = arm, RunConfig.model_validate(dict(arm.config))
        # before all that takes time: after a restart of this process, the control process may be gone, too
        self._devices = StopDevices(self._config.operator)
        attached = _attached_stop(arm)
        if attached is not None:
            self._devices.report_to(attached)
        self._ended, self._online, self._delivering = threading.Event(), threading.Event(), threading.Event()
        self._folder = arm.make_folder()
        self._lock_file = exclusive_lock(
            self._folder / ".lock"
        )  # shared with its control process: one moves the arm
        # on another machine, the driver relays it
        self._stop = attached or RunStop.create(self._folder, arm=arm.name)
        self._devices.report_to(self._stop)
        self._relayed_stop = RelayedStop(self._stop) if attached is None else None
        self._stopped_at = 0  # place in `_stop` when the present problem was first seen
        self._spool = self._folder / "spool"
        self._store = StoreHandle(store, until=self._ended.is_set)
        self._weights = WeightsReader(weights)
        self._assembly: Assembly | None = None
        self._robot: RobotRunner | None = None
        self._link: LiveLink | None = None
        self._newest: WeightSnapshot | None = None
        self._called_s = time.monotonic()  # by the driver
        self._restarted_processes: list[tuple[str, int]] = []  # role and new pid of processes that were killed
        self._sending = threading.Lock()
        self._not_delivered: str | None = None  # why
        self._finished: Episode | None = None  # the last episode, so that it is not read from disk again
        self._streams = False  # whether the store needs the steps of the running episode
        self._offsets: dict[str, int] = {}  # how far running episodes were streamed
        self._arm_thread = ThreadPoolExecutor(1, thread_name_prefix="arm")
        for work in (self._act_online, self._deliver_always, self._follow_weights):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    # ---- from the driver

    def start(self) -> dict[str, Any]:
        """Build the arm; return its facts, with which the driver checks that all arms fit together."""
        assembly = self._arm_thread.submit(self._build).result()
        assembly.policy_spec()  # raises if it does not fit
        return {
            "robot": assembly.robot.spec.to_json(),
            "real_time": assembly.real_time,
            "version": dovetail.__version__,
            "task": assembly.task.spec.name,
        }

    def run_one(self, purpose: Purpose, index: int, weights: WeightSnapshot | None) -> dict[str, Any]:
        """Run one episode and deliver it. Without weights, the policy is untrained."""
        return self._arm_thread.submit(self._run_one, purpose, index, weights).result()

    def report(self, *, online: bool = False, shown: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Report on the arm. `online`: whether it shall run online episodes; `shown`: the run's status for the console."""
        self._called_s = time.monotonic()
        if online and self.problem is None:
            self._online.set()
        elif not online:
            self._online.clear()
        if self._link is not None and shown:
            self._link.update(**shown)
        robot = self._robot
        loaded = robot.loaded[1] if robot and robot.loaded else 0
        newest = self._newest.version if self._newest else 0
        return {
            **self.about(),
            "online": self._online.is_set(),
            "version": loaded,
            "versions_behind": max(0, newest - loaded),
            "restarted_processes": list(self._restarted_processes),
            "spooled": len(Spool(self._spool).pending()),
            "stop_requested": self._link is not None and self._link.is_open and self._link.stop_requested,
            "fault": self._link.fault if self._link is not None else None,
            "telemetry": robot.telemetry(Purpose.ONLINE) if robot else {},
        }

    def exchange_stop(self, message: Exchange) -> Reply | None:
        """Exchange emergency stops with the driver. None: this arm shares the memory of the run."""
        return self._relayed_stop.exchange(message) if self._relayed_stop is not None else None

    def pause(self) -> None:
        """Stop online episodes after the one that is running, and deliver it."""
        self._online.clear()
        self._arm_thread.submit(lambda: None).result()
        self._deliver()

    def close(self) -> None:
        self._online.clear()
        self._ended.set()
        self._arm_thread.submit(lambda: None).result()
        self._deliver()
        if self._assembly is not None:
            self._arm_thread.submit(self._assembly.close).result()
        self._devices.close()
        self._stop.close()

    # ---- the arm's thread

    def _act_online(self) -> None:
        while not self._ended.is_set():
            self._read_acknowledgement()
            if not self._online.wait(_POLL_S):
                continue
            try:
                self._arm_thread.submit(self._run_online).result()
            except Exception as error:  # a thread's border: the arm rests until the fault is acknowledged
                self.problem = one_line(error)
                self._online.clear()

    def _run_online(self) -> None:
        robot, real_time = self._runner(), self._build().real_time
        # a restarted process has no weights yet
        ready = self._newest is not None and not self._is_cut_off() and not self._stop.ending
        permit = self._store.request_permit(robot=self.name, real_time=real_time) if ready else None
        if permit is None:
            time.sleep(0.02)
            return
        self._streams = permit.streams
        with self.working("acting"):
            episode = robot.run(Purpose.ONLINE, permit.index, self._newest, robot_minutes=permit.robot_minutes)
        if episode is not None:
            self._finished = episode
            self.count("episodes")
            self.count("steps", len(episode))
        self._delivering.set()

    def _run_one(self, purpose: Purpose, index: int, weights: WeightSnapshot | None) -> dict[str, Any]:
        robot, episode = self._runner(), None
        self._streams = False
        with self.working("evaluating" if purpose is Purpose.EVAL else "demonstrating"):
            try:
                episode = robot.run_through(purpose, index, weights)
            except RobotFault as fault:
                self.problem = one_line(fault)
        if robot.fault and not robot.stopped:
            self.problem = self.problem or robot.fault
        self._finished = episode
        self._deliver()
        outcome = Outcome.ABORTED if episode is None else episode.outcome
        nothing = EpisodeScore(success=False, duration_s=0.0)
        return {
            "id": None if episode is None else episode.id,
            "outcome": outcome,
            "score": nothing if episode is None else self._score(purpose, episode),
            "stopped": robot.stopped,
            "problem": self.problem,
        }

    def _score(self, purpose: Purpose, episode: Episode) -> EpisodeScore:
        if purpose is Purpose.EVAL and self._assembly is not None and episode.outcome is not Outcome.ABORTED:
            return self._assembly.score(episode)
        return EpisodeScore.of(episode)

    def _read_acknowledgement(self) -> None:
        """Continue after a fault for which the arm does not wait: a person has checked it."""
        if self.problem is None:
            self._stopped_at = 0
        elif not self._stopped_at:
            self._stopped_at = self._stop.position
        elif self._stop.last_acknowledgement(self.name) >= self._stopped_at:
            self._stopped_at = 0
            self._arm_thread.submit(self._acknowledge).result()

    def _acknowledge(self) -> None:
        try:
            self._runner().acknowledge()
            self.problem = None
        except Exception as error:  # it is still there, or the arm cannot be built: for the next acknowledgement
            self.problem = one_line(error)

    def _build(self) -> Assembly:
        if self._assembly is None:
            from dovetail.runs.assembly.build import build_assembly

            with self.working("starting"):
                self._assembly = build_assembly(
                    self._config,
                    components=self._arm.run / "parts",
                    run_id=self._arm.run_id,
                    should_stop=self._should_stop,
                    live=self._make_link,
                    on_restart=self._on_restart,
                    name=arm_name(self._config, self.name),
                    lock_descriptor=self._lock_file.fileno(),
                    early_devices=self._devices,
                )
        return self._assembly

    def _runner(self) -> RobotRunner:
        if self._robot is None:
            from dovetail.runs.roles.robot import RobotRunner

            self._robot = RobotRunner(
                self._build(),
                config_hash=self._arm.config_hash,
                spool=Spool(self._spool),
                weights=self._folder / "weights",
            )
        return self._robot

    def _on_restart(self, process: str, pid: int) -> None:
        self._restarted_processes.append((process, pid))
        self._runner().num_restarts += 1

    def _make_link(self, robot: RobotSpec) -> LiveLink:
        where = self._arm.run if self._arm.first and self._folder.is_relative_to(self._arm.run) else self._folder
        # the console finds the first arm in the run's folder and the others in theirs; while no console is open, only the
        # first one waits after a fault, and the others rest until they are acknowledged by name
        waits = self._arm.live and where == self._arm.run
        self._link = LiveLink(where, robot=robot, stop=self._stop, arm=self.name, waits=waits)
        task = self._config.task.type if self._config.task else ""
        operator = self._config.operator.type
        self._link.update(run=self._arm.run.name, task=task, mode=self._config.actor.type, operator=operator)
        return self._link

    def _is_cut_off(self) -> bool:
        """A real arm that STOP cannot reach is cut off at once; the driver's other calls may be late."""
        relayed, timeout_s = self._relayed_stop, self._config.cluster.stop_link_timeout_s
        if relayed is not None and self._real_time and relayed.silent_s > timeout_s:
            return True
        return time.monotonic() - self._called_s > _LOST_S

    def _should_stop(self) -> bool:
        holds = self._real_time if (rule := self._config.cluster.on_disconnect) is None else rule == "hold"
        return self._ended.is_set() or (holds and self._is_cut_off())

    @property
    def _real_time(self) -> bool:
        return self._assembly is not None and self._assembly.real_time

    # ---- delivery

    def _deliver_always(self) -> None:
        while not self._ended.is_set():
            self._delivering.wait(_POLL_S)
            self._delivering.clear()
            self._deliver()

    def _deliver(self) -> None:
        """Deliver all finished episodes, then stream the running one. A repeated delivery is stored once."""
        with self._sending:
            spool, running = Spool(self._spool), self._robot.running if self._robot else None
            finished = self._finished
            try:
                drain_spool(
                    spool,
                    self._store.deliver,
                    report=self._count_event,
                    until=running,
                    in_memory=self._in_memory,
                )
                if self._finished is finished:  # with cameras it is large
                    self._finished = None
                for episode_id in spool.running():
                    self._stream(spool, episode_id)
            except Exception as error:  # such as a full disk, here or there: the arm rests until it is solved
                why = one_line(getattr(error, "cause", None) or error)
                if self.problem in (None, self._not_delivered):
                    self.problem = why
                self._not_delivered = why
                self._online.clear()
            else:
                if self.problem == self._not_delivered:
                    self.problem = None
                self._not_delivered = None

    def _count_event(self, kind: str, /, **facts: Any) -> None:
        self.count(kind)

    def _in_memory(self, episode_id: str) -> Episode | None:
        finished = self._finished
        return finished if finished is not None and finished.id == episode_id else None

    def _stream(self, spool: Spool, episode_id: str) -> None:
        tail = spool.tail(episode_id, offset=self._offsets.get(episode_id, 0))
        if tail is None or not tail.segments:
            return
        if len(self._offsets) > 8:
            self._offsets.clear()
        segments = tail.segments if self._streams else ()  # without steps, it shows that the arm is active
        self._offsets[episode_id] = tail.offset if self._store.stream(tail.start, segments) else 0

    # ---- weights

    def _follow_weights(self) -> None:
        """Wait for other weights. If the inference process loads weights during an episode, write them for it."""
        config = self._config.actor.config
        swaps = isinstance(config, ConfiguresSwap) and config.swap_weights == "chunk"
        local = DiskWeightStore(self._folder / "weights", keep=2) if swaps else None
        while not self._ended.is_set():
            snapshot = self._weights.latest(newer_than=self._newest.version if self._newest else 0, wait_s=_WAIT_S)
            if snapshot is None:
                time.sleep(0.01)
                continue
            self._newest = snapshot
            if local is not None:  # an older version comes after a roll-back, or if it is pinned
                with contextlib.suppress(
                    StoreError
                ):  # a full disk: the arm keeps its weights until a later version
                    local.serve_only(snapshot)
