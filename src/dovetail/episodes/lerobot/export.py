"""Export episodes as a LeRobot v3.0 dataset, which the `lerobot` package loads and trains from.

    OUT/
      meta/info.json, stats.json, tasks.parquet, episodes/      metadata for LeRobot
      data/chunk-000/file-000.parquet                           frames without images, many episodes per file
      videos/<camera>/chunk-000/file-000.mp4                    images of the same episodes
      dovetail/dataset.json, episodes/                          additional data for Dovetail's import

An export has parts: one data file, one video per camera and one file of episodes, all with the same number. A part is
committed as a whole (see `_commit`). Later exports never change files of earlier parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from dovetail.core.errors import SpecMismatch, StoreError, UsageError
from dovetail.core.types import Array, Episode, Labels, Outcome, Purpose
from dovetail.episodes.lerobot._commit import SCRATCH, exclusive
from dovetail.episodes.lerobot._layout import Layout
from dovetail.episodes.lerobot._meta import INFO, LAYOUT, VERSION, Meta
from dovetail.episodes.lerobot._part import Part
from dovetail.episodes.lerobot._totals import FileSizes, Totals
from dovetail.episodes.log import EpisodeInfo

__all__ = ["EpisodeSource", "ExportReport", "export"]


class EpisodeSource(Protocol):
    """The part of an episode log that an export uses."""

    def ids(self) -> list[str]: ...

    def manifest(self, episode_id: str) -> EpisodeInfo: ...

    def load(self, episode_id: str, *, images: bool = True) -> Episode: ...


@runtime_checkable
class StreamsFrames(Protocol):
    """An episode source that yields images one at a time, so that they need not be loaded together."""

    def frames(self, episode_id: str, camera: str) -> Iterator[Array]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """Result of an export: what it wrote, and what it left out and why."""

    exported: tuple[str, ...]  # ids, in the order of their episode_index
    already_there: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)  # id -> why
    not_exported: dict[str, str] = field(default_factory=dict)  # observation key -> why
    num_episodes: int = 0  # in the dataset after the export
    num_frames: int = 0


def export(
    log: EpisodeSource,
    out: Path | str,
    *,
    ids: Iterable[str] | None = None,
    any_purpose: bool = True,
    labels: Callable[[str], Labels | None] | None = None,
    codec: str | None = None,
    fps: int | None = None,
    on_episode: Callable[[str, int, int], None] | None = None,
    sizes: FileSizes | None = None,
) -> ExportReport:
    """Write episodes to a dataset at `out`, or add those that it does not have yet.

    By default all episodes but evaluations, aborted and discarded ones. With `any_purpose` False, a dataset that has only
    demonstrations receives no other episodes: UsageError. `labels` give success and rewards; an episode
    without labels uses its recorded outcome. The default `codec` is that of the dataset, or AV1. `on_episode(id, done,
    total)` reports progress. If an export is killed, the next one continues after the last committed part.
    """
    out = Path(out)
    chosen, left_out = _choose(log, ids, labels or (lambda episode_id: None))
    if not chosen and not (out / INFO).exists():
        raise UsageError(f"nothing to export: {_why_nothing(left_out)}")
    if out.is_file():
        raise UsageError(f"{out} is a file, but a dataset must be a folder")
    if chosen:
        fresh = Layout.of(chosen[0].robot, fps=fps, codec=codec or _codec_of(out) or "av1")
        _check_all(fresh, chosen)
    with exclusive(out) as staging:
        totals = _existing(out, fresh if chosen else None)
        new = [info for info in chosen if info.id not in totals.ids]
        known = totals.ids
        if not any_purpose and known:
            _refuse_to_mix(out, new)
        part: Part | None = None
        try:
            for count, info in enumerate(new, start=1):
                part = part or Part(staging, totals, sizes or FileSizes())
                part.add(
                    log.load(info.id, images=False),
                    _Pictures(log, info),
                    labels(info.id) if labels is not None else None,
                )
                if count == len(new) or part.is_full:
                    totals, part = part.commit(), None
                if on_episode is not None:
                    on_episode(info.id, count, len(new))
        finally:
            if part is not None:
                part.close()
    return ExportReport(
        exported=tuple(info.id for info in new),
        already_there=tuple(info.id for info in chosen if info.id in known),
        left_out=left_out,
        not_exported=dict(totals.layout.skipped),
        num_episodes=totals.num_episodes,
        num_frames=totals.num_frames,
    )


def _choose(
    log: EpisodeSource, ids: Iterable[str] | None, labels: Callable[[str], Labels | None]
) -> tuple[list[EpisodeInfo], dict[str, str]]:
    chosen: list[EpisodeInfo] = []
    left_out: dict[str, str] = {}
    for episode_id in log.ids() if ids is None else dict.fromkeys(ids):
        info = log.manifest(episode_id)
        if info.num_steps == 0:
            left_out[info.id] = "it has no steps"
        elif ids is None and info.purpose is Purpose.EVAL:
            left_out[info.id] = "it is an evaluation"
        elif ids is None and info.outcome is Outcome.ABORTED:
            left_out[info.id] = "it was aborted"
        elif ids is None and (label := labels(info.id)) is not None and label.discard:
            left_out[info.id] = "it was discarded"
        else:
            chosen.append(info)
    return chosen, left_out


def _why_nothing(left_out: dict[str, str]) -> str:
    if not left_out:
        return "there are no episodes"
    return f"{len(left_out)} episodes were left out, the first because {next(iter(left_out.values()))}"


def _check_all(layout: Layout, chosen: Sequence[EpisodeInfo]) -> None:
    """Raise SpecMismatch before the encoding if the episodes are of different robots."""
    for info in chosen:
        try:
            layout.check(info.robot, whose=f"episode {info.id}")
        except SpecMismatch as error:
            raise SpecMismatch(f"episodes {chosen[0].id} and {info.id} cannot share a dataset: {error}") from error


def _existing(out: Path, fresh: Layout | None) -> Totals:
    """Return the totals of the folder, which must be empty or a dataset that these episodes fit into."""
    if not (out / INFO).exists():
        unexpected = sorted(path.name for path in out.iterdir() if path.name != SCRATCH)
        if unexpected:
            raise UsageError(
                f"{out} is not a LeRobot dataset (it contains {unexpected[0]}). Choose an empty folder."
            )
        assert fresh is not None, "export() refuses an empty export to a new folder"
        return Totals(layout=fresh, image_stats={})
    meta = Meta.read(out)
    if meta.has_file_per_episode:
        raise UsageError(
            f"{out} is a LeRobot dataset of v2.1, but Dovetail exports {VERSION}. Choose another folder."
        )
    layout = meta.layout()
    if layout is None:
        raise UsageError(
            f"{out} is a dataset that Dovetail did not export ({LAYOUT} is missing). Choose another folder."
        )
    if fresh is not None:
        _agree(out, layout, fresh)
    expected = layout.features()
    if {name: (f["dtype"], list(f["shape"])) for name, f in meta.features.items()} != {
        name: (f["dtype"], f["shape"]) for name, f in expected.items()
    }:
        raise StoreError(f"the dataset was changed: {out / INFO} and {out / LAYOUT} have different features")
    return Totals.of(meta, layout)


def _refuse_to_mix(out: Path, new: Sequence[EpisodeInfo]) -> None:
    """Raise UsageError if the dataset has only demonstrations and some of the new episodes are none."""
    others = [info for info in new if info.purpose is not Purpose.DEMO]
    if others and Meta.read(out).purposes() == {Purpose.DEMO}:
        raise UsageError(
            f"{out} has demonstrations only, and {len(others)} of {len(new)} new episodes are none. Add --purpose demo, or "
            f"--purpose {others[0].purpose} to add those too"
        )


def _codec_of(out: Path) -> str | None:
    """Return the codec of an existing dataset."""
    layout = Meta.read(out).layout() if (out / INFO).exists() else None
    return layout.codec if layout else None


def _agree(out: Path, layout: Layout, fresh: Layout) -> None:
    layout.check(fresh.robot, whose=f"an episode to add to {out}")
    for what, theirs, ours in (("codec", layout.codec, fresh.codec), ("fps", layout.fps, fresh.fps)):
        if theirs != ours:
            raise UsageError(f"{out} has {what} {theirs}, not {ours}. Use {what} {theirs} or another folder.")


class _Pictures:
    """Frames of an episode: streamed if the source can, otherwise from the loaded episode."""

    def __init__(self, log: EpisodeSource, info: EpisodeInfo) -> None:
        self._log, self._info = log, info
        self._episode: Episode | None = None

    def of(self, camera: str) -> Iterator[Array]:
        if isinstance(self._log, StreamsFrames) and camera in self._info.cameras:
            yield from self._log.frames(self._info.id, camera)
            return
        self._episode = self._episode or self._log.load(self._info.id)
        for segment in self._episode.segments:
            yield from segment.columns[f"observation/{camera}"]
        yield self._episode.last_observation.values[camera]
