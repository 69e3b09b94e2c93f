"""The robot's role: seeded episodes, weights by purpose, and faults during evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError, StopRequested
from dovetail.core.types import Outcome, Purpose, WeightSnapshot
from dovetail.runs.assembly.build import Assembly, build_assembly
from dovetail.runs.roles.robot import RobotRunner, evaluation_episodes, order_episode
from support.toy_run import TOY


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    assemblies: list[Assembly] = []

    def make(*overrides: str) -> Assembly:
        path = tmp_path / "toy.yaml"
        path.write_text(TOY)
        assemblies.append(build_assembly(load([path], overrides)))
        return assemblies[-1]

    yield make
    for assembly in assemblies:
        assembly.close()


def break_reading(assembly: Any, number: int) -> None:
    raw = assembly.task.robot
    observe, count = raw.observe, iter(range(10_000))

    def broken() -> Any:
        observation = observe()
        if next(count) == number:
            observation.values["ee_pose"][0] = np.nan
        return observation

    raw.observe = broken


def test_bad_reading_fails_the_evaluation(make: Any) -> None:
    assembly = make()
    break_reading(assembly, 12)
    with pytest.raises(FailureError, match="evaluation episode 1 of 4 was cut short"):
        list(evaluation_episodes(assembly, None, num_episodes=4, config_hash=""))


def test_repaired_robot_repeats_the_episode(make: Any) -> None:
    assembly = make()
    break_reading(assembly, 12)
    robot = RobotRunner(assembly, config_hash="")
    run = robot.run

    def restarted(*arguments: Any, **settings: Any) -> Any:
        episode = run(*arguments, **settings)
        if episode is not None and episode.outcome is Outcome.ABORTED:
            robot.num_restarts += 1
            robot.acknowledge()
        return episode

    robot.run = restarted  # type: ignore[method-assign]
    episode = robot.run_through(Purpose.EVAL, 0, None)
    assert episode is not None and episode.outcome is not Outcome.ABORTED


def test_episode_whose_weights_were_interrupted_by_a_stop_is_not_run(make: Any) -> None:
    robot = RobotRunner(make(), config_hash="")
    robot.prepare(Purpose.ONLINE)
    actor = robot._actors[Purpose.ONLINE]
    load_weights, answers = actor.load, iter([StopRequested()])

    def load_late(snapshot: WeightSnapshot) -> None:
        for answer in answers:
            raise answer
        load_weights(snapshot)

    actor.load = load_late  # type: ignore[method-assign]
    weights = WeightSnapshot(version=1, components=robot._assembly.trainable().weights(), hashes={})
    assert robot.run(Purpose.ONLINE, 0, weights) is None
    assert robot.stopped and robot.loaded is None
    episode = robot.run(Purpose.ONLINE, 0, weights)
    assert episode is not None and not robot.stopped
    assert set(episode.column("policy_version")) <= {0, 1} and robot.loaded == (Purpose.ONLINE, 1)


@pytest.mark.parametrize("noise", [False, True])
def test_evaluations_are_deterministic_unless_noise_is_configured(make: Any, noise: bool) -> None:
    assembly = make(f"run.eval_noise={str(noise).lower()}", "run.deterministic_share=0.0")
    orders = {
        purpose: order_episode(assembly, purpose=purpose, index=0, config_hash="")
        for purpose in (Purpose.EVAL, Purpose.ONLINE)
    }
    assert orders[Purpose.EVAL].deterministic is not noise
    assert not orders[Purpose.ONLINE].deterministic


def test_evaluation_noise_depends_on_the_index_alone(make: Any) -> None:
    assembly = make("run.eval_noise=true")
    first, again = (
        [
            episode.column("executed")[0]
            for episode in evaluation_episodes(assembly, None, num_episodes=3, config_hash="")
        ]
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])


def test_weights_are_loaded_once_per_version_and_purpose(make: Any) -> None:
    assembly = make()
    robot = RobotRunner(assembly, config_hash="")
    components = assembly.trainable().weights()
    loads: list[tuple[str, int]] = []
    for purpose in (Purpose.ONLINE, Purpose.EVAL):
        robot.prepare(purpose)
        actor: Any = robot._actors[purpose]
        load_weights = actor.load
        actor.load = lambda snapshot, purpose=purpose, load=load_weights: (
            loads.append((str(purpose), snapshot.version)),
            load(snapshot),
        )
    first, second = (WeightSnapshot(version=version, components=components, hashes={}) for version in (1, 2))
    for purpose, weights in [
        (Purpose.ONLINE, first),
        (Purpose.ONLINE, first),
        (Purpose.ONLINE, second),
        (Purpose.EVAL, second),
        (Purpose.ONLINE, second),  # with one host for all purposes, it has the weights of the evaluation
    ]:
        episode = robot.run(purpose, 0, weights)
        assert episode is not None and set(episode.column("policy_version")) <= {0, weights.version}
    assert loads == [("online", 1), ("online", 2), ("eval", 2), ("online", 2)]
    assert robot.loaded == (Purpose.ONLINE, 2)
