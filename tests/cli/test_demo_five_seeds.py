"""`make demo` for five seeds: it ends within five minutes and reaches 95 % success."""

import json
import subprocess
import sys
import time

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("way", [("runtime=ray", "--console"), ("runtime=inline",)], ids=["ray", "inline"])
@pytest.mark.parametrize("seed", range(5))
def test_demo_learns(seed, way, tmp_path):
    command = [sys.executable, "-m", "dovetail.cli", "run", "peg-insertion", *way, "--name", "demo"]
    started_s = time.monotonic()
    done = subprocess.run(
        [*command, "--seed", str(seed), "--runs-dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert time.monotonic() - started_s <= 300  # with imports, report and video
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    before, after = report["success_before"], report["success_after"]
    assert after["episodes"] == before["episodes"] == 100
    assert after["rate"] >= 0.95
    assert after["low"] > before["high"]  # above the interval of cloning
    assert report["untrained"]["high"] < before["low"]
    for name in ("learning_curve.png", "before_after.mp4"):
        assert (tmp_path / "demo" / name).stat().st_size > 10_000
