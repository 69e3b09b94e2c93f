"""The phases of a run with a fake runtime: which steps are executed, and what is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.figures import EpisodeScore
from dovetail.core.types import Outcome, Purpose, WeightSnapshot
from dovetail.learn.checkpoint import save_checkpoint
from dovetail.runs.folder import RunFolder
from dovetail.runs.ingest import DemoCounts
from dovetail.runs.roles.robot import EpisodeResult
from dovetail.runs.run import RunPhases
from dovetail.runs.status import RunStatus
from support.toy_run import TOY

ARM = ("robot",)


class FakeRuntime:
    """Executes nothing; records the steps. `outcomes` are those of all episodes, in order; the rest succeeds."""

    num_warmup_updates = 0
    num_labels_under_way = 0

    def __init__(
        self, *groups: tuple[str, ...], outcomes: Sequence[Outcome] = (), has_success: bool = True
    ) -> None:
        self.has_success, self.total_reward = has_success, 0.0
        self.status = RunStatus(name="r")
        self.groups = groups or (ARM,)
        self.on_checkpoint = lambda: None
        self.steps: list[Any] = []
        self.pending_labels = 0  # demonstrations that `wait_for_labels` accepts
        self.gone: set[tuple[str, ...]] = set()
        self._outcomes = list(outcomes)
        self._accepted, self._tried = 0, 0
        self._version = 0

    def start(self) -> None:
        self.steps.append("start")

    def close(self) -> None:
        self.steps.append("close")

    def report_status(self) -> None: ...

    def seconds(self) -> Mapping[str, float]:
        return {"acting": 1.0}

    def write_metrics(self, group: str, values: Mapping[str, float]) -> None:
        self.steps.append((group, dict(values)))

    def run_episodes(self, purpose: Purpose, wanted: Any, weights: WeightSnapshot | None) -> Any:
        self.steps.append((str(purpose), {group: list(indices) for group, indices in wanted.items()}))
        results = {}
        for group in wanted.keys() - self.gone:
            outcomes = [self._outcomes.pop(0) if self._outcomes else Outcome.SUCCESS for _ in wanted[group]]
            results[group] = [
                EpisodeResult(id=f"{purpose}-{number}", score=self._score(outcome), robot=group[0])
                for number, outcome in enumerate(outcomes)
            ]
            if purpose is Purpose.DEMO:
                self._tried += len(outcomes)
                self._accepted += outcomes.count(Outcome.SUCCESS)
        return results

    def _score(self, outcome: Outcome) -> EpisodeScore:
        success = outcome.success(has_success=self.has_success)
        return EpisodeScore(success=success, duration_s=2.0, reset_s=1.0, total_reward=self.total_reward)

    def demo_counts(self, group: Any = None) -> DemoCounts:
        pending = self._accepted + self.pending_labels
        return DemoCounts(accepted=self._accepted, accepted_or_pending=pending, tried=self._tried)

    def demos_at_once(self, group: Any) -> int:
        return 2

    def wait_for_labels(self, limit_s: float) -> None:
        self.steps.append("wait for labels")
        self._accepted, self.pending_labels = self._accepted + self.pending_labels, 0

    def is_gone(self, group: Any) -> bool:
        return group in self.gone

    def present_arms(self) -> list[str]:
        return [name for group in self.groups for name in group]

    @contextmanager
    def take_new_arms(self) -> Iterator[Any]:
        yield ()

    def clone(self) -> WeightSnapshot:
        self.steps.append("clone")
        return self.newest_weights()

    def newest_weights(self) -> WeightSnapshot:
        self._version += 1
        return WeightSnapshot(version=self._version, components={}, hashes={})

    @contextmanager
    def learning(self, start_from: int | None) -> Iterator[None]:
        self.steps.append(("learn", start_from))
        yield
        self.steps.append("save")
        self.on_checkpoint()

    def warm_up(self, num_updates: int) -> None:
        self.steps.append(("warm up", num_updates))

    def publish(self) -> None:
        self.steps.append("publish")

    def start_online(self) -> None:
        self.steps.append("start online")

    def advance(self) -> None:
        self.status.env_steps += 60

    def stop_online(self) -> None:
        self.steps.append("stop online")

    def finish_updates(self) -> None:
        self.steps.append("finish updates")

    def conclude(self, num_successes: int | None) -> None:
        self.steps.append(("conclude", num_successes))

    @contextmanager
    def paused(self) -> Iterator[WeightSnapshot]:
        yield self.newest_weights()

    def save_best(self, figure: Mapping[str, float], by: str) -> None:
        self.steps.append(("best", dict(figure), by))


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def make(runtime: FakeRuntime, *overrides: str) -> RunPhases:
        (tmp_path / "toy.yaml").write_text(TOY)
        path = tmp_path / "r"
        folder = (
            RunFolder.open(path)
            if path.exists()
            else RunFolder.create(path, load([tmp_path / "toy.yaml"], overrides))
        )
        return RunPhases(folder, runtime)  # type: ignore[arg-type]

    return make


def test_run_executes_all_steps_in_order(make: Any) -> None:
    runtime = FakeRuntime()
    make(runtime).run()
    assert [step for step in runtime.steps if not (isinstance(step, tuple) and step[0] == "evaluation")] == [
        "start",
        ("eval", {ARM: [0, 1]}),
        ("demo", {ARM: [0, 1]}),
        ("demo", {ARM: [2]}),
        "clone",
        ("eval", {ARM: [0, 1, 2, 3]}),
        ("learn", 1),
        ("warm up", 20),
        "start online",
        "stop online",
        "wait for labels",
        "finish updates",
        "save",
        ("eval", {ARM: [0, 1, 2, 3]}),
        ("conclude", 4),
        "close",
    ]


def test_resume_of_a_finished_run_executes_no_step(make: Any) -> None:
    make(FakeRuntime()).run()
    again = FakeRuntime()
    again._accepted = 3
    make(again).run()
    assert again.steps == ["start", ("conclude", 4), "close"]
    assert set(again.status.evaluations) == {"untrained", "cloning", "after"}


def test_train_learns_without_online_episodes_and_run_continues_from_it(make: Any) -> None:
    runtime = FakeRuntime()
    phases = make(runtime)
    phases.train()
    assert ("eval", {ARM: [0, 1]}) not in runtime.steps and "start online" not in runtime.steps
    assert runtime.steps[-4:-2] == ["save", ("eval", {ARM: [0, 1, 2, 3]})]
    assert phases._folder.read_json("evaluations/after.json")["offline"]
    again = FakeRuntime()
    again._accepted = 3
    make(again).run()
    assert "start online" in again.steps
    assert phases._folder.read_json("evaluations/trained.json")["offline"]


def test_train_without_demonstrations_is_refused(make: Any) -> None:
    with pytest.raises(UsageError, match="no demonstrations"):
        make(FakeRuntime(), "run.demos=0").train()


def test_failed_demonstrations_are_repeated_with_the_next_indices(make: Any) -> None:
    runtime = FakeRuntime(outcomes=(Outcome.FAILURE, Outcome.SUCCESS))
    make(runtime).collect(2)
    assert runtime.steps[1:-1] == [("demo", {ARM: [0, 1]}), ("demo", {ARM: [2]})]


def test_too_many_failed_demonstrations_end_the_run(make: Any) -> None:
    runtime = FakeRuntime(outcomes=(Outcome.FAILURE,) * 100)
    with pytest.raises(
        FailureError, match=r"only 0 of 1[34] demonstrations of task .* succeeded\. Raise task\.time_limit_s"
    ):
        make(runtime).collect(1)
    assert runtime.steps[-1] == "close"


def test_pending_labels_are_waited_for(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.runs.run._POLL_S", 0.0)
    runtime = FakeRuntime()
    runtime.pending_labels = 2
    make(runtime).collect(2)
    assert runtime.steps[1:-1] == ["wait for labels"]


def test_each_arm_group_demonstrates_and_is_evaluated(make: Any) -> None:
    runtime = FakeRuntime(("left", "right"), ("small",))
    phases = make(runtime, "run.demos=0")
    phases._evaluate("after", 3)
    evaluation = phases._folder.read_json("evaluations/after.json")
    assert evaluation["episodes"] == 6
    assert {arm: facts["episodes"] for arm, facts in evaluation["robots"].items()} == {"left": 3, "small": 3}


def test_group_that_is_gone_is_absent_in_the_evaluation(make: Any) -> None:
    runtime = FakeRuntime(("left",), ("small",))
    runtime.gone.add(("small",))
    phases = make(runtime, "run.demos=0")
    phases._evaluate("after", 3)
    evaluation = phases._folder.read_json("evaluations/after.json")
    assert evaluation["absent"] == ["small"] and evaluation["episodes"] == 3


def test_best_checkpoint_is_saved_before_its_evaluation_is_stored(make: Any, tmp_path: Path) -> None:
    """A run that is killed in between evaluates again."""
    scheduled = (
        "run.eval_every_steps=50",
        "run.scheduled_eval_episodes=2",
        "run.demos=0",
        "run.untrained_episodes=0",
    )

    class Killed(FakeRuntime):
        def save_best(self, figure: Mapping[str, float], by: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(Killed(), *scheduled).run()
    assert not list((tmp_path / "r" / "evaluations").glob("at-*"))
    runtime = FakeRuntime()
    make(runtime).run()
    assert ("best", {"success": 1.0}, "evaluation at-00000050") in runtime.steps
    assert (tmp_path / "r" / "evaluations" / "at-00000050.json").exists()


def test_recent_episodes_decide_the_best_without_a_schedule(make: Any) -> None:
    runtime = FakeRuntime()
    runtime.status.recent_success.extend([1.0] * 20)
    runtime.status.recent_human.extend([0.0] * 20)
    make(runtime).run()
    assert ("best", {"success": 1.0}, "recent practice") in runtime.steps


def test_without_success_the_return_decides_the_best(make: Any) -> None:
    runtime = FakeRuntime(has_success=False, outcomes=[Outcome.TIMEOUT] * 100)
    phases = make(runtime, "run.eval_every_steps=50", "run.scheduled_eval_episodes=2", "run.demos=0")
    for env_steps, total_reward, is_best in ((50, -900.0, True), (100, -1200.0, False), (150, -300.0, True)):
        runtime.total_reward, runtime.status.env_steps = total_reward, env_steps
        phases._evaluate_if_due()
        saved = ("best", {"return": total_reward}, f"evaluation at-{env_steps:08d}")
        assert (saved in runtime.steps) == is_best
        if is_best:  # as the learner would
            save_checkpoint(phases._folder.checkpoints / "best", {}, facts=saved[1])
    written = [values for group, values in (one for one in runtime.steps if one[0] == "evaluation")]
    assert [values["scheduled_return"] for values in written] == [-900.0, -1200.0, -300.0]
    assert not any("scheduled" in values for values in written)  # no success rate
    stored = phases._folder.read_json("evaluations/at-00000150.json")
    assert stored["rate"] is None and stored["return"]["mean"] == -300.0


def test_evaluation_has_cycle_time_and_throughput(make: Any) -> None:
    """Two of three succeed in 2 s each: 20 per minute of 6 s, 13.3 with three resets of 1 s."""
    runtime = FakeRuntime(outcomes=[Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.SUCCESS])
    phases = make(runtime, "run.demos=0")
    phases._evaluate("after", 3)
    stored = phases._folder.read_json("evaluations/after.json")
    assert stored["cycle_time_s"]["median"] == 2.0
    assert stored["per_minute"] == pytest.approx(20.0)
    assert stored["per_minute_with_resets"] == pytest.approx(2 / 9 * 60)
    ((_, written),) = [one for one in runtime.steps if one[0] == "evaluation"]
    assert written["after"] == pytest.approx(2 / 3)
    assert written["after_cycle_time_s"] == 2.0
    assert phases.status.evaluations["after"].cycle_time_s.count == 2


@pytest.mark.parametrize(("mean_return", "solved"), [(None, False), (-300.0, False), (-500.0, True)])
def test_without_success_the_stop_rule_uses_the_return(make: Any, mean_return: float | None, solved: bool) -> None:
    runtime = FakeRuntime()
    rule = f"run.stop_when_solved={{window: 2, mean_return: {'null' if mean_return is None else mean_return}}}"
    phases = make(runtime, rule)
    for total_reward in (-2000.0, -600.0, -200.0):
        score = EpisodeScore(success=None, duration_s=1.0, total_reward=total_reward)
        runtime.status.remember_score(score, human_share=0.0, has_success=False)
    helped = EpisodeScore(success=None, duration_s=1.0, total_reward=0.0)
    runtime.status.remember_score(helped, human_share=0.5, has_success=False)
    assert phases._is_solved() == solved


def test_progress_adds_up_over_processes(make: Any) -> None:
    for _ in range(2):
        runtime = FakeRuntime()
        runtime._accepted = 3
        runtime.status.updates = 7
        phases = make(runtime)
        phases.collect(3)
    progress = phases._folder.read_json("progress.json")
    assert progress["phases"] == {"acting": 2.0}


def test_solved_by_all_present_arms(make: Any) -> None:
    runtime = FakeRuntime(("left",), ("small",))
    phases = make(runtime, "run.stop_when_solved={window: 1, success_rate: 1.0}")
    assert not phases._is_solved()
    for name in ("left", "small"):
        arm = runtime.status.robots.setdefault(name, _Solved())  # type: ignore[arg-type]
        assert phases._is_solved() == (name == "small")
        assert arm is not None


class _Solved:
    env_steps = 10
    has_success = True

    def unassisted_rate(self, window: int) -> float:
        return 1.0
