"""The loop that improves a served policy, with real server processes: its steps, and how it continues after a stop."""

import json
import socket

import pytest

import dovetail
from dovetail.api.deployment import deployment_of
from dovetail.api.improvement import IMPROVEMENT, STEPS
from dovetail.core.errors import DovetailError, UsageError

WORLD = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 30, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm"}
"""
BASE = """
policy: {type: flow, hidden: 16, num_layers: 1, horizon: 4, num_flow_steps: 2}
algorithm: {type: imitation}
learner: {bc_updates: 0, warmup_updates: 20}
run: {demos: 3, env_steps: 0, eval_episodes: 3, untrained_episodes: 0, video_episodes: 0}
"""
LOOP = """
improve: {base_recipe: BASE_FILE, distill_updates: 30, gate_episodes: 6, bad_updates: 1}
operator: {type: scripted, watched_share: 1.0, stuck_after_steps: 4}
policy:
  type: residual
  hidden: [16]
  base: {type: openpi, address: "127.0.0.1:PORT", keys: {state: {STATE}}, horizon: 4}
algorithm: {type: residual, batch_size: 32, hidden: [32], base_updates: 20, growth_updates: 40, bc_weight: 1.0}
learner: {utd: 1, warmup_updates: 10, bc_updates: 0}
run: {demos: 2, env_steps: 60, eval_episodes: 3, untrained_episodes: 0, video_episodes: 0}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def write_loop(folder, port: int):
    (folder / "base.yaml").write_text(WORLD + BASE)
    state = "ee_pose: [ee_pose], gripper: [gripper], goal: [goal]"
    text = LOOP.replace("BASE_FILE", str(folder / "base.yaml")).replace("PORT", str(port)).replace("STATE", state)
    (folder / "loop.yaml").write_text(WORLD + text)
    return folder / "loop.yaml"


def steps_of(run):
    return json.loads((run / IMPROVEMENT).read_text())["steps"]


@pytest.mark.extended
def test_stopped_loop_continues_and_does_every_step_once(tmp_path):
    file, runs = write_loop(tmp_path, free_port()), tmp_path / "runs"
    with pytest.raises(dovetail.Interrupted):  # while the new policy is trained
        dovetail.run(
            file, runs_dir=runs, name="loop", should_stop=lambda: (runs / "loop-distilled/lineage.json").exists()
        )
    assert list(steps_of(runs / "loop")) == ["base", "residual"]
    base_weights = sorted((runs / "loop-base" / "weights").iterdir())

    with pytest.raises(dovetail.Interrupted):  # in the first comparison
        dovetail.run(resume="loop", runs_dir=runs, should_stop=lambda: "distilled" in steps_of(runs / "loop"))
    assert list(steps_of(runs / "loop")) == ["base", "residual", "distilled"]

    dovetail.run(resume="loop", runs_dir=runs)

    steps = steps_of(runs / "loop")
    assert tuple(steps) == STEPS
    assert (runs / "loop" / "improvement.png").stat().st_size > 1000
    assert steps["base"]["episodes"] == steps["residual"]["episodes"] == steps["deployed"]["episodes"] == 3
    assert sorted((runs / "loop-base" / "weights").iterdir()) == base_weights  # it was not trained again
    lineage = json.loads((runs / "loop-distilled" / "lineage.json").read_text())
    assert lineage["run"] == str(runs / "loop") and lineage["into_version"] is not None
    deployed = deployment_of(runs / "loop-base").deployed.weights
    assert steps["deployed"]["weights"] == deployed
    assert ("loop-distilled" in deployed) == steps["gate"]["deployed"]
    # 6 pairs cannot show that a candidate is not worse by more than 5 points, so the gate deploys none of them
    assert not steps["gate"]["deployed"] and not steps["bad candidate"]["deployed"]


@pytest.mark.extended
def test_server_that_cannot_listen_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = write_loop(tmp_path, taken.getsockname()[1])
        with pytest.raises(DovetailError, match=r"did not start: .*cannot listen on"):
            dovetail.run(file, runs_dir=tmp_path / "runs", name="loop")


def test_loop_without_a_served_base_is_refused(tmp_path):
    file = write_loop(tmp_path, 7421)
    (tmp_path / "other.yaml").write_text("policy: {type: flow}")
    with pytest.raises(UsageError, match="base of type openpi"):
        dovetail.run([file, tmp_path / "other.yaml"], runs_dir=tmp_path / "runs", name="loop")
    assert not (tmp_path / "runs" / "loop").exists()


def test_loop_with_rounds_is_refused_before_any_work(tmp_path):
    """Its run would be followed by rounds without the evaluation that the loop needs."""
    file = write_loop(tmp_path, 7421)
    with pytest.raises(UsageError, match=r"Leave out run\.distill_every"):
        dovetail.run(
            [file], ["run.distill_every=20", "run.distill_into=base"], runs_dir=tmp_path / "runs", name="loop"
        )
    assert not (tmp_path / "runs").exists()
