"""What the supervisor sends to each process of a robot when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.actor.actors import ActorConfig
from dovetail.config.schema import RunConfig
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.runs.assembly.policy_rate import policy_robot

__all__ = ["ProcessSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """`of(name)` are the settings of one process, as plain values."""

    config: RunConfig
    spec: RobotSpec
    policy: PolicySpec
    arm: str | None  # its name in the run's emergency stop
    real_time: bool
    consecutive: int | None  # see SuccessDetection
    components: Path | None
    run_id: str | None  # for a policy server
    weights: Path | None
    spool: Path
    temp_folder: Path

    def of(self, name: str) -> dict[str, Any]:
        by_name = {
            "control": self._control,
            "inference": self._inference,
            "recorder": self._recorder,
            "guard": self._guard,
        }
        return by_name[name]()

    @property
    def _actor(self) -> ActorConfig:
        assert isinstance(self.config.actor.config, ActorConfig)
        return self.config.actor.config

    def _robot(self) -> dict[str, Any]:
        config = self.config
        return {
            "task": config.task.to_plain() if config.task else None,
            "robot": config.robot.to_plain(),
            "safety": config.safety.model_dump(mode="json"),
            "arm": self.arm,
        }

    def _control(self) -> dict[str, Any]:
        config = self.config
        return {
            **self._robot(),
            "cameras": {name: section.to_plain() for name, section in config.cameras.items()},
            "operator": config.operator.to_plain(),
            "actor": config.actor.to_plain(),
            "policy": self.policy.to_json(),
            "demo_noise": config.run.demo_noise,
            "hides_success": config.labeling.hide_success,
            "consecutive": self.consecutive,
        }

    def _guard(self) -> dict[str, Any]:
        return {
            **self._robot(),
            "spec": self.spec.to_json(),
            "real_time": self.real_time,
            "heartbeat_timeout_s": self._actor.heartbeat_timeout_s,
        }

    def _inference(self) -> dict[str, Any]:
        config, follows = self.config, self._actor.swap_weights == "chunk"
        return {
            "policy": config.policy.to_plain(),
            "server": config.policy_server.model_dump(mode="json") if config.policy_server else None,
            "run_id": self.run_id,
            "simulated": not self.real_time,
            "robot": policy_robot(config, self.spec).to_json(),
            "seed": config.run.seed,
            "components": str(self.components) if self.components else None,
            "follow": str(self.weights) if self.weights and follows else None,
        }

    def _recorder(self) -> dict[str, Any]:
        flush_steps = max(1, round(self._actor.flush_every_s * self.spec.control_hz))
        return {"spool": str(self.spool), "flush_steps": flush_steps, "temp_folder": str(self.temp_folder)}
