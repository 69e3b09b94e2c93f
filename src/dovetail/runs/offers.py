"""What robot, task and operator of a run can do. The coach proposes nothing else."""

from __future__ import annotations

from dovetail.core.abilities import HasCanonicalSpace, WrapsCanonicalPolicy, WrapsOperator
from dovetail.core.contracts import Task
from dovetail.core.errors import UsageError
from dovetail.learn.coach import Offers
from dovetail.policies.trainable import TrainablePolicy
from dovetail.runs.assembly.build import Assembly
from dovetail.runs.assembly.workcell import demonstrates

__all__ = ["has_expert", "offers_of"]


def offers_of(assembly: Assembly, policy: TrainablePolicy) -> Offers:
    config, robot = assembly.config, assembly.robot.spec
    is_shared = isinstance(
        policy, (HasCanonicalSpace, WrapsCanonicalPolicy)
    )  # its inputs are not the robot's keys
    return Offers(
        expert=has_expert(assembly.task),
        person=demonstrates(config.operator),
        inputs=() if is_shared else tuple(policy.spec.observation),
        observations=tuple(
            key for key, spec in robot.observation.items() if len(spec.shape) == 1 and spec.dtype == "float32"
        ),
        cameras=tuple(key for key, spec in robot.observation.items() if spec.is_image),
        control_hz=robot.control_hz,
        console=_is_browser(config.operator.type, config.operator.config),
        real_time=assembly.real_time,
    )


def has_expert(task: Task) -> bool:
    """Whether the task has a scripted expert. A task without one refuses to make it."""
    try:
        task.expert()
    except (UsageError, NotImplementedError):
        return False
    return True


def _is_browser(name: str, config: object) -> bool:
    if isinstance(config, WrapsOperator) and isinstance(config.operator, dict):
        return _is_browser(str(config.operator.get("type")), None)
    return name == "browser"
