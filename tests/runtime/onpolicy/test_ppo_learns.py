"""The PPO recipe improves its policy. Minutes on an idle core, up to an hour on a busy one."""

import pytest

from dovetail.config.load import load
from dovetail.reports.report import write_report
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_recipe_improves_the_initial_policy(tmp_path, seed):
    folder = RunFolder.create(tmp_path / "run", load(["push-cube-ppo"], [f"run.seed={seed}"]))
    InlineRun(folder).run()
    report = write_report(folder)
    before = report.success_before or report.untrained
    assert before is not None
    assert report.success_after is not None
    assert report.success_after.episodes == 100
    assert report.success_after.low > before.high
    assert report.env_steps > 0
    assert report.episodes > 0


@pytest.mark.slow
@pytest.mark.xfail(reason="so far only the tuning seed 100 was run, up to step 194,000", strict=False)
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_ppo_with_flow_sde_lifts_a_cloned_flow_by_20_points(tmp_path, seed):
    folder = RunFolder.create(tmp_path / "run", load(["push-cube-ppo-flow"], [f"run.seed={seed}"]))
    InlineRun(folder).run()
    report = write_report(folder)
    assert report.success_before is not None
    assert report.success_after is not None
    assert report.success_after.rate >= report.success_before.rate + 0.2
