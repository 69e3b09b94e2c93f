"""Check that the parts of a config fit together, before a run folder is made.

There is no lock and no emergency stop yet, so a real robot is only observed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from dovetail.config.schema import RunConfig
from dovetail.core.abilities import ChecksDevice, ConfiguresLeader, LooksOnly, WrapsOperator, WrapsOperators
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import DovetailError, RobotFault, UsageError
from dovetail.core.streams import stream
from dovetail.learn.batches import batch_arrays
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.runs.assembly.arms import arm_configs, arm_groups, arm_name
from dovetail.runs.assembly.build import Assembly, build_assembly
from dovetail.runs.assembly.fleet import build_fleet
from dovetail.runs.assembly.policy_components import check_device
from dovetail.runs.assembly.workcell import build_driver, demonstrates
from dovetail.runtime.onpolicy.training import check_on_policy
from dovetail.runtime.ranks import check_ranks

__all__ = ["check_fits", "fit_problems"]


def check_fits(config: RunConfig) -> None:
    """Build everything once, check it, and close it. Raises the first problem, such as UsageError or SpecMismatch."""
    for problem in fit_problems(config):
        raise problem


def fit_problems(config: RunConfig) -> list[DovetailError]:
    """All reasons why the parts of a config do not fit together or cannot be used on this machine."""
    problems: list[DovetailError] = []
    with _collected(problems):
        if config.runtime == "inline":
            with _operator_problem(config, problems):
                problems += _assembly_problems(build_assembly(config))
        else:
            problems += _fleet_problems(config)
    return list({str(problem): problem for problem in problems}.values())


def _fleet_problems(config: RunConfig) -> list[DovetailError]:
    fleet, problems = build_fleet(config), list[DovetailError]()
    with _collected(problems):
        fleet.trainable()  # the policy that all arms share
    problems += _assembly_problems(fleet.assembly)
    arms = arm_configs(config)
    for first, *_ in arm_groups(config)[1:]:
        own: list[DovetailError] = []
        with _collected(own):
            own += _assembly_problems(build_assembly(arms[first], name=arm_name(config, first)))
        problems += [_of_arm(first, problem) for problem in own]
    return problems


@contextmanager
def _operator_problem(config: RunConfig, problems: list[DovetailError]) -> Iterator[None]:
    """If robot and safety filter do not fit, check the operator without the filter."""
    try:
        yield
    except DovetailError as first:
        problems.append(first)
        with _collected(problems):
            robot, task = build_driver(task=config.task, robot=config.robot, cameras=config.cameras)
            if not isinstance(config.operator.config, WrapsOperator | WrapsOperators | ConfiguresLeader):
                config.operator.build(task=task, robot=robot.spec)


@contextmanager
def _collected(problems: list[DovetailError]) -> Iterator[None]:
    try:
        yield
    except DovetailError as problem:
        problems.append(problem)


def _of_arm(name: str, problem: DovetailError) -> DovetailError:
    return type(problem)(f"robot '{name}': {problem}") if isinstance(problem, UsageError) else problem


def _assembly_problems(assembly: Assembly) -> list[DovetailError]:
    config, problems = assembly.config, list[DovetailError]()
    try:
        with _collected(problems):
            assembly.check_layout()
        with _collected(problems):
            if not config.cluster.machines:  # arms on other machines check theirs
                check_device(config.policy)
        with _collected(problems):
            _check_learning(assembly)
        with _collected(problems):
            _check_operator(assembly)
        with _collected(problems):
            panel = assembly.labeler_chain()
            # A task's reset moves the robot. The first label of a real robot shows whether it has the metrics.
            if panel.reads_metrics and isinstance(assembly.clock, SimulatedClock):
                panel.check_metrics(_task_metrics(assembly))
        with _collected(problems):
            if config.run.demos and not demonstrates(config.operator):
                assembly.task.expert()  # it must have one
        with _collected(problems):
            is_elsewhere = bool(config.cluster.machines and config.cameras)  # maybe at another machine
            if any(spec.is_image for spec in assembly.robot.spec.observation.values()) and not is_elsewhere:
                _render_once(assembly)
    finally:
        assembly.close()
    return problems


def _check_learning(assembly: Assembly) -> None:
    config, policy = assembly.config, assembly.trainable()
    assembly.check_actor(policy.spec)
    algorithm = assembly.algorithm(policy)
    if isinstance(algorithm, OnPolicyAlgorithm):
        check_on_policy(config)
    check_ranks(config, algorithm)
    batch_arrays(algorithm.sample_request, assembly.policy_robot)  # refuses columns that the robot does not have


def _check_operator(assembly: Assembly) -> None:
    """Refuse an operator that cannot drive the robot, and a missing device at this machine."""
    operator = assembly.operator()
    if isinstance(operator, ChecksDevice) and not assembly.config.cluster.machines:
        operator.check_device()


def _render_once(assembly: Assembly) -> None:
    """A missing camera or GL driver shows at the first image."""
    try:
        if isinstance(assembly.clock, SimulatedClock):
            assembly.task.reset(assembly.robot, rng=stream(assembly.config.run.seed, "check"))
        if isinstance(assembly.workcell.driver, LooksOnly):
            assembly.workcell.driver.look_only()
        assembly.robot.observe()
    except RobotFault as fault:  # its cause is more specific than the safety filter's message
        raise fault.__cause__ if isinstance(fault.__cause__, DovetailError) else fault from None


def _task_metrics(assembly: Assembly) -> Collection[str]:
    """The names of the task's metrics, from its first verdict."""
    assembly.task.reset(assembly.robot, rng=stream(assembly.config.run.seed, "check"))
    return assembly.task.judge(assembly.robot, assembly.robot.observe(), num_steps=1).metrics.keys()
