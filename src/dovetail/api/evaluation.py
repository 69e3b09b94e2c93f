"""Evaluate trained weights on seeded resets, without an operator: success, cycle time, throughput, return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.api.links import OnLink, connect_nothing
from dovetail.api.names import RUNS_DIR
from dovetail.api.opened_run import Run
from dovetail.api.readiness import refuse_without_verdict
from dovetail.api.viewing import with_viewer
from dovetail.api.weights import WeightSource, acting_weights, brings_weights, find_weights
from dovetail.config.load import Overrides, load_saved
from dovetail.config.schema import RunConfig
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import UsageError
from dovetail.core.figures import EpisodeScore, Performance
from dovetail.core.specs import RobotSpec
from dovetail.core.stats import Rate
from dovetail.core.types import Outcome
from dovetail.live.run_stop import NotRunning, RunStop

if TYPE_CHECKING:
    from dovetail.live.link import LiveLink

__all__ = ["ArmEvaluation", "Evaluation", "OnEpisode", "arms_of", "evaluate"]

OnEpisode = Callable[[Performance, int], None]
"""Called after each episode with the figures of the episodes so far, and the number of episodes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmEvaluation:
    """The result of one arm."""

    robot: str | None  # None: the run has one arm
    scores: tuple[EpisodeScore, ...]  # of the episodes that were played
    num_requested: int

    @property
    def performance(self) -> Performance | None:
        """All figures; None if no episode was played."""
        return Performance.of(self.scores) if self.scores else None

    @property
    def rate(self) -> Rate | None:
        """Success rate; None if no episode was played, or if the environment has no success."""
        return self.performance.success if self.performance else None

    @property
    def complete(self) -> bool:
        return len(self.scores) == self.num_requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The figures of some weights."""

    weights: str  # for example `weights version 9`
    version: int | None  # None: a checkpoint, or a policy that brings its weights
    seed: int
    arms: tuple[ArmEvaluation, ...]  # one per group of equal arms
    not_recorded: str = ""  # why the result is not in the run's events.jsonl

    @property
    def complete(self) -> bool:
        """False if it was stopped before the last episode."""
        return all(arm.complete for arm in self.arms)

    @property
    def performance(self) -> Performance:
        """The figures of all arms together: success, cycle time, throughput, return and the task's metrics."""
        scores = [score for arm in self.arms for score in arm.scores]
        if not scores:
            raise UsageError("the evaluation was stopped before its first episode ended")
        return Performance.of(scores)

    @property
    def rate(self) -> Rate:
        """Successes of all arms together, with a 95 % interval."""
        success = self.performance.success
        if success is None:
            raise UsageError("the environment has no success. Use `performance.returns`, the mean return, instead")
        return success

    @property
    def success_rate(self) -> float:
        return self.rate.rate


def evaluate(
    run: Run | str | Path,
    overrides: Overrides = (),
    *,
    num_episodes: int | None = None,
    version: int | None = None,
    best: bool = False,
    seed: int | None = None,
    runs_dir: Path | str = RUNS_DIR,
    viewer: bool = False,
    realtime: bool = False,
    on_episode: OnEpisode = lambda performance, total: None,
    should_stop: Callable[[], bool] = lambda: False,
    announce: Callable[[str], None] = lambda line: None,
    on_link: OnLink = connect_nothing,
) -> Evaluation:
    """Evaluate what is deployed in a run (its newest weights, unless others were deployed), a `version` of its weights, its
    `best` checkpoint, or a checkpoint by its path.

    `overrides` change the run's settings (`{"actor.type": "rtc"}`), `seed` the resets. The default number of episodes is
    the run's `run.eval_episodes`. The result is also written to the run's events.jsonl.
    """
    target = run.path if isinstance(run, Run) else run
    source = find_weights(target, version=version, best=best, runs_dir=Path(runs_dir))
    config = _settings(source, overrides)
    if not brings_weights(config, run=source.folder.config):
        source = acting_weights(target, version=version, best=best, runs_dir=Path(runs_dir))
    if not source.is_own:
        config = _with_policy_of(source, config, overrides)
    config = with_viewer(config, viewer=viewer, realtime=realtime)
    refuse_without_verdict(config)
    _refuse_other_rate(source.folder.config, config)
    if seed is not None:
        config = config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
    arms, label, used, not_recorded = [], "", None, ""
    for robot, own in arms_of(config):
        with _link_maker(source.named.path, robot, own, announce, on_link) as link:
            arm, label, used = _evaluate_arm(
                source,
                own,
                robot,
                num_episodes=num_episodes,
                on_episode=on_episode,
                should_stop=should_stop,
                link=link,
            )
        arms.append(arm)
        if not arm.complete:
            break
        not_recorded = _record(source, arm, label=label, version=used, seed=config.run.seed, overrides=overrides)
    return Evaluation(
        weights=label, version=used, seed=config.run.seed, arms=tuple(arms), not_recorded=not_recorded
    )


