"""Where time is simulated, arms wait for the learner: whatever is killed or never comes, nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.ray_world import world

pytestmark = pytest.mark.slow

SIMULATED = """
task: {{type: "support.ray_plugins:UntilTold", max_steps: 20, tolerance: 1.0e-4, enough: "{enough}"}}
robot: {{type: "support.ray_plugins:Slow", tick_s: 0.01}}
operator: {{type: scripted, watched_share: 0.0}}
policy: {{type: gaussian_mlp, hidden: [32, 32]}}
algorithm: {{type: rlpd, batch_size: 32, hidden: [32, 32]}}
learner: {{utd: 0.01, warmup_updates: 5, bc_updates: 5, start_after_steps: 0}}
run: {{demos: 0, env_steps: 400, eval_every_steps: 100, eval_episodes: 20, untrained_episodes: 0, video_episodes: 0}}
cluster: {{max_steps_ahead: 40, robot_timeout_s: 600}}
runtime: ray
"""


def test_a_store_that_is_killed_while_nothing_is_owed(tmp_path: Path) -> None:
    """It forgets how much was learned, and would let nobody practise; the learner, owing nothing, would say nothing."""
    with world(tmp_path, layout=SIMULATED) as one:
        one.start()
        one.until(lambda: one.env_steps() >= 100, what="it is evaluated")
        one.kill("StoreRole")
        one.until(lambda: one.anew("store"), what="the store is started anew")
        one.until(lambda: one.env_steps() >= 200, within_s=120.0, what="practice goes on")
        one.finished()
        one.check_nothing_lost()


def test_an_algorithm_that_waits_for_what_never_comes(tmp_path: Path) -> None:
    """HG-DAgger learns from corrections, and here is nobody to give one."""
    layout = SIMULATED.replace("type: rlpd, batch_size: 32, hidden: [32, 32]", "type: hg_dagger, batch_size: 32")
    layout = layout.replace("type: gaussian_mlp, hidden: [32, 32]", "type: flow, hidden: 32")
    with world(tmp_path, layout=layout) as one:
        one.start("run.eval_every_steps=null")
        assert one.finished(within_s=300.0)["env_steps"] >= 400
