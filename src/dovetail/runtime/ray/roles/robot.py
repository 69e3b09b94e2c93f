"""An arm: episodes on request, or one after another while it practises. Each is on its own disk before anybody hears of it,
and stays there until the store has it.

Everything that touches the arm happens on one thread. Another delivers what the spool holds, and streams what is being
recorded; a third waits for weights. None of them ever keeps the arm waiting.
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
from typing import Any

import dovetail
from dovetail.config.schema import RunConfig
from dovetail.core.contracts import Actor
from dovetail.core.disk import read_file
from dovetail.core.errors import DovetailError, RobotFault, StoreError, one_line
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, EpisodeOrder, Outcome, Purpose, WeightSnapshot
from dovetail.episodes.spool import Spool
from dovetail.live.link import LiveLink
from dovetail.robot_host.attended_actor import AttendedActor
from dovetail.runs.assembly.arms import arm_name
from dovetail.runs.assembly.build import Assembly, build_assembly
from dovetail.runs.drain_spool import hand_over
from dovetail.runs.evaluate import order_episode
from dovetail.runtime.ray.roles.handles import StoreHandle
from dovetail.runtime.ray.roles.role import Role, only_one
from dovetail.runtime.ray.roles.weights import WeightsReader
from dovetail.weights.store import DiskWeightStore

__all__ = ["KEY", "Arm", "RobotRole"]

KEY = ".cluster"  # in the run's folder: what tells an arm that it sees that folder
_LOOK_S = 0.2
_WAIT_S = 2.0
_LOST_S = 5.0  # without a word from the run: cut off, or it has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What an arm is told of the run that it belongs to."""

    name: str
    config: Mapping[str, Any]  # plain
    config_hash: str
    run: Path
    key: str
    live: bool = False  # there is a console: after a fault, whoever sits there is waited for
    first: bool = True  # the one that a console finds without being told a name

    def folder(self) -> Path:
        """On the arm's own machine: in the run's folder where that is in reach, and otherwise in a temporary one of its
        own, which a later process finds again."""
        try:
            if read_file(self.run / KEY).decode() == self.key:
                return self.run / "robots" / self.name
        except DovetailError:
            pass
        return Path(tempfile.gettempdir()) / f"dovetail-{self.run.name}-{self.key}" / self.name