def _settings(source: WeightSource, overrides: Overrides) -> RunConfig:
    if not overrides:
        return source.folder.config
    return load_saved(source.folder.path, overrides, quiet=True).config


def _with_policy_of(source: WeightSource, config: RunConfig, overrides: Overrides) -> RunConfig:
    """The settings of a run for the policy of another one, which is deployed in it."""
    from dovetail.api.contenders import check_same, played_settings

    own = _settings(source, overrides)
    check_same([WeightSource(folder=source.named), source], [config, own])
    return played_settings(config, own, seed=config.run.seed)


def _refuse_other_rate(trained: RunConfig, config: RunConfig) -> None:
    from dovetail.runs.assembly.policy_rate import refuse_other_rate

    refuse_other_rate(trained, config)


def arms_of(config: RunConfig) -> list[tuple[str | None, RunConfig]]:
    """The first arm of each group, by name; or the only robot."""
    from dovetail.runs.assembly.arms import arm_configs, arm_groups

    if not config.cluster.robots:
        return [(None, config)]
    own = arm_configs(config)
    return [(first, own[first]) for first, *_ in arm_groups(config)]


def _evaluate_arm(
    source: WeightSource,
    config: RunConfig,
    robot: str | None,
    *,
    num_episodes: int | None,
    on_episode: OnEpisode,
    should_stop: Callable[[], bool],
    link: Callable[[RobotSpec], LiveLink] | None,
) -> tuple[ArmEvaluation, str, int | None]:
    from dovetail.runs.assembly.build import build_assembly
    from dovetail.runs.assembly.policy_components import check_size
    from dovetail.runs.roles.robot import evaluation_episodes

    total = num_episodes or config.run.eval_episodes
    scores: list[EpisodeScore] = []
    own_weights = brings_weights(config, run=source.folder.config)
    components = None if own_weights else source.folder.components
    assembly = build_assembly(config, components=components, should_stop=should_stop, name=robot, live=link)
    try:
        if link is None and not isinstance(assembly.clock, SimulatedClock):
            raise UsageError(
                f"{source.named.path} is in use or cannot be written, so `dovetail stop` could not stop the arm. Wait "
                "for the run to end, or evaluate a copy of the folder"
            )
        snapshot = None if own_weights else source.snapshot(assembly)
        if snapshot is not None:
            check_size(
                config.policy, robot=assembly.policy_robot, snapshot=snapshot, components=assembly.components
            )
        for episode in evaluation_episodes(
            assembly, snapshot, num_episodes=total, config_hash=source.folder.config_hash
        ):
            if episode.outcome is Outcome.ABORTED:
                break
            scores.append(assembly.score(episode))
            on_episode(Performance.of(scores), total)
    finally:
        assembly.close()
    label = source.label(snapshot) if snapshot else f"the {config.policy.type} policy"
    is_version = snapshot is not None and source.checkpoint is None and source.is_own
    version = snapshot.version if snapshot is not None and is_version else None
    return ArmEvaluation(robot=robot, scores=tuple(scores), num_requested=total), label, version


@contextmanager
def _link_maker(
    folder: Path, robot: str | None, config: RunConfig, announce: Callable[[str], None], on_link: OnLink
) -> Iterator[Callable[[RobotSpec], LiveLink] | None]:
    """With it, `dovetail stop` and the console can stop the arm. None if the run is active or its folder is read-only."""
    from dovetail.live.link import LiveLink

    stop = _new_stop(folder)
    if stop is None:
        yield None
        return

    def make(spec: RobotSpec) -> LiveLink:
        link = LiveLink(folder, robot=spec, stop=stop, arm=robot or "robot", announce=announce)
        on_link(config, link, spec, stop)
        return link

    with stop:
        yield make


def _new_stop(folder: Path) -> RunStop | None:
    try:
        RunStop.attach(folder).close()
    except NotRunning:
        with suppress(OSError):
            return RunStop.create(folder)
    return None


def _record(
    source: WeightSource, arm: ArmEvaluation, *, label: str, version: int | None, seed: int, overrides: Overrides
) -> str:
    assert arm.performance is not None
    facts: dict[str, Any] = {} if arm.robot is None else {"robot": arm.robot}
    facts |= {"weights": label, "seed": seed}
    facts |= {
        "settings": list(overrides)
        if not isinstance(overrides, dict)
        else [f"{k}={v}" for k, v in overrides.items()]
    }
    facts |= arm.performance.to_json()
    if version is not None:
        facts["version"] = version
    try:
        source.named.event("eval", **facts)
    except OSError as error:  # the run may be read-only
        return f"{source.named.path / 'events.jsonl'}: {error.strerror}"
    return ""
