"""Before a run has its lock, its folder and its emergency stop, nothing is sent to a real robot."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.api.checks import check_fits
from dovetail.cli.main import main
from dovetail.config.load import load
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.fleet import build_fleet, with_embodiments
from dovetail.testing.live import read_journal

CONFIG = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 30}
robot: {type: "dovetail.testing.live:LiveArm", image_size: [8, 6], journal: "%s"}
operator: {type: scripted}
policy: {type: gaussian_mlp, hidden: [8]}
actor: {layout: processes}
algorithm: {type: rlpd, hidden: [8], batch_size: 8}
labels: [{type: outcome, stages: [{metric: distance_m, at_least: 0.1, reward: 0.5}]}]
"""


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    (tmp_path / "real.yaml").write_text(CONFIG % (tmp_path / "journal"))
    return tmp_path / "journal"


@pytest.mark.parametrize("runtime", ["inline", "ray"])
def test_config_check_sends_nothing_to_a_real_robot(journal: Path, runtime: str) -> None:
    config = load([journal.parent / "real.yaml"], [f"runtime={runtime}"])
    check_fits(with_embodiments(config))
    assert read_journal(journal) == []


def test_doctor_sends_nothing_to_a_real_robot(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", str(journal.parent / "real.yaml"), "--runs-dir", str(journal.parent / "runs")])
    assert "fit each other" in capsys.readouterr().out
    assert read_journal(journal) == []


def test_process_that_never_moved_the_arm_does_not_stop_it(journal: Path) -> None:
    """The store and the learner build a fleet for its specs while other processes move its arms."""
    config = load([journal.parent / "real.yaml"])
    build_fleet(config).close()
    assembly = build_assembly(config)
    assembly.robot.observe()
    assembly.close()
    assert read_journal(journal) == []


def test_process_that_moved_the_arm_stops_it_when_it_closes(journal: Path) -> None:
    assembly = build_assembly(load([journal.parent / "real.yaml"]))
    assembly.robot.observe()
    assembly.robot.hold()
    assembly.close()
    assert [note.what for note in read_journal(journal)] == ["send", "stop"]
