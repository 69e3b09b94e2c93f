"""A hidden success of a simulated task does not reach online episodes."""

import pytest

from dovetail.config.load import load
from dovetail.core.errors import UsageError
from dovetail.core.types import Outcome, Purpose
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.hidden_success import HiddenSuccess
from dovetail.runs.roles.robot import order_episode
from support.toy_run import TOY


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)
    return tmp_path / "toy.yaml"


def episode_of(assembly, purpose):
    return assembly.actor_for(purpose).run(order_episode(assembly, purpose=purpose, index=0, config_hash=""))


def helped(toy, *, hide):
    """A scripted operator who takes over at once and reaches the goal."""
    person = (
        "operator={type: scripted, watched_share: 1.0, stuck_after_steps: 1, min_progress: 1.0, "
        "min_takeover_steps: 30, max_takeover_steps: 30}"
    )
    return build_assembly(load([toy], [person, f"labeling.hide_success={str(hide).lower()}"]))


def test_online_episode_continues_until_the_time_limit(toy):
    shown = episode_of(helped(toy, hide=False), Purpose.ONLINE)
    hidden = episode_of(helped(toy, hide=True), Purpose.ONLINE)
    assert shown.outcome is Outcome.SUCCESS
    assert len(shown) < 30
    assert hidden.outcome is Outcome.TIMEOUT
    assert hidden.judgement is None
    assert len(hidden) == 30
    assert hidden.column("metric/distance")[-1] < 0.02  # the metrics show that the task was solved
    assert not hidden.column("reward/success").any()


def test_demonstrations_and_evaluations_see_success(toy):
    assembly = helped(toy, hide=True)
    assert assembly.workcell.task_for(Purpose.EVAL) is assembly.task
    assert episode_of(assembly, Purpose.DEMO).outcome is Outcome.SUCCESS


def test_task_without_max_steps_is_refused(toy):
    class Endless:
        spec = helped(toy, hide=False).task.spec

    with pytest.raises(UsageError, match="has no max_steps"):
        HiddenSuccess(Endless())
