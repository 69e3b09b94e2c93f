"""Builds the objects of a run from its config. Here the folders of the package meet."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from dovetail.actor.actors import ActorConfig, board_layout
from dovetail.actor.board import Board
from dovetail.config.plugins import resolve
from dovetail.config.schema import PluginSection, RunConfig
from dovetail.core.abilities import (
    ConfiguresImageSize,
    ConfiguresLayout,
    ConfiguresRealtime,
    HasMode,
    LearnsByImitation,
    LearnsOnPolicy,
    MovesToDevice,
)
from dovetail.core.clock import SimulatedClock
from dovetail.core.contracts import Actor, Algorithm, Clock, Labeler, Operator, Policy, Replay, Task
from dovetail.core.errors import LabelError, UsageError
from dovetail.core.figures import EpisodeScore
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import PolicySpec, RobotSpec, match
from dovetail.core.types import Episode, Outcome, Purpose
from dovetail.episodes.spool import Spool
from dovetail.human.axes import known_kinematics
from dovetail.human.browser import ConsoleControl
from dovetail.human.selections import driven_parts
from dovetail.labels.chain import LabelerChain
from dovetail.learn.setup import set_up
from dovetail.live.emergency import EmergencyStopCheck
from dovetail.live.link import LiveLink
from dovetail.policies.device import find_device
from dovetail.policies.remote.policy import RemotePolicy
from dovetail.policies.remote.weights import new_run_id
from dovetail.policies.trainable import ExplainsAbilities, TrainablePolicy
from dovetail.rewards.early_success import check_success_detection, make_success_detection
from dovetail.robot_host.arm_lock import ArmLock
from dovetail.robot_host.arm_stopper import ArmStopper
from dovetail.robot_host.attended_actor import AttendedActor
from dovetail.robot_host.host import RobotHost
from dovetail.robot_host.restarting_actor import RestartingActor
from dovetail.robot_host.stop_sources import StopSources
from dovetail.robot_host.stop_watch import StopWatch
from dovetail.robots.safety import SafeRobot
from dovetail.runs.assembly.camera_rates import max_camera_fps
from dovetail.runs.assembly.inference_timeout import patient_actor
from dovetail.runs.assembly.operators import console_config
from dovetail.runs.assembly.policy_components import (
    build_acting_policy,
    build_policy,
    check_device,
    embedding_size,
    proposal_steps,
)
from dovetail.runs.assembly.policy_rate import policy_robot
from dovetail.runs.assembly.seen_images import check_base_images, image_scaling, image_size
from dovetail.runs.assembly.stop_devices import StopDevices
from dovetail.runs.assembly.workcell import Workcell, build_workcell

__all__ = ["Assembly", "build_assembly", "build_labeler", "build_labeler_chain", "build_trainable", "is_on_policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A workcell and everything else that a config asks for: policy, algorithm, labelers, replay and actors."""

    config: RunConfig
    workcell: Workcell
    should_stop: Callable[[], bool]
    components: Path | None = None  # the run's copies of the components that its policy started from
    run_id: str = field(default_factory=new_run_id)  # for a policy server
    link: LiveLink | None = None  # to the console
    on_restart: Callable[[str, int], None] | None = None  # see `build_assembly`
    lock_descriptor: int | None = None  # see RobotHost
    _console: ConsoleControl | None = None
    _boards: list[Board] = field(default_factory=list)
    _chains: list[LabelerChain] = field(default_factory=list)
    _hosts: dict[Path | None, RobotHost] = field(default_factory=dict)
    _watches: list[StopWatch] = field(default_factory=list)
    _locks: list[ArmLock] = field(default_factory=list)
    _remote_policies: list[RemotePolicy] = field(default_factory=list)

    @property
    def task(self) -> Task:
        return self.workcell.task

    @property
    def robot(self) -> SafeRobot:
        return self.workcell.robot

    @property
    def clock(self) -> Clock:
        return self.workcell.clock

    @property
    def real_time(self) -> bool:
        """Whether the robot's time passes while it waits."""
        config = self.config.robot.config
        return not isinstance(self.clock, SimulatedClock) or (
            isinstance(config, ConfiguresRealtime) and config.realtime
        )

    def operator(self) -> Operator:
        return self.workcell.operator(Purpose.ONLINE, self.config.operator, demo_noise=self.config.run.demo_noise)

    @property
    def policy_robot(self) -> RobotSpec:
        """The robot as the policy sees it: see `replay.image_size` and `actor.policy_hz`."""
        return policy_robot(self.config, self.robot.spec)

    def policy(self) -> Policy:
        """A new, untrained policy that fits robot and task, on the device or server where it acts."""
        simulated = isinstance(self.clock, SimulatedClock)
        server = self.config.policy_server
        policy = self._fitting(
            partial(build_acting_policy, server=server, run_id=self.run_id, simulated=simulated)
        )
        if isinstance(policy, RemotePolicy):
            self._remote_policies.append(policy)
        return policy

    def policy_spec(self) -> PolicySpec:
        """The spec of `policy`. Raise an error if it does not fit or its device is missing."""
        self._check_device()
        return self._fitting(build_policy).spec

    def _check_device(self) -> None:
        if self.config.policy_server is None:  # a server has the device
            check_device(self.config.policy)

    def _fitting(self, build: Callable[..., Policy]) -> Policy:
        robot, config = self.policy_robot, self.config
        check_base_images(config, self.robot.spec)
        policy = build(config.policy, robot=robot, seed=config.run.seed, components=self.components)
        match(robot, policy=policy.spec, task=self.task.spec)
        return policy

    def trainable(self) -> TrainablePolicy:
        """A new policy for a learner, on the configured device."""
        device = find_device(self.config.device)
        policy = build_trainable(self.config, self.robot.spec, device=device, components=self.components)
        match(policy_robot(self.config, self.robot.spec), policy=policy.spec, task=self.task.spec)
        return policy

    def algorithm(self, policy: TrainablePolicy) -> Algorithm:
        algorithm: Algorithm = self.config.algorithm.build(policy=policy, seed=self.config.run.seed)
        learner = self.config.learner
        set_up(
            algorithm,
            name=self.config.algorithm.type,
            precision=learner.precision,
            accumulate=learner.accumulate,
            optimizers=learner.optimizers,
        )
        return algorithm

    def labeler_chain(self, folder: Path | None = None) -> LabelerChain:
        """The labelers of the run, built once and checked against the robot. They may store files under `folder`."""
        if not self._chains:
            chain = build_labeler_chain(self.config, folder)
            chain.check(self.robot.spec)
            check_success_detection(self.config, chain, real_time=self.real_time)
            self._chains.append(chain)
        return self._chains[0]

    def replay(self, folder: Path, *, keys: tuple[str, ...]) -> Replay:
        section = self.config.replay
        if isinstance(section.config, ConfiguresImageSize):
            chosen: dict[str, Any] = {"image_scaling": image_scaling(self.config)}
            if section.config.image_size == "auto":
                chosen["image_size"] = image_size(self.config)
            section = replace(section, config=section.config.model_copy(update=chosen))
        replay: Replay = section.build(folder=folder, keys=keys)
        return replay

    def score(self, episode: Episode) -> EpisodeScore:
        """The score of an evaluation episode. Labelers judge it if the task does not detect success and no person has."""
        score = EpisodeScore.of(episode)
        if (
            not self.workcell.needs_verdict
            or episode.outcome is not Outcome.TIMEOUT
            or episode.judgement is not None
        ):
            return score
        chain = self.labeler_chain()
        try:
            state = chain.ask(episode)
            while not state.finished:
                state = chain.resume(episode, state)
        except LabelError:  # for example, a server does not answer
            return replace(score, success=None)
        return replace(score, success=None if state.decided is None else state.decided.success)

    def actor_for(self, purpose: Purpose, *, spool: Spool | None = None, weights: Path | None = None) -> Actor:
        """The actor that runs episodes of a purpose, in this process or in several.

        `spool` records them while they run. `weights` is the folder from which online episodes load newer weights if
        `actor.swap_weights` allows it. The policy is untrained until `load`.
        """
        config = self.config.actor.config
        self._check_device()  # before the arm moves, even for demonstrations
        self._lock_arm()
        if isinstance(config, ConfiguresLayout) and config.layout == "processes":
            host = self._host(spool, weights)
            return self._attended(RestartingActor(host, on_restart=self.on_restart) if self.on_restart else host)
        # during a demonstration, a base policy proposes what it would do
        acts = purpose is not Purpose.DEMO or proposal_steps(self.config.policy) > 0
        policy = self.policy() if acts else None
        if policy is not None:
            policy.warmup()
        operator = self.workcell.operator(
            purpose, self.config.operator, demo_noise=self.config.run.demo_noise, console=self._console
        )
        success_detection = (
            make_success_detection(self.config, self.labeler_chain()) if purpose is Purpose.ONLINE else None
        )
        if success_detection is not None:
            operator = success_detection.wrap_operator(operator, real_time=self.real_time)
        return self._attended(self.actor(operator=operator, policy=policy, spool=spool, purpose=purpose))

    def actor(
        self,
        *,
        operator: Operator,
        policy: Policy | None,
        spool: Spool | None = None,
        purpose: Purpose = Purpose.EVAL,
    ) -> Actor:
        """An actor in this process."""
        self.check_layout()
        self._lock_arm()
        self._watch_stops()
        shared: dict[str, Any] = {}
        if self.link is not None and isinstance(self.config.actor.config, ActorConfig):  # others cannot be shown
            health = EmergencyStopCheck(self.link.mailbox, stop=self.link.stop)
            shared = {"board": self._board(), "health_check": health}
        actor: Actor = patient_actor(self.config).build(
            robot=self.robot,
            task=self.workcell.task_for(purpose),
            operator=operator,
            policy=policy,
            clock=self.clock,
            recorder=spool,
            probe=self.workcell.probe,
            should_stop=self.should_stop,
            **shared,
        )
        return actor

    def _lock_arm(self) -> None:
        """Refuse a real arm that another process of this machine moves."""
        if not self._locks and not isinstance(self.clock, SimulatedClock):
            lock = ArmLock(self.config.robot)
            lock.acquire()
            self._locks.append(lock)

    def _watch_stops(self) -> None:
        """Start the thread that stops the arm when the control loop of this process hangs."""
        if self._watches or (self.link is None and isinstance(self.clock, SimulatedClock)):
            return
        link, should_stop = self.link, self.should_stop
        sources = StopSources(
            mailbox=link.mailbox if link else None, run_stop=link.stop if link else None, should_stop=should_stop
        )
        stopper = None if isinstance(self.clock, SimulatedClock) else ArmStopper(self.workcell.driver)
        confirm_s = self.config.safety.stop_confirm_s
        self._watches.append(StopWatch(self.robot, sources, stopper=stopper, confirm_s=confirm_s))

    def check_layout(self) -> None:
        """Refuse a real arm in one process, where a driver that hangs cannot be stopped."""
        config = self.config.actor.config
        if isinstance(config, ConfiguresLayout) and config.layout == "processes":
            return
        if not isinstance(self.clock, SimulatedClock) and not self.config.safety.controller_watchdog:
            raise UsageError(
                f"robot '{self.robot.spec.name}' runs on the real clock, and actor.layout=one_process cannot stop it while "
                "its driver hangs. Set actor.layout=processes, or safety.controller_watchdog=true if the arm's own "
                "controller stops it when commands cease"
            )

    def _attended(self, actor: Actor) -> Actor:
        if self.link is None:
            return actor
        return AttendedActor(actor, self.link, should_stop=self.should_stop)

    def _board(self) -> Board:
        """The board that all actors of this process share, so that the console can read it."""
        assert self.link is not None
        assert isinstance(self.config.actor.config, ActorConfig)
        if not self._boards:
            extras = {**self.workcell.probe(), **self.robot.safety_extras()}
            layout = board_layout(
                self.config.actor.config,
                robot=self.robot.spec,
                policy=self.policy_spec(),
                extras=extras,
                max_fps=max_camera_fps(self.config),
            )
            self._boards.append(Board(layout, self.link.share_board(layout)))
        return self._boards[0]

    def check_actor(self, policy: PolicySpec) -> None:
        """Refuse a policy that the configured actor cannot use."""
        actor = resolve("actor", self.config.actor.type)
        if isinstance(actor, HasMode):
            actor.mode.check(policy)

    def _host(self, spool: Spool | None, weights: Path | None) -> RobotHost:
        """The processes of the arm, one set for all purposes, because they take seconds to start."""
        folder = spool.folder if spool else None
        if folder not in self._hosts:
            self._hosts[folder] = RobotHost(
                self.config.model_copy(update={"actor": patient_actor(self.config)}),
                workcell=self.workcell,
                policy=self.policy_spec(),
                spool=folder,
                weights=weights,
                components=self.components,
                run_id=self.run_id,
                should_stop=self.should_stop,
                link=self.link,
                success_detection=make_success_detection(self.config, self.labeler_chain()),
                lock_descriptor=self.lock_descriptor,
            )
        return self._hosts[folder]

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        for host in self._hosts.values():
            host.close()
        for policy in self._remote_policies:
            policy.close()
        acted = bool(self._hosts or self._watches) or self.robot.command_times[0] > 0
        self.workcell.close(stop=acted)
        for lock in self._locks:
            lock.close()
        if self.link is not None:
            self.link.close()


