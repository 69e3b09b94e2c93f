"""With a simulated clock, an actor gives the same episodes in one process and in several."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.types import Outcome, PromptChange, Purpose, Source
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runs.roles.robot import order_episode
from dovetail.runtime.inline import InlineRun
from dovetail.weights.store import DiskWeightStore
from support.toy_run import TOY

SCENE = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 40, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm", image_size: [16, 12]}
operator: {type: scripted, watched_share: 1.0, stuck_after_steps: 4}
policy: {type: "dovetail.testing.fake_learning:FakePolicy", horizon: 8, history: {ee_pose: 3, front: 2}}
actor: {type: sequential}
algorithm: {type: "dovetail.testing.fake_learning:FakeAlgorithm"}
"""
SHORT_TAKEOVERS = (
    "operator={type: 'dovetail.testing.fake_learning:FakeOperator', share: 0.2}"  # takes over for single ticks
)
LARGE_CAMERA = "robot.image_size=[320, 240]"  # the policy sees 128x96
FLOW = "policy={type: flow, horizon: 8, hidden: 16, inputs: [ee_pose, goal]}"

PROMPTED = "policy={type: flow, horizon: 8, hidden: 16, inputs: [ee_pose, goal], prompt_features: 4}"


def evaluation(path, layout, *overrides):
    assembly = build_assembly(load([path], (*overrides, f"actor.layout={layout}")))
    try:
        order = order_episode(assembly, purpose=Purpose.EVAL, index=0, config_hash="0" * 64)
        return assembly.actor_for(Purpose.EVAL).run(order)
    finally:
        assembly.close()


def episodes(path, layout, *overrides):
    """A demonstration, two online episodes with interventions, and an evaluation."""
    assembly = build_assembly(load([path], (*overrides, f"actor.layout={layout}")))
    try:
        found = []
        for purpose, index in ((Purpose.DEMO, 0), (Purpose.ONLINE, 0), (Purpose.ONLINE, 1), (Purpose.EVAL, 0)):
            order = order_episode(assembly, purpose=purpose, index=index, config_hash="0" * 64)
            found.append(assembly.actor_for(purpose).run(order))
        return found
    finally:
        assembly.close()


def assert_same(inline, separate):
    ours, theirs = (
        {name: episode.column(name) for name in episode.segments[0].columns} for episode in (inline, separate)
    )
    assert ours.keys() == theirs.keys()
    for name, column in ours.items():
        assert column.dtype == theirs[name].dtype, name
        assert np.array_equal(column, theirs[name], equal_nan=column.dtype.kind == "f"), name
    for key, value in inline.last_observation.values.items():
        assert np.array_equal(value, separate.last_observation.values[key]), key
    for field in (
        "task",
        "prompt",
        "robot",
        "operator",
        "purpose",
        "outcome",
        "judgement",
        "seed",
        "config_hash",
        "has_success",
        "reset_s",
    ):
        assert getattr(inline, field) == getattr(separate, field), field
    assert inline.reset_s == 0.0  # in simulated time


@pytest.mark.parametrize(
    "overrides",
    [
        ("actor.type=sequential", "actor.simulated_delay_ticks=0"),
        ("actor.type=sequential", "actor.simulated_delay_ticks=3"),
        ("actor.type=naive", "actor.simulated_delay_ticks=0"),
        ("actor.type=naive", "actor.simulated_delay_ticks=3", "actor.execution_horizon=4"),
        ("actor.type=naive", "actor.simulated_delay_ticks=2", SHORT_TAKEOVERS),
        ("actor.type=naive", "actor.simulated_delay_ticks=0", LARGE_CAMERA),
        ("actor.type=rtc", "actor.simulated_delay_ticks=0", FLOW),
        ("actor.type=rtc", "actor.simulated_delay_ticks=3", "actor.execution_horizon=4", FLOW),
    ],
)
def test_same_seed_gives_the_same_episodes_in_every_layout(tmp_path, processes, overrides):
    path = tmp_path / "scene.yaml"
    path.write_text(SCENE)
    inline, separate = (episodes(path, layout, *overrides) for layout in ("one_process", "processes"))
    for ours, theirs in zip(inline, separate, strict=True):
        assert_same(ours, theirs)
    assert {Source.HUMAN, Source.POLICY} == set(inline[1].column("source"))  # the operator has taken over
    assert inline[3].column("chunk_id").max() > 1
    assert inline[0].outcome is Outcome.SUCCESS


@pytest.mark.parametrize("mode", ["sequential", "naive", "rtc"])
def test_prompt_that_changes_reaches_policy_and_recorder_in_every_layout(tmp_path, processes, mode):
    path = tmp_path / "scene.yaml"
    path.write_text(SCENE)
    staged = "task={type: 'dovetail.testing.staged_task:StagedTask', steps_per_stage: 5, max_steps: 12, tolerance: 1e-9}"
    changing = (staged, PROMPTED, f"actor.type={mode}", "operator={type: none}", "actor.simulated_delay_ticks=1")
    inline, separate = (evaluation(path, layout, *changing) for layout in ("one_process", "processes"))
    assert_same(inline, separate)
    assert (inline.prompt, inline.prompt_changes) == (
        "open the lid",
        (PromptChange(step=5, prompt="put the cube into the box"),),
    )
    assert separate.prompt_changes == inline.prompt_changes
    same = evaluation(path, "one_process", *changing, "task.stages=['open the lid']")
    actions, others = inline.column("proposed"), same.column("proposed")
    np.testing.assert_array_equal(actions[:5], others[:5])
    assert not np.array_equal(actions[6:], others[6:])  # the policy reads the words


@pytest.mark.extended
def test_run_gives_the_same_weights_in_every_layout(tmp_path, processes):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    weights, outcomes = [], []
    for layout in ("one_process", "processes"):
        folder = RunFolder.create(tmp_path / layout, load([path], (f"actor.layout={layout}",)))
        InlineRun(folder).run()
        snapshot = DiskWeightStore(folder.weights).latest()
        weights.append({f"{c}/{n}": v for c, arrays in snapshot.components.items() for n, v in arrays.items()})
        log = EpisodeLog(folder.episodes)
        found = [log.manifest(episode_id) for episode_id in log.ids()]
        outcomes.append([(info.purpose, info.outcome, info.num_steps, info.policy_versions) for info in found])
        assert not list(folder.spool.glob("*"))  # all episodes are in the log
    assert outcomes[0] == outcomes[1]
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])
