"""Simulated arms wait for the learner, but not forever if a role is killed or data never comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.ray_world import world

pytestmark = pytest.mark.slow

SIMULATED = """
task: {{type: "support.ray_plugins:UntilSignaled", max_steps: 20, tolerance: 1.0e-4, enough: "{enough}"}}
robot: {{type: "support.ray_plugins:Slow", tick_s: 0.01}}
operator: {{type: scripted, watched_share: 0.0}}
policy: {{type: gaussian_mlp, hidden: [32, 32]}}
algorithm: {{type: rlpd, batch_size: 32, hidden: [32, 32]}}
learner: {{utd: 0.01, warmup_updates: 5, bc_updates: 5, start_after_steps: 0}}
run: {{demos: 0, env_steps: 400, eval_every_steps: 100, eval_episodes: 20, untrained_episodes: 0, video_episodes: 0}}
cluster: {{max_steps_ahead: 40, robot_timeout_s: 600}}
runtime: ray
"""


def test_killed_store_gets_the_number_of_updates_again(tmp_path: Path) -> None:
    """A restarted store has lost the number of updates; without it, no arm gets a permit."""
    with world(tmp_path, layout=SIMULATED) as run:
        run.start()
        run.wait_until(lambda: run.env_steps() >= 100, what="an evaluation")
        run.kill("StoreRole")
        run.wait_until(lambda: run.num_restarts("store"), what="the store is restarted")
        run.wait_until(lambda: run.env_steps() >= 200, within_s=120.0, what="online episodes continue")
        run.wait_for_report()
        run.check_nothing_lost()


def test_arms_do_not_wait_for_an_algorithm_without_data(tmp_path: Path) -> None:
    """HG-DAgger learns from corrections, and no operator gives one."""
    layout = SIMULATED.replace("type: rlpd, batch_size: 32, hidden: [32, 32]", "type: hg_dagger, batch_size: 32")
    layout = layout.replace("type: gaussian_mlp, hidden: [32, 32]", "type: flow, hidden: 32")
    with world(tmp_path, layout=layout) as run:
        run.start("run.eval_every_steps=null")
        assert run.wait_for_report(within_s=300.0)["env_steps"] >= 400
