"""From a config to the objects of a run: the one place where rooms meet."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from dovetail.actor.actors import ActorConfig, board_layout
from dovetail.actor.board import Board
from dovetail.actor.modes import Mode
from dovetail.config.plugins import resolve
from dovetail.config.schema import PluginSection, RunConfig
from dovetail.core.clock import SimulatedClock
from dovetail.core.contracts import Actor, Algorithm, Clock, Labeler, Operator, Policy, Replay, Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import PolicySpec, RobotSpec, match
from dovetail.core.types import Purpose
from dovetail.episodes.spool import Spool
from dovetail.human.browser import Desk
from dovetail.labels.panel import Panel
from dovetail.learn.device import find_device
from dovetail.learn.setup import set_up
from dovetail.policies.trainable import TrainablePolicy
from dovetail.robots.safety import SafeRobot
from dovetail.robot_host.attended_actor import AttendedActor, DeskWatch
from dovetail.runs.assembly.workcell import Workcell, build_workcell
from dovetail.robot_host.host import RobotHost
from dovetail.rewards.early_success import check_judge, ruling_of
from dovetail.live.link import LiveLink
from dovetail.runs.assembly.policy_components import build_policy
from dovetail.robot_host.restarting_actor import RestartingActor

__all__ = ["Assembly", "build_labeler", "build_panel", "build_assembly", "build_trainable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A cell and everything else that a config asks for."""

    config: RunConfig
    cell: Workcell
    should_stop: Callable[[], bool]
    parts: Path | None = None  # where its run keeps what its policy's components started from
    link: LiveLink | None = None  # to whoever watches
    on_restart: Callable[[str, int], None] | None = None  # see `build_assembly`
    holds: int | None = None
    _desk: Desk | None = None
    _boards: list[Board] = field(default_factory=list)
    _panels: list[Panel] = field(default_factory=list)
    _hosts: dict[Path | None, RobotHost] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        return self.cell.task

    @property
    def robot(self) -> SafeRobot:
        return self.cell.robot

    @property
    def clock(self) -> Clock:
        return self.cell.clock

    @property
    def real_time(self) -> bool:
        """Whether time passes for the robot while nobody asks it for anything."""
        return not isinstance(self.clock, SimulatedClock) or getattr(self.config.robot.config, "realtime", False)

    def operator(self) -> Operator:
        return self.cell.operator(Purpose.ONLINE, self.config.operator, demo_noise=self.config.run.demo_noise)

    def policy(self) -> Policy:
        """A new, untrained policy, checked against robot and task before anything moves."""
        policy = build_policy(
            self.config.policy, robot=self.robot.spec, seed=self.config.run.seed, parts=self.parts
        )
        match(self.robot.spec, policy=policy.spec, task=self.task.spec)
        return policy

    def trainable(self) -> TrainablePolicy:
        """The same, for a learner."""
        device = find_device(self.config.device)
        policy = build_trainable(self.config, self.robot.spec, device=device, parts=self.parts)
        match(self.robot.spec, policy=policy.spec, task=self.task.spec)
        return policy

    def algorithm(self, policy: TrainablePolicy) -> Algorithm:
        """What the config asks for, computing as it says."""
        algorithm: Algorithm = self.config.algorithm.build(policy=policy, seed=self.config.run.seed)
        learner = self.config.learner
        set_up(
            algorithm, name=self.config.algorithm.type, precision=learner.precision, accumulate=learner.accumulate
        )
        return algorithm

    def panel(self, folder: Path | None = None) -> Panel:
        """Who gives rewards, one for all, checked against the robot. A labeler that keeps something does so in its own
        place under `folder`."""
        if not self._panels:
            panel = build_panel(self.config, folder)
            panel.check(self.robot.spec)
            check_judge(self.config, panel, real_time=self.real_time)
            self._panels.append(panel)
        return self._panels[0]

    def replay(self, folder: Path, *, keys: tuple[str, ...]) -> Replay:
        replay: Replay = self.config.replay.build(folder=folder, keys=keys)
        return replay

    def actor_for(self, purpose: Purpose, *, spool: Spool | None = None, weights: Path | None = None) -> Actor:
        """Who runs episodes of a purpose, as configured: in this process, or in processes of its own.

        `spool` takes them down while they happen; `weights` is where the run publishes: practice takes newer ones up from
        there where `actor.swap` says so. The untrained policy acts until the actor is given weights.
        """
        if getattr(self.config.actor.config, "layout", "one_process") == "processes":
            host = self._host(spool, weights)
            return self._attended(RestartingActor(host, on_restart=self.on_restart) if self.on_restart else host)
        policy = None if purpose is Purpose.DEMO else self.policy()
        if policy is not None:
            policy.warmup()
        operator = self.cell.operator(
            purpose, self.config.operator, demo_noise=self.config.run.demo_noise, desk=self._desk
        )
        ruling = ruling_of(self.config, self.panel()) if purpose is Purpose.ONLINE else None
        if ruling is not None:
            operator = ruling.beside(operator, real_time=self.real_time)
        return self._attended(self.actor(operator=operator, policy=policy, spool=spool, purpose=purpose))

    def actor(
        self,
        *,
        operator: Operator,
        policy: Policy | None,
        spool: Spool | None = None,
        purpose: Purpose = Purpose.EVAL,
    ) -> Actor:
        """One in this process."""
        shared: dict[str, Any] = {}
        if self.link is not None and isinstance(self.config.actor.config, ActorConfig):  # others act unseen
            shared = {"board": self._board(), "watch": DeskWatch(self.link.mailbox)}
        actor: Actor = self.config.actor.build(
            robot=self.robot,
            task=self.cell.task_for(purpose),
            operator=operator,
            policy=policy,
            clock=self.clock,
            recorder=spool,
            probe=self.cell.probe,
            should_stop=self.should_stop,
            **shared,
        )
        return actor

    def _attended(self, actor: Actor) -> Actor:
        if self.link is None:
            return actor
        return AttendedActor(actor, self.link, should_stop=self.should_stop)

    def _board(self) -> Board:
        """The one that all actors of this process write on, so that whoever watches finds it."""
        assert self.link is not None
        assert isinstance(self.config.actor.config, ActorConfig)
        if not self._boards:
            extras = {**self.cell.probe(), **self.robot.safety_extras()}
            layout = board_layout(
                self.config.actor.config, robot=self.robot.spec, policy=self.policy().spec, extras=extras
            )
            self._boards.append(Board(layout, self.link.share_board(layout)))
        return self._boards[0]

    def check_actor(self, policy: PolicySpec) -> None:
        """Refuse, before anything moves, a policy that the configured actor cannot use."""
        mode: Mode | None = getattr(resolve("actor", self.config.actor.type), "mode", None)
        if mode is not None:
            mode.check(policy)

    def _host(self, spool: Spool | None, weights: Path | None) -> RobotHost:
        """One set of processes for all purposes: starting them takes seconds."""
        folder = spool.folder if spool else None
        if folder not in self._hosts:
            self._hosts[folder] = RobotHost(
                self.config,
                cell=self.cell,
                policy=self.policy().spec,
                spool=folder,
                weights=weights,
                parts=self.parts,
                should_stop=self.should_stop,
                link=self.link,
                ruling=ruling_of(self.config, self.panel()),
                holds=self.holds,
            )
        return self._hosts[folder]

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()
        self.cell.close()
        if self.link is not None:
            self.link.close()


