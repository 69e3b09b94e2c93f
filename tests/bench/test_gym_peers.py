"""The comparison of `--gym` with Stable-Baselines3: rows and aims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks._gym_peers import CASES, learn, result_file
from benchmarks.gym_peers import rows_of


def result(**values: Any) -> dict[str, Any]:
    return {"return_mean": -10.0, "success": None, "steps_to_success": None, **values}


def test_our_aim_is_the_better_mean_of_the_peers() -> None:
    results = {
        "sb3-ppo": [result(return_mean=-30.0), result(return_mean=-10.0)],
        "sb3-sac": [result(return_mean=-8.0), result(return_mean=-12.0)],
        "dovetail": [result(return_mean=-9.0), result(return_mean=-9.5)],
    }
    rows = list(rows_of("pendulum", results))
    assert [(row.value, row.aim, row.met) for row in rows] == [
        (-20.0, None, None),
        (-10.0, None, None),
        (-9.25, -10.0, True),
    ]


def test_success_decides_where_the_environment_has_it() -> None:
    results = {
        "sb3-sac": [result(success=0.9, steps_to_success=3)],
        "dovetail": [result(success=0.8, steps_to_success=2)],
    }
    aims = {row.name: row.met for row in rows_of("reach", results) if row.met is not None}
    assert aims == {"reach, dovetail: success": False}


@pytest.mark.extended
def test_our_run_is_evaluated_in_the_environment_itself(tmp_path: Path) -> None:
    found = learn(tmp_path, "pendulum", "dovetail", 0, env_steps=500)
    assert result_file(tmp_path, "pendulum", "dovetail", 0).exists()
    assert len(found["returns"]) == 50
    assert set(found["lengths"]) == {200}
    assert -2000 < found["return_mean"] < 0
    assert found["success"] is None
    assert CASES["pendulum"].env_steps == 10_000
