"""Check that the parts of a config fit together, before a run folder is made.

There is no lock and no emergency stop yet, so a real robot is only observed.
"""

from __future__ import annotations

from collections.abc import Collection

from dovetail.config.schema import RunConfig
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import DovetailError, RobotFault, SpecMismatch, UsageError
from dovetail.core.streams import stream
from dovetail.learn.batches import batch_arrays
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.runs.assembly.arms import arm_configs, arm_groups, arm_name
from dovetail.runs.assembly.build import Assembly, build_assembly
from dovetail.runs.assembly.fleet import build_fleet
from dovetail.runs.assembly.workcell import demonstrates
from dovetail.runtime.onpolicy.training import check_on_policy
from dovetail.runtime.ranks import check_ranks

__all__ = ["check_fits"]


def check_fits(config: RunConfig) -> None:
    """Build everything once, check it, and close it. Raises UsageError or SpecMismatch."""
    if config.runtime == "inline":
        _check_assembly(build_assembly(config))
        return
    fleet = build_fleet(config)
    fleet.trainable()  # the policy that all arms share
    _check_assembly(fleet.assembly)
    arms = arm_configs(config)
    for first, *_ in arm_groups(config)[1:]:
        try:
            _check_assembly(build_assembly(arms[first], name=arm_name(config, first)))
        except (UsageError, SpecMismatch) as problem:
            raise type(problem)(f"robot '{first}': {problem}") from problem


def _check_assembly(assembly: Assembly) -> None:
    config = assembly.config
    try:
        assembly.check_layout()
        policy = assembly.trainable()
        assembly.operator()
        assembly.check_actor(policy.spec)
        panel = assembly.labeler_chain()
        if config.run.demos and not demonstrates(config.operator):
            assembly.task.expert()  # it must have one
        algorithm = assembly.algorithm(policy)
        if isinstance(algorithm, OnPolicyAlgorithm):
            check_on_policy(config)
        check_ranks(config, algorithm)
        batch_arrays(algorithm.sample_request, assembly.robot.spec)  # refuses columns that the robot does not have
        if any(spec.is_image for spec in assembly.robot.spec.observation.values()):
            _render_once(assembly)
        # A task's reset moves the robot. The first label of a real robot shows whether it has the metrics.
        if panel.reads_metrics and isinstance(assembly.clock, SimulatedClock):
            panel.check_metrics(_task_metrics(assembly))
    finally:
        assembly.close()


def _render_once(assembly: Assembly) -> None:
    """A missing camera or GL driver shows at the first image."""
    try:
        if isinstance(assembly.clock, SimulatedClock):
            assembly.task.reset(assembly.robot, rng=stream(assembly.config.run.seed, "check"))
        assembly.robot.observe()
    except RobotFault as fault:  # its cause is more specific than the safety filter's message
        raise fault.__cause__ if isinstance(fault.__cause__, DovetailError) else fault from None


def _task_metrics(assembly: Assembly) -> Collection[str]:
    """The names of the task's metrics, from its first verdict."""
    assembly.task.reset(assembly.robot, rng=stream(assembly.config.run.seed, "check"))
    return assembly.task.judge(assembly.robot, assembly.robot.observe(), num_steps=1).metrics.keys()