def build_panel(config: RunConfig, folder: Path | None = None) -> Panel:
    """The labelers of a config. `folder`: see Assembly."""
    labelers = [build_labeler(section, folder) for section in config.labels]
    return Panel(labelers, min_confidence=config.labeling.min_confidence, cross_check=config.labeling.cross_check)


def build_labeler(section: PluginSection, folder: Path | None = None) -> Labeler:
    """One of them; `folder` is for those who keep something."""
    keeps = "folder" in inspect.signature(resolve("labeler", section.type)).parameters
    name = re.sub(r"\W", "_", section.type)
    labeler: Labeler = section.build(**({"folder": folder / name} if keeps and folder is not None else {}))
    return labeler


def build_assembly(
    config: RunConfig,
    *,
    parts: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    live: Callable[[RobotSpec], LiveLink] | None = None,
    on_restart: Callable[[str, int], None] | None = None,
    name: str | None = None,
    holds: int | None = None,
) -> Assembly:
    """Make robot and task, and let them check each other. `live` makes the link to whoever watches; `name` is what the
    robot is called among others. With `on_restart`, a process of the arm's that was killed is started anew, and this told;
    without, that is a fault. `holds`: see RobotHost."""
    torch.set_num_threads(1)  # two busy processes with two threads each would crawl
    cell = build_workcell(
        task=config.task,
        robot=config.robot,
        safety=config.safety,
        hides_success=config.labeling.hide_success,
        name=name,
    )
    if live is None:
        return Assembly(
            config=config, cell=cell, should_stop=should_stop, parts=parts, on_restart=on_restart, holds=holds
        )
    link = live(cell.robot.spec)
    link.open()
    return Assembly(
        config=config,
        cell=cell,
        should_stop=lambda: should_stop() or link.stop_asked,
        parts=parts,
        link=link,
        on_restart=on_restart,
        holds=holds,
        _desk=cell.desk(link.mailbox, config.operator),
    )


def build_trainable(
    config: RunConfig, robot: RobotSpec, *, device: torch.device, parts: Path | None = None
) -> TrainablePolicy:
    """A policy for a learner, where that computes. `parts`: see Assembly."""
    policy = build_policy(config.policy, robot=robot, seed=config.run.seed, parts=parts)
    if not hasattr(type(policy), "imitation_loss"):
        raise UsageError(
            f"policy '{config.policy.type}' cannot be trained here, since it has no imitation_loss: choose another, or "
            "train the run that its server serves"
        )
    if device.type != "cpu":
        if not hasattr(policy, "to"):
            raise UsageError(f"policy '{config.policy.type}' knows only the CPU: set device=cpu")
        policy.to(device)
    return cast(TrainablePolicy, policy)
