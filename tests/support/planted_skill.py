"""A policy whose success rate is one number in its weights, and an algorithm that sets it by a schedule.

An episode succeeds if the goal's own number, between 0 and 1, is below the skill. So two policies on the same reset depend
on each other, as real ones do, and every success rate is known. Once a file `worn` exists, skills above the number in it are
0: the better policies need something that broke.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from dovetail.config.model import Config
from dovetail.core.types import SampleRequest, View
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.testing.fakes import _DOWN_TURNED, _matrix

__all__ = ["PLANTED", "PlannedLearner", "SkilledPolicy", "goal_number"]

PLANTED = """
task: {{type: "dovetail.testing.fakes:FakeTask", max_steps: 12, tolerance: 0.02}}
robot: {{type: "dovetail.testing.fakes:FakeArm"}}
policy: {{type: "support.planted_skill:SkilledPolicy", worn: "{worn}"}}
algorithm: {{type: "support.planted_skill:PlannedLearner", plan: {plan}}}
learner: {{utd: 0.1, warmup_updates: 0, bc_updates: 0}}
run: {{demos: 1, env_steps: 400, eval_episodes: 2, untrained_episodes: 0, video_episodes: 0, deterministic_share: 1.0}}
deploy: {{every_episodes: 10, max_pairs: 40, margin: 10}}
"""


def goal_number(goal: np.ndarray) -> float:
    """Uniform between 0 and 1 over the goals of the task."""
    return float(np.modf(np.abs(goal).sum() * 1e3)[0])


class SkilledPolicyConfig(GaussianMLPConfig):
    worn: str = ""
    """Once this file exists, skills above the number in it are 0."""


class SkilledPolicy(GaussianMLP):
    Config: ClassVar = SkilledPolicyConfig

    def __init__(self, config: SkilledPolicyConfig, **handles: Any) -> None:
        super().__init__(config, **handles)
        self.skill = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.skill.weight, 0.5)

    @property
    def components(self) -> dict[str, nn.Module]:
        return {"skill": self.skill}

    def act(self, observations: Any, context: Any) -> Any:
        skill, worn = self.skill.weight.item(), Path(self._config.worn)
        if self._config.worn and worn.exists():
            skill = skill if skill <= float(worn.read_text()) else 0.0
        goal, here = observations["goal"][0], observations["ee_pose"][0, :3]
        delta = (goal - here) @ _matrix(_DOWN_TURNED) if goal_number(goal) < skill else np.zeros(3)
        low, high = self.spec.action.bounds
        action = np.clip(np.concatenate((delta, np.zeros(3), [1.0])), low, high)
        normalized = 2.0 * (action - low) / np.maximum(high - low, 1e-6) - 1.0
        return self._chunk(torch.tensor(normalized, dtype=torch.float32)[None, None], self._tensors(observations))


class PlannedLearnerConfig(Config):
    plan: list[tuple[int, float]]
    """From so many updates on, the skill is this."""


class PlannedLearner:
    Config: ClassVar = PlannedLearnerConfig

    def __init__(self, config: PlannedLearnerConfig, *, policy: SkilledPolicy, seed: int = 0) -> None:
        self._plan, self._policy, self._num_updates = config.plan, policy, 0

    @property
    def sample_request(self) -> SampleRequest:
        return SampleRequest(observation_keys=("goal",), rows={View(): 1})

    def update(self, batch: Any) -> dict[str, float]:
        self._num_updates += 1
        self._set()
        return {"loss": 0.0}

    def _set(self) -> None:
        skill = [value for since, value in self._plan if self._num_updates >= since][-1]
        nn.init.constant_(self._policy.skill.weight, skill + 1e-6 * self._num_updates)

    def policy_weights(self) -> Any:
        self._set()
        return self._policy.weights()

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"num_updates": np.array(self._num_updates)}

    def load_state_dict(self, state: Any) -> None:
        self._num_updates = int(state["num_updates"])
        self._set()
