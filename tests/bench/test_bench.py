"""The runner of measurements, and what the first of them measure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dovetail.bench import demo, experts, sim
from dovetail.bench.registry import BENCHES, Entry, load_bench
from dovetail.bench.rows import Row, at_least, at_most
from dovetail.cli import _bench
from dovetail.cli.main import main
from dovetail.core.types import Observation


def _pretend(*, quick: bool) -> Iterator[Row]:
    yield at_least("speed", 50.0 if quick else 500.0, "steps/s", 100, baseline="a snail", ratio=2.0)
    yield at_most("errors", 0.0, "", 0.2)


@pytest.fixture
def _one_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench, "BENCHES", {"pretend": Entry("-", "nothing much")})
    monkeypatch.setattr(_bench, "load_bench", lambda name: _pretend)


@pytest.mark.usefixtures("_one_bench")
def test_rows_in_the_terminal_and_for_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    assert main(["bench", "all", "--quick", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    for text in ("speed", "a snail", "2.00", "≥ 100", "✗", "≤ 0.2", "✓"):
        assert text in shown
    found = json.loads(file.read_text())
    assert found["rows"][0] == {
        "bench": "pretend",
        "name": "speed",
        "value": 50.0,
        "unit": "steps/s",
        "baseline": "a snail",
        "ratio": 2.0,
        "aim": 100,
        "met": False,
    }
    assert found["quick"] is True
    assert {"python", "cpu", "cores"} <= set(found["machine"])
    assert "commit" in found


@pytest.mark.usefixtures("_one_bench")
def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "pretnd"]) == 2
    assert "Did you mean 'pretend'?" in capsys.readouterr().err
    assert main(["bench", "pretend", "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert main(["bench"]) == 0
    assert "nothing much" in capsys.readouterr().out


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_can_be_loaded(name: str) -> None:
    assert callable(load_bench(name))


def test_sim_compares_with_what_it_measured_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "ARMS", ["panda"])
    monkeypatch.setattr(sim, "physics_steps_per_s", lambda seconds, arm: 50_000.0)
    monkeypatch.setattr(sim, "control_steps_per_s", lambda seconds, arm: 400.0)
    monkeypatch.setattr(sim, "observations_per_s", lambda seconds, arm: 300.0)
    monkeypatch.setattr(sim, "_blind_observations_per_s", lambda seconds, arm: 1200.0)
    rows = list(sim.bench(quick=True))
    assert [(row.value, row.aim, row.met) for row in rows] == [
        (50_000.0, 40_000, True),
        (20_000.0, 25_000, False),  # 50 physics steps in each control step
        (400.0, 500, False),
        (300.0, 150, True),
    ]
    assert [(row.baseline, row.ratio) for row in rows] == [
        (None, None),
        ("bare physics", 0.4),
        (None, None),
        ("no cameras", 0.25),
    ]


def test_experts_of_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    station = experts._station("peg_insertion", "panda")
    assert station is not None
    rows = list(experts._measure("peg", station, num_resets=2, num_replays=2))
    assert [row.name for row in rows] == ["peg: expert", "peg: expert needs", "peg: blind replay"]
    assert rows[0].value == 1.0
    assert rows[1].unit == "steps"
    assert experts._station("table_cleanup", "x5") is None  # not a task for that arm


def test_a_blind_replay_holds_still_at_its_end() -> None:
    actions = np.arange(14, dtype=np.float32).reshape(2, 7) + 1
    nothing = Observation(time_ns=0, values={})
    operator = experts.BlindReplay(actions, action_kind="ee_delta")
    for _ in range(2):
        operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
        polled = [operator.poll(nothing).action for _ in range(3)]
        np.testing.assert_array_equal(polled[:2], actions)
        np.testing.assert_array_equal(polled[2], [0, 0, 0, 0, 0, 0, 14])


def test_the_demo_is_judged_by_its_report() -> None:
    report = {"success_before": {"rate": 0.5}, "success_after": {"rate": 0.97}, "robot_minutes": 3.0}
    rows = list(demo._rows("seed 0", report, 310.0, aims=True))
    assert [(row.value, row.met) for row in rows] == [(0.5, None), (0.97, True), (310.0, False), (3.0, None)]
    assert rows[1].ratio == pytest.approx(1.94)
