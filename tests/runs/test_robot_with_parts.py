"""A robot with joints, a gripper and a mobile base, in every stage of a run: one robot, three action parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.cli.main import main
from dovetail.core.achieved import achieved_actions
from dovetail.core.errors import SpecMismatch
from dovetail.core.specs import RobotSpec, match
from dovetail.testing import check_robot
from dovetail.testing.mobile_arm import FakeDelivery, FakeDeliveryConfig, FakeMobileArm, FakeMobileArmConfig

COMMON = """
task: {type: "dovetail.testing.mobile_arm:FakeDelivery"}
robot: {type: "dovetail.testing.mobile_arm:FakeMobileArm"}
operator: {type: scripted, watched_share: 1.0, stuck_after_steps: 4}
run: {demos: 4, env_steps: 80, eval_episodes: 4, untrained_episodes: 1, video_episodes: 0}
"""
RLPD = (
    COMMON
    + """
policy: {type: gaussian_mlp, hidden: [32, 32]}
algorithm: {type: rlpd, batch_size: 32, hidden: [32, 32]}
learner: {utd: 1, warmup_updates: 10, bc_updates: 20}
"""
)
HI_ORS = (
    COMMON
    + """
policy: {type: flow, horizon: 4, hidden: 32, num_layers: 1}
algorithm: {type: hi_ors, batch_size: 16}
learner: {utd: 1, bc_updates: 20}
"""
)


def robot(task: FakeDelivery | None = None) -> FakeMobileArm:
    return FakeMobileArm(FakeMobileArmConfig(), task=task or FakeDelivery(FakeDeliveryConfig()))


def write(folder: Path, config: str) -> Path:
    path = folder / "mobile.yaml"
    path.write_text(config)
    return path


def test_mobile_arm_passes_the_conformance_suite() -> None:
    check_robot(robot)


def test_achieved_action_of_each_part_comes_from_its_own_measurement() -> None:
    arm = robot()
    arm.place(np.zeros(2), np.zeros(4))
    seen = [arm.observe().values]
    for _ in range(2):
        arm.send(np.array((0.1, -0.1, 0.3, 0.2, -0.4), np.float32))
        arm.velocity *= 0.5  # wheels that slip
        arm.advance(100_000_000)
        seen.append(arm.observe().values)
    columns = {key: np.stack([values[key] for values in seen]) for key in seen[0]}
    executed = np.full((2, 5), 9.0, np.float32)
    expected = [[0.1, -0.1, 0.3, 0.1, -0.2]] * 2
    np.testing.assert_allclose(achieved_actions(arm.spec, columns, executed), expected, atol=1e-6)


@pytest.mark.parametrize("config", [RLPD, HI_ORS], ids=["rlpd", "hi_ors"])
def test_run_learns_exports_and_imports_a_robot_with_parts(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = dovetail.run(write(tmp_path, config), runs_dir=tmp_path / "runs", name="mobile")
    path = tmp_path / "runs" / "mobile"
    demo = run.episodes.filter(purpose="demo")[0].load()
    assert demo.robot.parts == robot().spec.parts
    assert demo.outcome == "success"  # base, joints and gripper did their work behind the filter

    dataset = tmp_path / "dataset"
    assert main(["episodes", "export", str(path), "--out", str(dataset), "--purpose", "demo"]) == 0
    info = (dataset / "meta" / "info.json").read_text()
    assert all(f'"{axis}"' in info for axis in ("shoulder", "elbow", "gripper", "vx", "vy"))
    command = ["episodes", "import", "back", str(dataset), "--recipe", str(tmp_path / "mobile.yaml")]
    assert main([*command, "--runs-dir", str(tmp_path / "runs")]) == 0, capsys.readouterr().err
    back = dovetail.open(tmp_path / "runs" / "back").episodes[0].load()
    assert back.robot.parts == robot().spec.parts
    np.testing.assert_array_equal(back.column("executed"), demo.column("executed"))


def test_data_of_another_base_does_not_fit() -> None:
    spec = robot().spec
    data = spec.to_json()
    data["parts"][2]["unit"] = "m/s+rad/s"
    other = RobotSpec.from_json(data)
    assert other.hash() != spec.hash()
    with pytest.raises(SpecMismatch, match=r"base: 2 x velocity \[m/s\+rad/s\]"):
        match(spec, stored=other)
