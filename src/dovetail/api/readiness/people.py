"""Checks of what people need: the packages of their input devices, a console, and a place to label."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from dovetail.api.readiness.finding import Finding
from dovetail.config.plugins import resolve
from dovetail.config.schema import PluginSection, RunConfig
from dovetail.core.abilities import (
    AsksPerson,
    ConfiguresTimeouts,
    Demonstrates,
    DrivenFromConsole,
    NeedsPackages,
    NeedsVerdict,
    RepeatsOutcome,
)
from dovetail.core.errors import UsageError
from dovetail.runs.assembly.arms import arm_configs
from dovetail.runs.assembly.operators import all_operators

__all__ = [
    "asks_person",
    "console_is_needed",
    "label_help",
    "people_findings",
    "refuse_unready",
    "refuse_without_verdict",
    "verdict_findings",
]

_CONSOLE_PACKAGE = "nicegui"


def people_findings(config: RunConfig) -> Iterator[Finding]:
    """What a run needs for its operators, and who gives its labels."""
    named = list(dict.fromkeys(section.type for section in _operators(config)))
    missing = [finding for name in named for finding in _packages(name)]
    yield from missing
    if not missing:
        yield Finding(name="operator", ok=True, detail=", ".join(named))
    if console_is_needed(config):
        yield _console()
    yield from verdict_findings(config)
    if asks_person(config):
        yield Finding(name="labels", ok=True, detail=f"a person gives them: {label_help('RUN')}")


def verdict_findings(config: RunConfig) -> Iterator[Finding]:
    """Who reports success, for a task that does not detect it. Nothing for other tasks."""
    for arm in arm_configs(config).values():
        if arm.task is None or not (isinstance(arm.task.config, NeedsVerdict) and arm.task.config.needs_verdict):
            continue
        judges = [f"operator '{section.type}'" for section in _operators(arm) if _is_person(section.type)]
        judges += [f"labeler '{labeler}'" for labeler in _asked_labelers(arm)]
        yield Finding(
            name="verdict",
            ok=bool(judges),
            detail=f"success is told by {' and '.join(judges)}"
            if judges
            else f"task '{arm.task.type}' does not detect success, and no operator or labeler reports it",
            remedy="Set operator.type to browser, keyboard, gamepad or pedal, or labels to [classifier], [vlm] or [human]",
        )


def _is_person(operator: str) -> bool:
    kind = resolve("operator", operator)
    return isinstance(kind, Demonstrates) and kind.demonstrates


def _asked_labelers(config: RunConfig) -> Iterator[str]:
    """Labelers that look at an episode without a verdict: those before one that is sure of a timeout."""
    for section in config.labels:
        kind = resolve("labeler", section.type)
        if not (isinstance(kind, RepeatsOutcome) and kind.repeats_outcome):
            yield section.type
            continue
        settings = section.config
        sure = settings.timeout_confidence if isinstance(settings, ConfiguresTimeouts) else 1.0
        if sure >= config.labeling.min_confidence and not config.labeling.cross_check:
            return


def refuse_without_verdict(config: RunConfig) -> None:
    """Raise UsageError if nothing can report success. For evaluations, which need nothing else of people."""
    for finding in verdict_findings(config):
        if not finding.ok:
            raise UsageError(finding.line)


def refuse_unready(config: RunConfig) -> None:
    """Raise UsageError for the first thing that is missing. Builds nothing, so that it takes no time."""
    for finding in people_findings(config):
        if finding.needed and not finding.ok:
            raise UsageError(finding.line)


def console_is_needed(config: RunConfig) -> bool:
    """Whether a person drives from the console."""
    kinds = (resolve("operator", section.type) for section in _operators(config))
    return any(isinstance(kind, DrivenFromConsole) and kind.driven_from_console for kind in kinds)


def asks_person(config: RunConfig) -> bool:
    """Whether a labeler asks a person."""
    kinds = (resolve("labeler", section.type) for section in config.labels)
    return any(isinstance(kind, AsksPerson) and kind.asks_person for kind in kinds)


def label_help(run: str) -> str:
    """Where a person gives labels."""
    return f"label them on the page Label of the console: dovetail console {run}"


def _operators(config: RunConfig) -> Iterator[PluginSection]:
    """The operators of all arms, and the operators inside them."""
    for arm in arm_configs(config).values():
        yield from all_operators(arm.operator)


def _packages(operator: str) -> Iterator[Finding]:
    kind = resolve("operator", operator)
    for module, package in kind.packages.items() if isinstance(kind, NeedsPackages) else ():
        if importlib.util.find_spec(module) is None:
            detail, remedy = f"operator '{operator}' needs {package}", f"Install it with: pip install {package}"
            yield Finding(name="operator", ok=False, detail=detail, remedy=remedy)


def _console() -> Finding:
    return Finding(
        name="console",
        ok=importlib.util.find_spec(_CONSOLE_PACKAGE) is not None,
        detail="starts with the run, because a person drives from it",
        remedy=f"Install it with: pip install {_CONSOLE_PACKAGE}",
    )
