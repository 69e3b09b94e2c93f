"""The recipe `igris-b` learns: in simulated time, where its robot is the emulator's body without DDS, and over DDS."""

import json
from importlib.resources import files

import pytest
import yaml

from dovetail.emulators.emulator import EmulatorProcess, robot_computer_priority
from support.ros2_robots import free_domain

pytestmark = pytest.mark.slow

SEED = 500  # the settings were chosen on it: this protects what was reached, and is no evidence
MIN_AFTER = 0.85
FEW = ("run.video_episodes=0", "run.untrained_episodes=0")


def test_hg_dagger_with_takeover_of_one_arm_improves_cloning(cli, tmp_path):
    config = yaml.safe_load(files("dovetail.config").joinpath("recipes/igris-b.yaml").read_text())
    config["robot"] |= {"type": "support.direct_igris:DirectIgris", "target_seed": SEED}
    del config["actor"]["layout"]  # simulated time has one process
    (tmp_path / "igris.json").write_text(json.dumps(config))
    report = _run(cli, tmp_path, str(tmp_path / "igris.json"), "run.eval_episodes=100", "runtime=inline")
    assert report["success_after"]["rate"] >= MIN_AFTER
    assert report["success_after"]["rate"] > report["success_before"]["rate"]


def test_the_same_over_dds_in_real_time(cli, tmp_path):
    """About 20 minutes on a quiet machine. The 95 % interval of a rate of 0.85 in 60 episodes goes down to 0.74."""
    domain_id = free_domain()
    with EmulatorProcess("igris_b", f"domain_id={domain_id}", f"seed={SEED}", prefix=robot_computer_priority()):
        report = _run(cli, tmp_path, "igris-b", f"robot.dds.domain_id={domain_id}", "run.eval_episodes=60")
    assert report["interventions"] > 0
    assert report["success_after"]["rate"] >= 0.74
    assert report["success_after"]["rate"] >= report["success_before"]["rate"]


def _run(cli, folder, *arguments):
    result = cli("run", *arguments, *FEW, f"run.seed={SEED}", "--runs-dir", str(folder), "--name", "a", "--quiet")
    assert result.code == 0, result.err
    return json.loads((folder / "a" / "report.json").read_text())
