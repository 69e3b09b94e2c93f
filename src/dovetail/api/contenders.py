"""The two policies of a comparison: their settings, which must agree, and one STOP for both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.api.links import OnLink
from dovetail.api.weights import WeightSource, brings_weights
from dovetail.config.load import Overrides, load_saved
from dovetail.config.schema import RunConfig
from dovetail.core.errors import UsageError, did_you_mean
from dovetail.core.specs import RobotSpec
from dovetail.core.types import WeightSnapshot
from dovetail.live.run_stop import NotRunning, RunStop

if TYPE_CHECKING:  # loads torch
    from dovetail.live.link import LiveLink
    from dovetail.runs.assembly.build import Assembly
    from dovetail.runs.paired_play import Contender, PairedPlayer

__all__ = ["check_same", "make_contenders", "name_of", "played_settings", "settings_of", "shared_stop"]

_SAME = ("task", "robot", "safety")  # sections that both policies must share
_OWN = ("policy", "actor", "algorithm", "device")  # sections that belong to the weights


def settings_of(source: WeightSource, overrides: Overrides, robot: str | None) -> RunConfig:
    """The settings of the run, or those of one of its arms."""
    from dovetail.runs.assembly.arms import arm_configs

    config = load_saved(source.folder.path, overrides, quiet=True).config if overrides else source.folder.config
    if not config.cluster.robots:
        if robot is not None:
            raise UsageError(f"run {source.folder.path} has one arm: leave out --robot")
        return config
    arms = arm_configs(config)
    if robot not in arms:
        hint = did_you_mean(robot, arms) if robot is not None else ""
        raise UsageError(
            f"run {source.folder.path} has several arms ({', '.join(arms)}): name one with --robot.{hint}"
        )
    return arms[robot]


def check_same(sources: list[WeightSource], configs: list[RunConfig]) -> None:
    plain = [config.model_dump(mode="json", include=set(_SAME)) for config in configs]
    for section in _SAME:
        found = _difference(plain[0][section], plain[1][section], section)
        if found is not None:
            key, first, second = found
            raise UsageError(
                f"both policies must have the same {section}, but {key} is {first} in {sources[0].folder.path} and {second} "
                f"in {sources[1].folder.path}. Compare policies of the same {section}, or set {key}=VALUE for both"
            )


def _difference(a: Any, b: Any, key: str) -> tuple[str, Any, Any] | None:
    """The first setting that differs."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in sorted({*a, *b}, key=lambda one: (one != "type", one)):  # another type explains the rest
            if (found := _difference(a.get(name), b.get(name), f"{key}.{name}")) is not None:
                return found
        return None
    return None if a == b else (key, a, b)


def played_settings(base: RunConfig, own: RunConfig, *, seed: int) -> RunConfig:
    """The settings with which a policy is played: its own policy in the environment of A."""
    run = base.run.model_copy(update={"seed": seed, "eval_noise": own.run.eval_noise})
    return base.model_copy(update={"run": run, **{name: getattr(own, name) for name in _OWN}})


def make_contenders(
    sources: list[WeightSource],
    configs: list[RunConfig],
    *,
    stop: RunStop | None,
    robot: str | None,
    announce: Callable[[str], None],
    on_link: OnLink,
) -> list[Contender]:
    from dovetail.live.link import LiveLink, stop_help
    from dovetail.runs.paired_play import Contender

    announced: set[str] = set()

    def announce_once(line: str, folder: Path) -> None:
        """A real arm is opened many times; one line about STOP is enough."""
        if line == stop_help(folder) and line in announced:
            return
        announced.add(line)
        announce(line)

    def contender(number: int, source: WeightSource, config: RunConfig) -> Contender:
        folder = source.folder.path
        own_weights = brings_weights(config, run=source.folder.config)

        def link(spec: RobotSpec) -> LiveLink:
            link = LiveLink(
                folder,
                robot=spec,
                stop=stop,
                arm=robot or "robot",
                announce=lambda line: announce_once(line, folder.absolute()),
            )
            assert stop is not None  # otherwise there is no link
            on_link(config, link, spec, stop)
            return link

        def read(assembly: Assembly) -> WeightSnapshot | None:
            return None if own_weights else source.snapshot(assembly)

        return Contender(
            number=number,
            config=config,
            components=None if own_weights else source.folder.components,
            robot=robot,
            read_snapshot=read,
            live=None if stop is None else link,
        )

    return [contender(number + 1, *one) for number, one in enumerate(zip(sources, configs, strict=True))]


def name_of(source: WeightSource, player: PairedPlayer, contender: Contender) -> str:
    snapshot = player.snapshot(contender)
    return f"{source.folder.path}, {source.label(snapshot) if snapshot else f'the {contender.config.policy.type} policy'}"


@contextmanager
def shared_stop(sources: list[WeightSource]) -> Iterator[RunStop | None]:
    """One STOP in the folders of both runs. None if a run is active or a folder is read-only."""
    folders = list(dict.fromkeys(source.folder.path.resolve() for source in sources))
    for folder in folders:
        with suppress(NotRunning):
            RunStop.attach(folder).close()
            yield None
            return
    stop = None
    try:
        stop = RunStop.create(folders[0])
        for folder in folders[1:]:
            stop.publish(folder)
    except OSError:
        if stop is not None:
            stop.close()
        yield None
        return
    with stop:
        yield stop
