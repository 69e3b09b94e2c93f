"""Labels by a success classifier: a small network on camera images, trained by `dovetail train reward-classifier`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

import numpy as np

from dovetail.core.disk import MissingError, dump_json, load_json, read_file, sha256, write_atomic
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, Labels, Observation, Outcome
from dovetail.labels._rewards import (
    check_labelable,
    check_stages,
    discounts,
    end_reward,
    progress_rewards,
    stages,
)
from dovetail.labels.learned.folder import Classifier, load_classifier
from dovetail.labels.learned.frames import observation_arrays
from dovetail.labels.learned.settings import ClassifierConfig
from dovetail.labels.learned.training import ends_in_success

__all__ = ["ClassifierConfig", "ClassifierLabeler"]

CURRENT = "current.json"


class ClassifierLabeler:
    """Implements Labeler. The classifier is loaded at the first use.

    `folder` is the run's folder for classifiers. It contains a copy of the configured one and those trained during the run;
    `current.json` names the one in use. So a run can continue even if the configured folder disappears.
    """

    Config: ClassVar[type[ClassifierConfig]] = ClassifierConfig

    def __init__(self, config: ClassifierConfig, *, folder: Path | None = None) -> None:
        self._config = config
        self._folder = folder
        self._classifier: Classifier | None = None

    @property
    def classifier(self) -> Classifier:
        """The classifier in use."""
        if self._classifier is None:
            self._classifier = load_classifier(self._current_folder())
        return self._classifier

    @property
    def path(self) -> Path:
        """Folder of the classifier in use."""
        return self._current_folder()

    @property
    def retrain_after(self) -> int | None:
        return self._config.retrain_after

    @property
    def threshold(self) -> float:
        """Probability from which `judge` means success."""
        return self._config.threshold or self.classifier.threshold

    @property
    def consecutive(self) -> int:
        """Number of successful frames in a row that make a success."""
        return self._config.consecutive or self.classifier.consecutive

    @property
    def version(self) -> str:
        """Depends on the network and the settings."""
        rule = f"{self.threshold:.4f}-{self.consecutive}-{self._config.reward}"
        if self._config.stages:
            text = "".join(stage.model_dump_json() for stage in self._config.stages)
            rule += f"-{sha256(text.encode())[:8]}"
        return f"{self.classifier.version}-{rule}"

    @property
    def rewards_at_the_end(self) -> bool:
        """Whether all rewards before the last step are zero."""
        return self._config.reward == "success" and not self._config.stages

    def check(self, robot: RobotSpec) -> None:
        """Raise UsageError if the robot's cameras differ from those of the training."""
        self.classifier.check(robot)
        check_stages(self._config.stages, ("completion",), who="labeler 'classifier'")

    def judge(self, observation: Observation) -> float:
        """Return the probability that the observation shows success."""
        classifier = self.classifier
        keys = (*classifier.net.cameras, *classifier.net.proprio)
        frames = {key: np.asarray(observation.values[key])[None] for key in keys}
        return float(classifier.probabilities(frames)[0])

    def probabilities(self, episode: Episode) -> Array:
        """Return the success probability of each observation [T + 1]."""
        classifier = self.classifier
        classifier.check(episode.robot)
        return classifier.probabilities(
            observation_arrays(episode, (*classifier.net.cameras, *classifier.net.proprio))
        )

    def label(self, episode: Episode) -> Labels:
        check_labelable(episode)
        p = self.probabilities(episode)
        success = ends_in_success(p, threshold=self.threshold, consecutive=self.consecutive)
        likely = float(p[-self.consecutive :].mean())
        rewards = end_reward(len(episode), float(success))
        if self._config.reward == "progress":
            rewards = progress_rewards(len(episode), range(len(p)), p.tolist())
        rewards = rewards + stages(len(episode), self._config.stages, {"completion": p})
        return Labels(
            episode_id=episode.id,
            rewards=rewards,
            discounts=discounts(episode, Outcome.SUCCESS if success else Outcome.FAILURE),
            success=success,
            confidence=likely if success else 1.0 - likely,
            labeler="classifier",
            version=self.version,
        )

    # ---- the classifier in use

    def adopt(self, name: str) -> None:
        """Use another classifier of the run's folder from now on. It is loaded and verified first."""
        assert self._folder is not None, "only a run has a folder for classifiers"
        newer = load_classifier(self._folder / name)
        self._store_current(name)
        self._classifier = newer

    def _current_folder(self) -> Path:
        """Return the run's copy of the classifier; copy it first if the run has none.

        If the run's copy comes from another source, as when a run is relabeled to compare, return the configured folder.
        """
        source = Path(self._config.folder).expanduser()
        if self._folder is None:
            return source
        try:
            path = self._folder / CURRENT
            current = load_json(read_file(path), name=str(path), indent=2)
            return self._folder / current["name"] if current["source"] == self._config.folder else source
        except MissingError:
            pass
        name = load_classifier(source).version  # raises if it is not a classifier
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / name).exists():
            staged = self._folder / f".{name}.tmp"
            shutil.rmtree(staged, ignore_errors=True)
            shutil.copytree(source, staged)
            staged.rename(self._folder / name)
        self._store_current(name)
        return self._folder / name

    def _store_current(self, name: str) -> None:
        assert self._folder is not None
        current = {"name": name, "source": self._config.folder}
        write_atomic(self._folder / CURRENT, dump_json(current, indent=2))
