"""The recipe `igris-b` learns in simulated time: its robot is the emulator's body, without DDS."""

import json
from importlib.resources import files

import pytest
import yaml

pytestmark = pytest.mark.slow

SEED = 500  # the settings were chosen on it: this protects what was reached, and is no evidence
MIN_AFTER = 0.85


def test_hg_dagger_with_takeover_of_one_arm_improves_cloning(cli, tmp_path):
    config = yaml.safe_load(files("dovetail.config").joinpath("recipes/igris-b.yaml").read_text())
    config["robot"] |= {"type": "support.direct_igris:DirectIgris", "target_seed": SEED}
    del config["actor"]["layout"]  # simulated time has one process
    (tmp_path / "igris.json").write_text(json.dumps(config))
    result = cli(
        "run", str(tmp_path / "igris.json"), f"run.seed={SEED}", "run.eval_episodes=100", "run.video_episodes=0",
        "run.untrained_episodes=0", "runtime=inline", "--runs-dir", str(tmp_path), "--name", "a", "--quiet",
    )  # fmt: skip
    assert result.code == 0, result.err
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    after, before = report["success_after"], report["success_before"]
    assert after["rate"] >= MIN_AFTER
    assert after["rate"] > before["rate"]
