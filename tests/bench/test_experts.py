"""The benchmark of scripted experts."""

from __future__ import annotations

import numpy as np

from benchmarks import experts
from dovetail.core.types import Observation


def test_expert_of_one_task_succeeds_and_is_replayed() -> None:
    assembly = experts._assembly("peg_insertion", "panda")
    assert assembly is not None
    rows = list(experts._measure("peg", assembly, num_resets=2, num_replays=2))
    assert [row.name for row in rows] == ["peg: expert", "peg: expert needs", "peg: open-loop replay"]
    assert rows[0].value == 1.0
    assert rows[1].unit == "steps"
    assert experts._assembly("table_cleanup", "x5") is None  # that arm does not support the task


def test_open_loop_replay_holds_still_at_its_end() -> None:
    actions = np.arange(14, dtype=np.float32).reshape(2, 7) + 1
    nothing = Observation(time_ns=0, values={})
    operator = experts.OpenLoopReplay(actions, action_kind="ee_delta")
    for _ in range(2):
        operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
        polled = [operator.poll(nothing).action for _ in range(3)]
        np.testing.assert_array_equal(polled[:2], actions)
        np.testing.assert_array_equal(polled[2], [0, 0, 0, 0, 0, 0, 14])
