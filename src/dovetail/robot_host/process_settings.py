"""What the supervisor sends to each process of a robot when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.actor.actors import ActorConfig
from dovetail.config.schema import RunConfig
from dovetail.core.specs import PolicySpec
from dovetail.runs.assembly.workcell import Workcell

__all__ = ["ProcessSettings"]


class ProcessSettings:
    """One method per process. `arm` is the arm's name in the run's emergency stop."""

    def __init__(self, config: RunConfig, *, workcell: Workcell, policy: PolicySpec, arm: str | None) -> None:
        assert isinstance(config.actor.config, ActorConfig)
        self._config, self._actor, self._policy, self._arm = config, config.actor.config, policy, arm
        self._spec = workcell.robot.spec

    def control(self, *, consecutive: int | None) -> dict[str, Any]:
        config = self._config
        return {
            **self._robot(),
            "operator": config.operator.to_plain(),
            "actor": config.actor.to_plain(),
            "policy": self._policy.to_json(),
            "demo_noise": config.run.demo_noise,
            "hides_success": config.labeling.hide_success,
            "consecutive": consecutive,
        }

    def guard(self, *, real_time: bool) -> dict[str, Any]:
        return {
            **self._robot(),
            "spec": self._spec.to_json(),
            "real_time": real_time,
            "heartbeat_timeout_s": self._actor.heartbeat_timeout_s,
        }

    def inference(self, *, components: Path | None, weights: Path | None) -> dict[str, Any]:
        config = self._config
        return {
            "policy": config.policy.to_plain(),
            "robot": self._spec.to_json(),
            "seed": config.run.seed,
            "components": str(components) if components else None,
            "follow": str(weights) if weights and self._actor.swap_weights == "chunk" else None,
        }

    def recorder(self, *, spool: Path, temp_folder: str) -> dict[str, Any]:
        flush_steps = max(1, round(self._actor.flush_every_s * self._spec.control_hz))
        return {"spool": str(spool), "flush_steps": flush_steps, "temp_folder": temp_folder}

    def _robot(self) -> dict[str, Any]:
        config = self._config
        return {
            "task": config.task.to_plain() if config.task else None,
            "robot": config.robot.to_plain(),
            "safety": config.safety.model_dump(mode="json"),
            "arm": self._arm,
        }
