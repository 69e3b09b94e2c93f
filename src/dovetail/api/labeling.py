"""Label recorded episodes in bulk with one labeler."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.api.episodes import RecordedEpisode
from dovetail.config.load import load_saved
from dovetail.config.plugins import locate, resolve
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import AsksAgain, AsksPerson, HasName, HasVersion
from dovetail.core.contracts import Labeler
from dovetail.core.errors import UsageError
from dovetail.core.types import Outcome
from dovetail.labels.chain import OPINION
from dovetail.labels.store import LabelStore
from dovetail.rewards.relabel import has_label
from dovetail.runs.assembly.build import build_labeler
from dovetail.runs.folder import RunFolder

__all__ = ["LabelingJob", "labeling_job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelingJob:
    """A labeler and the episodes that it has to label."""

    labeler: Labeler
    name: str
    version: str
    priority: int
    todo: Sequence[str]  # ids
    num_known: int  # episodes that have this labeler's label already
    num_aborted: int  # such episodes are never labeled


def labeling_job(
    folder: RunFolder,
    episodes: Sequence[RecordedEpisode],
    *,
    labeler: str,
    settings: Sequence[str] = (),
    opinion: bool = False,
    again: bool = False,
) -> LabelingJob:
    """Build the labeler with the run's settings for it and `settings` over them, and find the episodes without its label.

    With `opinion`, its labels are stored for comparison only. With `again`, episodes that it has labeled are included.
    """
    section = _section(folder, labeler, settings)
    built = _build(section, folder, named=any(text.startswith("folder=") for text in settings), again=again)
    if not isinstance(built, HasVersion):
        raise UsageError(f"labeler '{section.type}' has no `version` to mark its labels with")
    name, version = built.name if isinstance(built, HasName) else section.type, str(built.version)
    priority = OPINION if opinion else 0
    chosen = [episode.id for episode in episodes if not _is_aborted(episode)]
    store = LabelStore(folder.labels)
    todo = [
        episode_id
        for episode_id in chosen
        if again or not has_label(store, episode_id, labeler=name, version=version, priority=priority)
    ]
    return LabelingJob(
        labeler=built,
        name=name,
        version=version,
        priority=priority,
        todo=todo,
        num_known=len(chosen) - len(todo),
        num_aborted=len(episodes) - len(chosen),
    )


def _is_aborted(episode: RecordedEpisode) -> bool:
    info = episode.info
    return Outcome.ABORTED in (info.outcome, info.judgement) or not info.num_steps


def _section(folder: RunFolder, labeler: str, settings: Sequence[str]) -> PluginSection:
    """The labeler with its settings in the run, if the run has it, and `settings` over them."""
    name = locate("labeler", labeler).name
    own = [index for index, section in enumerate(folder.config.labels) if section.type == name]
    index = own[0] if own else 0
    first = [] if own else [f"labels=[{{type: {json.dumps(name)}}}]"]
    overrides = [*first, *(f"labels.{index}.{setting}" for setting in settings)]
    return load_saved(folder.path, overrides, quiet=True).config.labels[index]


def _build(section: PluginSection, folder: RunFolder, *, named: bool, again: bool) -> Labeler:
    """With its stored answers in the run, unless the settings name another folder."""
    plugin = resolve("labeler", section.type)
    if isinstance(plugin, AsksPerson) and plugin.asks_person:
        raise UsageError(
            f"a person labels in the browser: `dovetail console {folder.path}`. Label has the episodes that wait for a "
            "label; for any other one: open it in Episodes, then press `l`"
        )
    labeler = build_labeler(section, None if named else folder.labels)
    if again and isinstance(labeler, AsksAgain):
        labeler.ask_again()
    return labeler
