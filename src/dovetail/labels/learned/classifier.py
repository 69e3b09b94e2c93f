"""Rewards by a success classifier: a small network that looks at the robot's cameras and was trained by
`dovetail train reward-classifier` on episodes that people, or a simulator, have labeled_episode."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.disk import MissingError, dump_json, load_json, read_file, sha256, write_atomic
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, Labels, Observation, Outcome
from dovetail.labels._rewards import Stage, end_reward, progress_rewards, check_labelable, check_stages, discounts, stages
from dovetail.labels.learned.folder import Classifier, load_classifier
from dovetail.labels.learned.frames import observation_arrays
from dovetail.labels.learned.training import ends_in_success

__all__ = ["ClassifierConfig", "ClassifierLabeler"]

CURRENT = "current.json"


class ClassifierConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("folder",)

    folder: str
    """Where it lies: what `dovetail train reward-classifier` wrote."""
    threshold: float | None = Field(default=None, gt=0.0, lt=1.0)
    """A frame shows success from this probability on; none: the one that training chose for the wanted precision."""
    consecutive: int | None = Field(default=None, ge=1)
    """Frames in a row that must; none: as trained."""
    reward: Literal["success", "progress"] = "success"
    """What steps earn: success at the end, or what each added to its probability."""
    stages: tuple[Stage, ...] = ()
    """What the probability must reach on the way, and what that earns beside the reward above."""
    retrain_after: int | None = Field(default=None, ge=1)
    """Train it anew, beside the run, once people have labeled_episode so many more episodes and did not always agree; none: never."""


class ClassifierLabeler:
    """See the Labeler contract. What it is asked about is read once, when it is first asked.

    `folder` is the run's own place for classifiers: the one in use is kept there, with those that were trained since, and
    `current.json` names it, so that a run goes on with what it has wherever the first one has gone.
    """

    Config: ClassVar[type[ClassifierConfig]] = ClassifierConfig

    def __init__(self, config: ClassifierConfig, *, folder: Path | None = None) -> None:
        self._config = config
        self._folder = folder
        self._classifier: Classifier | None = None

    @property
    def classifier(self) -> Classifier:
        """The one in use."""
        if self._classifier is None:
            self._classifier = load_classifier(self._kept())
        return self._classifier

    @property
    def path(self) -> Path:
        """The folder that the one in use lies in."""
        return self._kept()

    @property
    def retrain_after(self) -> int | None:
        return self._config.retrain_after

    @property
    def threshold(self) -> float:
        """From which probability on `judge` means success."""
        return self._config.threshold or self.classifier.threshold

    @property
    def consecutive(self) -> int:
        """How many frames in a row must."""
        return self._config.consecutive or self.classifier.consecutive

    @property
    def version(self) -> str:
        """Which network, and which rule: other settings, other labels."""
        rule = f"{self.threshold:.4f}-{self.consecutive}-{self._config.reward}"
        if self._config.stages:
            said = "".join(stage.model_dump_json() for stage in self._config.stages)
            rule += f"-{sha256(said.encode())[:8]}"
        return f"{self.classifier.version}-{rule}"

    @property
    def rewards_at_the_end(self) -> bool:
        """Nothing is earned before the last step."""
        return self._config.reward == "success" and not self._config.stages

    def check(self, robot: RobotSpec) -> None:
        """Refuse, before anything moves, a robot whose cameras are not those it was trained on."""
        self.classifier.check(robot)
        check_stages(self._config.stages, ("completion",), who="labeler 'classifier'")

    def judge(self, observation: Observation) -> float:
        """How likely this one observation shows success."""
        classifier = self.classifier
        keys = (*classifier.net.cameras, *classifier.net.proprio)
        frames = {key: np.asarray(observation.values[key])[None] for key in keys}
        return float(classifier.probabilities(frames)[0])

    def probabilities(self, episode: Episode) -> Array:
        """Of each observation, [T + 1], the last one included."""
        classifier = self.classifier
        classifier.check(episode.robot)
        return classifier.probabilities(observation_arrays(episode, (*classifier.net.cameras, *classifier.net.proprio)))

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

    # ---- which one is in use

    def adopt(self, name: str) -> None:
        """Use another one of the run's own from now on, here and after a restart. Read and verified before anything
        progress_rewards; the change itself is one assignment."""
        assert self._folder is not None, "only a run has classifiers of its own"
        newer = load_classifier(self._folder / name)
        self._note(name)
        self._classifier = newer

    def _kept(self) -> Path:
        """The run's own copy; taken from the configured folder when there is none yet. Where the run uses another one, as
        when somebody labels with this one to compare, it stays where it is."""
        source = Path(self._config.folder).expanduser()
        if self._folder is None:
            return source
        try:
            path = self._folder / CURRENT
            current = load_json(read_file(path), name=str(path), indent=2)
            return self._folder / current["name"] if current["source"] == self._config.folder else source
        except MissingError:
            pass
        name = load_classifier(source).version  # refused here if it is none
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / name).exists():
            staged = self._folder / f".{name}.tmp"
            shutil.rmtree(staged, ignore_errors=True)
            shutil.copytree(source, staged)
            staged.rename(self._folder / name)
        self._note(name)
        return self._folder / name

    def _note(self, name: str) -> None:
        assert self._folder is not None
        noted = {"name": name, "source": self._config.folder}
        write_atomic(self._folder / CURRENT, dump_json(noted, indent=2))
