"""Metrics go to TensorBoard, and to Weights & Biases if configured."""

import sys
import types

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dovetail.config.load import load
from dovetail.core.errors import UsageError
from dovetail.learn.metrics import MetricsLog
from dovetail.reports.report import write_report
from dovetail.runs.folder import RunFolder
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runtime.inline import InlineRun
from support.toy_run import TOY


class FakeWandb(types.ModuleType):
    """Records its calls."""

    def __init__(self):
        super().__init__("wandb")
        self.started, self.logged, self.finished, self.metrics = [], [], 0, []

    def init(self, **settings):
        self.started.append(settings)
        return self

    def define_metric(self, name, *, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def scalars(folder):
    found = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_and_wandb_get_the_same_values(tmp_path, wandb):
    log = MetricsLog(tmp_path / "logs", wandb="arms", name="first-try", config={"run": {"seed": 3}})
    assert wandb.started == []  # a run that never starts leaves nothing there either
    log.write("online", {"success": 0.5}, step=7)
    log.write("learner", {}, step=7)
    log.close()
    (settings,) = wandb.started
    assert settings["project"] == "arms"
    assert settings["id"] == settings["name"] == "first-try"
    assert settings["resume"] == "allow"
    assert settings["config"] == {"run": {"seed": 3}}
    assert settings["dir"] == str(tmp_path / "logs")
    assert wandb.metrics == [("*", "env_steps")]
    assert wandb.logged == [{"online/success": 0.5, "env_steps": 7}]
    assert wandb.finished == 1
    assert scalars(tmp_path / "logs") == {"online/success": [(7, 0.5)]}


def test_missing_wandb_raises_usage_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"pip install 'dovetail\[wandb\]'"):
        MetricsLog(tmp_path, wandb="arms")
    MetricsLog(tmp_path).close()


def test_phase_times_per_lap(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("dovetail.runs.phase_times.time.monotonic", lambda: now[0])
    phases = PhaseTimes()
    phases.add({"acting": 10.0})
    phases.lap(env_steps=100, updates=400)
    with phases.phase("acting"):
        now[0] += 3.0
        with phases.phase("saving"):  # counted where it is inside
            now[0] += 1.0
    phases.add({"sampling": 0.5, "updating": 1.5})
    spent, rates = phases.lap(env_steps=112, updates=440)
    assert spent == {"acting_s": 4.0, "sampling_s": 0.5, "updating_s": 1.5}
    assert rates == {"env_steps_per_s": 12 / 6.0, "updates_per_s": 40 / 2.0}
    assert phases.seconds["acting"] == 14.0


def test_run_logs_phase_times_and_task_rewards(tmp_path, wandb):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    InlineRun(RunFolder.create(tmp_path / "a", load([path], ["run.env_steps=60", "run.wandb=arms"]))).run()
    found = scalars(tmp_path / "a" / "logs")
    spent = {"acting", "labelling", "adding", "sampling", "updating", "publishing"}
    assert {f"time/{name}_s" for name in spent} <= found.keys()
    assert {"throughput/env_steps_per_s", "throughput/updates_per_s", "learner/skipped_updates"} <= found.keys()
    assert any(tag.startswith("online/reward/") for tag in found)
    assert {
        "recent/return",
        "recent/per_minute",
        "evaluation/after",
        "evaluation/after_per_minute",
    } <= found.keys()
    assert any("online/success" in values for values in wandb.logged)
    assert any("evaluation/after_return" in values for values in wandb.logged)
    report = write_report(RunFolder.open(tmp_path / "a")).to_json()
    assert spent <= report["phase_s"].keys()
    assert all(value >= 0.0 for value in report["phase_s"].values())
    assert sum(report["phase_s"].values()) <= report["wall_s"]
