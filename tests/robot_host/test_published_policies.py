"""Policies with published checkpoints in closed loop, in every chunk mode, with a process for each part of the robot."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.config.plugins import BUILTIN
from dovetail.config.schema import RunConfig
from dovetail.core.errors import UsageError
from dovetail.core.types import Outcome, Purpose
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.roles.robot import order_episode
from support.small_checkpoints import SMALL_CHECKPOINTS

pytestmark = pytest.mark.extended

MODES = sorted(BUILTIN["actor"])
SIMULATED = {
    "task": {"type": "push_cube", "time_limit_s": 1.2},
    "robot": {"type": "sim", "images": ["front"], "image_size": [64, 48]},
}
LIVE = {
    "task": {"type": "dovetail.testing.fakes:FakeTask", "max_steps": 30, "tolerance": 0.0},
    "robot": {"type": "support.small_checkpoints:SixAxisLiveArm", "control_hz": 20, "image_size": [64, 48]},
}


@pytest.fixture(scope="module", params=sorted(SMALL_CHECKPOINTS))
def policy(request, tmp_path_factory):
    return SMALL_CHECKPOINTS[request.param](tmp_path_factory.mktemp(request.param))


def play(scene, policy, *, mode, **actor):
    """One evaluation episode and the telemetry of its actor."""
    sections = {"actor": {"type": mode, "execution_horizon": 3, **actor}, "algorithm": {"type": "rlpd"}}
    assembly = build_assembly(RunConfig.model_validate({**scene, "policy": policy, **sections}))
    try:
        if mode == "rtc" and not assembly.policy().spec.guidable:
            with pytest.raises(UsageError, match="soft"):
                assembly.actor_for(Purpose.EVAL)
            pytest.skip("this policy cannot be guided, and rtc has refused it")
        runner = assembly.actor_for(Purpose.EVAL)
        order = order_episode(assembly, purpose=Purpose.EVAL, index=0, config_hash="0" * 64)
        return runner.run(order), dict(runner.telemetry())
    finally:
        assembly.close()


def test_the_modes_are_those_of_the_documentation():
    assert MODES == ["naive", "rtc", "sequential", "soft"]


@pytest.mark.parametrize("mode", MODES)
def test_all_layouts_give_the_same_episode_in_simulated_time(policy, processes, mode):
    delay = 0 if mode == "sequential" else 1
    ours, theirs = (
        play(SIMULATED, policy, mode=mode, layout=layout, simulated_delay_ticks=delay)[0]
        for layout in ("one_process", "processes")
    )
    assert len(ours) == len(theirs) == 12
    for name in ("executed", "proposed", "chunk_id", "chunk_index", "observation/front", "observation/joint_pos"):
        np.testing.assert_array_equal(ours.column(name), theirs.column(name), err_msg=name)
    assert len(np.unique(theirs.column("chunk_id"))) >= 4  # several chunks, one after the other
    assert np.ptp(theirs.column("executed"), axis=0).max() > 1e-3  # it moved


@pytest.mark.parametrize("mode", MODES)
def test_it_acts_on_the_real_clock_beside_its_control_loop(policy, processes, mode):
    episode, telemetry = play(LIVE, policy, mode=mode, layout="processes")
    assert len(episode) == 30 and episode.outcome is Outcome.TIMEOUT  # no fault has cut it short
    assert len(np.unique(episode.column("chunk_id"))) >= 4
    assert np.abs(episode.column("executed")).max() > 1e-4
    assert telemetry["inference_p50_ms"] > 0.0 and telemetry.get("bad_chunks", 0) == 0