def build_labeler_chain(config: RunConfig, folder: Path | None = None) -> LabelerChain:
    """The labelers of a config, in order. Each may store files in its own folder under `folder`."""
    labelers = [build_labeler(section, folder) for section in config.labels]
    return LabelerChain(
        labelers, min_confidence=config.labeling.min_confidence, cross_check=config.labeling.cross_check
    )


def build_labeler(section: PluginSection, folder: Path | None = None) -> Labeler:
    takes_folder = "folder" in inspect.signature(resolve("labeler", section.type)).parameters
    name = re.sub(r"\W", "_", section.type)
    labeler: Labeler = section.build(**({"folder": folder / name} if takes_folder and folder is not None else {}))
    return labeler


def build_assembly(
    config: RunConfig,
    *,
    components: Path | None = None,
    run_id: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    live: Callable[[RobotSpec], LiveLink] | None = None,
    on_restart: Callable[[str, int], None] | None = None,
    name: str | None = None,
    lock_descriptor: int | None = None,
    early_devices: StopDevices | None = None,
) -> Assembly:
    """Build robot and task, and check that they fit.

    `run_id` names the run to its policy server; without it, this assembly counts as a separate run. `live` makes
    the link to the console. `name` is the robot's name among several. With `on_restart(process, pid)`, a killed
    process of the arm is restarted; without it, that is a fault. `lock_descriptor`: see RobotHost. `early_devices`:
    the devices of the operator, if they are open already.
    """
    if early_devices is None and live is not None:
        early_devices = StopDevices(config.operator)  # first: a press counts while the rest is built
    if config.policy_server is not None and is_on_policy(config):
        raise UsageError(
            f"algorithm '{config.algorithm.type}' is on-policy and computes next to its worlds. Set policy_server=null"
        )
    if config.deploy is not None and is_on_policy(config):
        raise UsageError(
            f"algorithm '{config.algorithm.type}' is on-policy and acts with its newest weights. Set deploy=null"
        )
    torch.set_num_threads(1)  # more threads than cores would slow down every process
    workcell = build_workcell(
        task=config.task,
        robot=config.robot,
        cameras=config.cameras,
        safety=config.safety,
        hides_success=config.labeling.hide_success,
        name=name,
        operator=config.operator,
        early_devices=early_devices,
        proposal_steps=proposal_steps(config.policy),
        embedding_size=embedding_size(config.policy),
    )
    encode_prompt(workcell.task.prompt)  # raises if it is too long
    link = live(workcell.robot.spec) if live is not None else None
    if link is not None:
        link.open()
        if early_devices is not None:
            early_devices.report_to(link.stop)
        # here, too, although a control process reads it: that process may hang, wait after a fault or restart
        workcell.watch_device(config.operator, link.stop)
        driven = console_config(config.operator)
        link.show_drive(
            driven_parts=driven_parts(workcell.robot.spec, driven.part, name=config.operator.type),
            cartesian_parts=known_kinematics(workcell.robot.spec, driven.known_arms),
        )
        if not isinstance(workcell.clock, SimulatedClock):
            link.announce_stop()
    return Assembly(
        config=config,
        workcell=workcell,
        should_stop=should_stop
        if link is None
        else lambda: should_stop() or link.stop_requested or link.stop.ending,
        components=components,
        run_id=run_id or new_run_id(),
        link=link,
        on_restart=on_restart,
        lock_descriptor=lock_descriptor,
        _console=workcell.console_control(link.mailbox, config.operator, stop=link.stop) if link else None,
    )


def build_trainable(
    config: RunConfig, robot: RobotSpec, *, device: torch.device, components: Path | None = None
) -> TrainablePolicy:
    """A new policy for a learner. `components`: see Assembly."""
    seen = policy_robot(config, robot)
    policy = build_policy(config.policy, robot=seen, seed=config.run.seed, components=components)
    if isinstance(policy, ExplainsAbilities) and (why := policy.why_not(TrainablePolicy)):
        raise UsageError(
            f"policy '{config.policy.type}' cannot be trained: {why}. Add it to the class (docs/vla.md)"
        )
    if not isinstance(policy, LearnsByImitation):
        raise UsageError(
            f"policy '{config.policy.type}' has no imitation_loss and cannot be trained. Choose another policy, or train "
            "the run that its server serves"
        )
    if device.type != "cpu":
        if not isinstance(policy, MovesToDevice):
            raise UsageError(f"policy '{config.policy.type}' runs on the CPU only. Set device=cpu")
        policy.to(device)
    return cast(TrainablePolicy, policy)


def is_on_policy(config: RunConfig) -> bool:
    """Whether the algorithm learns from rollouts of its current policy, without a replay."""
    return isinstance(resolve("algorithm", config.algorithm.type), LearnsOnPolicy)
