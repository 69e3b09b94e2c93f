"""`dovetail bench robots` against a real emulator process."""

from __future__ import annotations

import pytest

from dovetail.bench import robots
from dovetail.bench._robot_drivers import drivers


@pytest.mark.extended
def test_every_driver_gives_latency_jitter_and_late_ticks() -> None:
    rows = {row.name: row for row in robots.bench(quick=True)}
    for name in drivers():
        assert 0.0 < rows[f"{name}: observe p50"].value < 50_000.0
        assert rows[f"{name}: send jitter, p99"].value >= 0.0
        (late,) = (row for label, row in rows.items() if label.startswith(f"{name}: 50 Hz under load"))
        assert late.aim == 0.1 and 0.0 <= late.value <= 100.0
