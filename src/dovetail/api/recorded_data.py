"""Recorded episodes for a policy to look at: those of a LeRobot dataset or of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from dovetail.api.episodes import Episodes
from dovetail.api.names import find_run
from dovetail.config.schema import RunConfig
from dovetail.core.errors import RunFolderError, SpecMismatch, UsageError
from dovetail.core.specs import PolicySpec, RobotSpec, match
from dovetail.core.types import Episode, Outcome, Purpose
from dovetail.episodes.lerobot._checks import check_values
from dovetail.episodes.lerobot.read import RateMismatch, open_dataset

__all__ = ["DataReader", "RecordedData"]


class RecordedData(Protocol):
    """Recorded episodes by index, read one at a time."""

    def __len__(self) -> int: ...

    def episode(self, index: int) -> Episode: ...


class DataReader:
    """Opens a dataset or a run with the observations that a policy looks at."""

    def __init__(self, path: Path, *, runs_dir: Path, rename: Mapping[str, str], ignore_names: bool) -> None:
        self._rename, self._ignore_names = rename, ignore_names
        self._is_dataset = (path / "meta" / "info.json").is_file()
        try:
            self.path = path if self._is_dataset else find_run(path, runs_dir)
        except RunFolderError as error:
            raise UsageError(
                f"{path} is neither a LeRobot dataset (it has no meta/info.json) nor a run: {error}"
            ) from error

    def open(self, config: RunConfig, robot: RobotSpec, policy: PolicySpec) -> RecordedData:
        keys = tuple(policy.observation)
        if not self._is_dataset:
            if self._rename or self._ignore_names:
                raise UsageError(f"{self.path} is a run: --rename and --ignore-names are for LeRobot datasets")
            return _RunEpisodes(self.path, robot=robot, policy=policy)
        try:
            dataset = open_dataset(
                self.path, robot=robot.with_only(keys), rename=self._rename, ignore_names=self._ignore_names
            )
        except RateMismatch as error:
            if not hasattr(config.robot.config, "control_hz"):
                raise
            raise SpecMismatch(f"{error}. Add robot.control_hz={error.dataset_hz:g}") from error
        if not len(dataset):
            raise UsageError(f"{self.path} has no episodes")
        return _CheckedDataset(dataset)


class _CheckedDataset:
    """Episodes of a LeRobot dataset, which may come from an untrusted source."""

    def __init__(self, dataset: RecordedData) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def episode(self, index: int) -> Episode:
        episode = self._dataset.episode(index)
        check_values(episode, None, name=f"episode {index} of the dataset")
        return episode


class _RunEpisodes:
    """The demonstrations of a run, or all its episodes if it has none. Aborted and discarded ones are left out."""

    def __init__(self, path: Path, *, robot: RobotSpec, policy: PolicySpec) -> None:
        kept = [
            one
            for one in Episodes(path)
            if one.info.outcome is not Outcome.ABORTED and not (one.label is not None and one.label.discard)
        ]
        self._episodes = [one for one in kept if one.info.purpose is Purpose.DEMO] or kept
        self._path, self._robot, self._policy = path, robot, policy
        if not self._episodes:
            raise UsageError(f"run {path} has no episodes to compare with: name a run or a dataset with some")
        self._check(self._episodes[0].info.robot)

    def __len__(self) -> int:
        return len(self._episodes)

    def episode(self, index: int) -> Episode:
        found = self._episodes[index]
        self._check(found.info.robot)
        has_images = any(spec.is_picture for spec in self._policy.observation.values())
        return found.load(images=has_images)

    def _check(self, stored: RobotSpec) -> None:
        keys = tuple(self._policy.observation)
        for key in keys:
            if key not in stored.observation:
                raise SpecMismatch(_lacks(self._path, stored, self._policy, key))
        try:
            match(self._robot.with_only(keys), stored=stored.with_only(keys))
        except SpecMismatch as error:
            raise SpecMismatch(f"{error}. Use episodes of this robot, or override the section `robot`") from error
        if self._robot.control_hz != stored.control_hz:
            raise SpecMismatch(
                f"the episodes of {self._path} were recorded at {stored.control_hz:g} Hz, but robot '{self._robot.name}' "
                f"runs at {self._robot.control_hz:g} Hz. Use a run of the same rate"
            )


def _lacks(path: Path, stored: RobotSpec, policy: PolicySpec, key: str) -> str:
    is_picture = policy.observation[key].is_picture
    others = [name for name, spec in stored.observation.items() if spec.is_picture == is_picture]
    what, all_of = ("camera", "Their cameras") if is_picture else ("observation", "Their observations")
    todo = (
        f"Name one of them in the policy's settings, or use data with '{key}'"
        if others
        else f"Use data with '{key}'"
    )
    return (
        f"policy '{policy.name}' looks at {what} '{key}', which the episodes of {path} lack. {all_of}: "
        f"{', '.join(others) or 'none'}. {todo}"
    )
