"""The phases of a run with a fake runtime: which steps are executed, and what is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.types import Outcome, Purpose, WeightSnapshot
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

    def __init__(self, *groups: tuple[str, ...], outcomes: tuple[Outcome, ...] = ()) -> None:
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
                EpisodeResult(id=f"{purpose}-{number}", outcome=outcome, robot=group[0])
                for number, outcome in enumerate(outcomes)
            ]
            if purpose is Purpose.DEMO:
                self._tried += len(outcomes)
                self._accepted += outcomes.count(Outcome.SUCCESS)
        return results

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

    @contextmanager
    def paused(self) -> Iterator[WeightSnapshot]:
        yield self.newest_weights()

    def save_best(self, success: float, by: str) -> None:
        self.steps.append(("best", success, by))


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
        "close",
    ]


def test_resume_of_a_finished_run_executes_no_step(make: Any) -> None:
    make(FakeRuntime()).run()
    again = FakeRuntime()
    again._accepted = 3
    make(again).run()
    assert again.steps == ["start", "close"]
    assert set(again.status.rates) == {"untrained", "cloning", "after"}


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
        def save_best(self, success: float, by: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(Killed(), *scheduled).run()
    assert not list((tmp_path / "r" / "evaluations").glob("at-*"))
    runtime = FakeRuntime()
    make(runtime).run()
    assert ("best", 1.0, "evaluation at-00000050") in runtime.steps
    assert (tmp_path / "r" / "evaluations" / "at-00000050.json").exists()


def test_recent_episodes_decide_the_best_without_a_schedule(make: Any) -> None:
    runtime = FakeRuntime()
    runtime.status.recent_success.extend([1.0] * 20)
    runtime.status.recent_human.extend([0.0] * 20)
    make(runtime).run()
    assert ("best", 1.0, "recent practice") in runtime.steps


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

    def unassisted_rate(self, window: int) -> float:
        return 1.0