class RobotRole(Role):
    """`start` it; then `run_one` for demonstrations and evaluations, and `report(practise=True)` for practice."""

    def __init__(self, arm: Arm, *, store: Any, weights: Any) -> None:
        super().__init__(arm.name)
        self._arm, self._config = arm, RunConfig.model_validate(dict(arm.config))
        self._ended, self._practising, self._delivering = threading.Event(), threading.Event(), threading.Event()
        self._folder = arm.folder()
        self._lock = only_one(self._folder / ".lock")  # two never move one arm: its control process shares it
        self._spool = self._folder / "spool"
        self._store = StoreHandle(store, until=self._ended.is_set)
        self._weights = WeightsReader(weights)
        self._station: Assembly | None = None
        self._link: LiveLink | None = None
        self._actors: dict[Purpose, Actor] = {}
        self._newest: WeightSnapshot | None = None
        self._loaded = (Purpose.ONLINE, 0)  # what for, and which version
        self._heard_s = time.monotonic()
        self._casualties: list[tuple[str, int]] = []  # of its processes: who was killed, and who came instead
        self._sending = threading.Lock()
        self._undelivered: str | None = None  # why
        self._acting: str | None = None  # the episode that an actor is still at, also when all of it is recorded
        self._streams = False  # whether the steps of what is running are wanted
        self._offsets: dict[str, int] = {}  # how far episodes that are running were streamed
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="arm")
        for work in (self._practise, self._deliver_always, self._follow_weights):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    # ---- what it is asked for

    def start(self) -> dict[str, Any]:
        """Make the arm ready; what it is, for whoever checks that all fit together."""
        station = self._hands.submit(self._made).result()
        station.policy()  # refused here where it does not fit
        return {
            "robot": station.robot.spec.to_json(),
            "real_time": station.real_time,
            "version": dovetail.__version__,
            "task": station.task.spec.name,
        }

    def run_one(self, purpose: Purpose, index: int, weights: WeightSnapshot | None) -> dict[str, Any]:
        """One episode, in the store when this returns; without weights, of a policy that has learned nothing."""
        return self._hands.submit(self._run_one, purpose, index, weights).result()

    def report(self, *, practise: bool = False, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """How it is. Who asks says what is wanted of it, and what those who watch it may see."""
        self._heard_s = time.monotonic()
        if practise and self.problem is None:
            self._practising.set()
        elif not practise:
            self._practising.clear()
        if self._link is not None and told:
            self._link.tell(**told)
        actor = self._actors.get(Purpose.ONLINE)
        newest = self._newest.version if self._newest else 0
        return {
            **self.about(),
            "practising": self._practising.is_set(),
            "version": self._loaded[1],
            "versions_behind": max(0, newest - self._loaded[1]),
            "casualties": list(self._casualties),
            "spooled": len(Spool(self._spool).pending()),
            "stop_asked": self._link is not None and self._link.is_open and self._link.stop_asked,
            "fault": self._link.fault if self._link is not None else None,
            "telemetry": dict(actor.telemetry()) if actor else {},
        }

    def acknowledge(self) -> None:
        """Somebody has seen to it: go on."""
        if self._link is not None and self._link.fault is not None:
            self._link.acknowledge()
        elif self.problem is not None:
            self._hands.submit(self._acknowledge).result()

    def pause(self) -> None:
        """End practice after the episode that is running, and deliver it."""
        self._practising.clear()
        self._hands.submit(lambda: None).result()
        self._deliver()

    def close(self) -> None:
        self._practising.clear()
        self._ended.set()
        self._hands.submit(lambda: None).result()
        self._deliver()
        if self._station is not None:
            self._hands.submit(self._station.close).result()

    # ---- the arm

    def _practise(self) -> None:
        while not self._ended.is_set():
            if not self._practising.wait(_LOOK_S):
                continue
            try:
                self._hands.submit(self._practise_once).result()
            except Exception as error:  # a thread's border: told, and this arm rests until somebody has seen to it
                self.problem = one_line(error)
                self._practising.clear()

    def _practise_once(self) -> None:
        station = self._made()
        ready = self._newest is not None and not self._is_lost()  # a new process has yet to hear what was learned
        ticket = self._store.ticket(robot=self.name, real_time=station.real_time) if ready else None
        if ticket is None:
            time.sleep(0.02)
            return
        actor = self._actor(Purpose.ONLINE)
        self._load(actor, Purpose.ONLINE, self._newest)
        order = self._order(Purpose.ONLINE, ticket.index, robot_minutes=ticket.robot_minutes)
        self._streams = ticket.streams
        with self.working("acting"):
            episode = self._run(actor, order)
        if episode is not None:
            self.count("episodes")
            self.count("steps", len(episode))
        self._delivering.set()

    def _acknowledge(self) -> None:
        try:
            for actor in self._actors.values():
                actor.acknowledge()
            self.problem = None
        except RobotFault as fault:  # it is still there
            self.problem = one_line(fault)

    def _run_one(self, purpose: Purpose, index: int, weights: WeightSnapshot | None) -> dict[str, Any]:
        actor = self._actor(purpose)
        self._load(actor, purpose, weights)
        self._streams = False
        with self.working("evaluating" if purpose is Purpose.EVAL else "demonstrating"):
            episode, again = None, True
            while again:
                num_casualties = len(self._casualties)
                try:
                    episode = self._run(actor, self._order(purpose, index))
                except RobotFault as fault:
                    self.problem = one_line(fault)
                seen_to = isinstance(actor, AttendedActor) and actor.was_acknowledged
                seen_to = seen_to or len(self._casualties) > num_casualties
                cut_short = episode is None or episode.outcome is Outcome.ABORTED
                again = cut_short and seen_to and not actor.stopped
        if actor.fault and not actor.stopped:
            self.problem = self.problem or actor.fault
        self._deliver()
        told = {"stopped": actor.stopped, "problem": self.problem}
        if episode is None:
            return {"id": None, "outcome": Outcome.ABORTED, **told}
        return {"id": episode.id, "outcome": episode.outcome, **told}

    def _run(self, actor: Actor, order: EpisodeOrder) -> Episode | None:
        self._acting = order.id
        try:
            return actor.run(order)
        finally:
            self._acting = None

    def _load(self, actor: Actor, purpose: Purpose, snapshot: WeightSnapshot | None) -> None:
        if snapshot is not None and self._loaded != (purpose, snapshot.version):
            actor.load(snapshot)
            self._loaded = (purpose, snapshot.version)

    def _made(self) -> Assembly:
        if self._station is None:
            with self.working("starting"):
                self._station = build_assembly(
                    self._config,
                    parts=self._arm.run / "parts",
                    should_stop=self._should_stop,
                    live=self._make_link,
                    on_restart=lambda process, pid: self._casualties.append((process, pid)),
                    name=arm_name(self._config, self.name),
                    holds=self._lock.fileno(),
                )
        return self._station

    def _make_link(self, robot: RobotSpec) -> LiveLink:
        where = self._arm.run if self._arm.first and self._folder.is_relative_to(self._arm.run) else self._folder
        # where no console finds it, nobody is waited for: it rests, and is acknowledged by its name
        self._link = LiveLink(where, robot=robot, waits=self._arm.live and where == self._arm.run)
        task = self._config.task.type if self._config.task else ""
        self._link.tell(run=self._arm.run.name, task=task, mode=self._config.actor.type)
        return self._link

    def _actor(self, purpose: Purpose) -> Actor:
        if purpose not in self._actors:
            weights = self._folder / "weights"
            self._actors[purpose] = self._made().actor_for(purpose, spool=Spool(self._spool), weights=weights)
        return self._actors[purpose]

    def _order(self, purpose: Purpose, index: int, *, robot_minutes: float = 0.0) -> EpisodeOrder:
        return order_episode(
            self._made(),
            purpose=purpose,
            index=index,
            config_hash=self._arm.config_hash,
            robot_minutes=robot_minutes,
        )

    def _is_lost(self) -> bool:
        return time.monotonic() - self._heard_s > _LOST_S

    def _should_stop(self) -> bool:
        return self._ended.is_set() or (self._config.cluster.cut_off == "hold" and self._is_lost())

    # ---- what goes out

    def _deliver_always(self) -> None:
        while not self._ended.is_set():
            self._delivering.wait(_LOOK_S)
            self._delivering.clear()
            self._deliver()

    def _deliver(self) -> None:
        """All that has ended; whatever is killed on the way is delivered again, and kept once. Then what is running."""
        with self._sending:
            spool = Spool(self._spool)
            try:
                hand_over(spool, self._store.deliver, tell=self._tell, but=self._acting)
                for episode_id in spool.running():
                    self._stream(spool, episode_id)
            except Exception as error:  # a full disk, here or there: it rests until that is over
                why = one_line(getattr(error, "cause", None) or error)
                if self.problem in (None, self._undelivered):
                    self.problem = why
                self._undelivered = why
                self._practising.clear()
            else:
                if self.problem == self._undelivered:
                    self.problem = None
                self._undelivered = None

    def _stream(self, spool: Spool, episode_id: str) -> None:
        tail = spool.tail(episode_id, offset=self._offsets.get(episode_id, 0))
        if tail is None or not tail.segments:
            return
        if len(self._offsets) > 8:
            self._offsets.clear()
        segments = tail.segments if self._streams else ()  # that it goes on is worth knowing in any case
        self._offsets[episode_id] = tail.offset if self._store.stream(tail.start, segments) else 0

    def _tell(self, kind: str, /, **facts: Any) -> None:
        self.count(kind)

    # ---- what comes in

    def _follow_weights(self) -> None:
        """Wait for newer ones; where a process of inference looks for them, put them there."""
        local = DiskWeightStore(self._folder / "weights", keep=2) if self._swaps_while_acting else None
        while not self._ended.is_set():
            snapshot = self._weights.latest(newer_than=self._newest.version if self._newest else 0, wait_s=_WAIT_S)
            if snapshot is None:
                time.sleep(0.01)
                continue
            self._newest = snapshot
            if local is not None and snapshot.version > max(local.versions(), default=0):
                with contextlib.suppress(
                    StoreError
                ):  # a full disk: it acts with what it has, and a later one comes
                    local.publish(snapshot.components, version=snapshot.version)

    @property
    def _swaps_while_acting(self) -> bool:
        return getattr(self._config.actor.config, "swap", "episode") == "chunk"
