"""Runs with `run.distill_every`: rounds, lineage, rejected distillations, and kills between any two steps."""

import json

import pytest

import dovetail
from dovetail.api import rounds as api
from dovetail.api.deployment import deployment_of, reject
from dovetail.config.load import load
from dovetail.core.errors import Interrupted, UsageError
from dovetail.core.sequential_test import Answer
from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.folder import RunFolder
from dovetail.runs.rounds import Rounds

WORLD = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 30, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm"}
"""
BASE = (
    WORLD
    + """
policy: {type: flow, hidden: 16, num_layers: 1, horizon: 4, num_flow_steps: 2}
algorithm: {type: imitation}
learner: {bc_updates: 0, warmup_updates: 20}
run: {demos: 3, env_steps: 0, eval_episodes: 2, untrained_episodes: 0, video_episodes: 0}
"""
)
RESIDUAL = (
    WORLD
    + """
operator: {type: scripted, watched_share: 1.0, stuck_after_steps: 4}
policy: {type: residual, base: {run: BASE}, hidden: [16]}
algorithm: {type: residual, batch_size: 32, hidden: [32], base_updates: 20, growth_updates: 40, bc_weight: 1.0}
learner: {utd: 1, warmup_updates: 10, bc_updates: 0}
run: {demos: 2, env_steps: 100, eval_episodes: 2, untrained_episodes: 0, video_episodes: 0, distill_every: 60,
      distill_updates: 5}
deploy: {every_episodes: 1000, max_pairs: 10, margin: 60}
"""
)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    (folder / "base.yaml").write_text(BASE)
    return dovetail.train([folder / "base.yaml"], runs_dir=folder, name="base").path


@pytest.fixture
def launch(tmp_path, base):
    (tmp_path / "residual.yaml").write_text(RESIDUAL.replace("BASE", str(base)))

    def launch(*overrides, resume=None, **options):
        if resume is not None:
            return dovetail.run(resume=resume, runs_dir=tmp_path, **options)
        return dovetail.run([tmp_path / "residual.yaml"], list(overrides), runs_dir=tmp_path, name="r", **options)

    return launch


@pytest.fixture
def answers(monkeypatch):
    """The answers of the gate, in order."""
    planned = []

    def offer(run, candidate, gate, **options):
        answer = planned.pop(0)
        return {"change": "deployed" if answer == Answer.NOT_WORSE else "rejected", "answer": answer}

    monkeypatch.setattr(api, "offer", offer)
    return planned


def online_steps(run):
    log = EpisodeLog(run / "episodes")
    infos = [log.manifest(one) for one in log.ids()]
    return sum(info.num_steps for info in infos if info.purpose is Purpose.ONLINE)


def made(run):
    return json.loads((run / "rounds.json").read_text())["made"]


def test_two_rounds_with_the_real_gate(launch, tmp_path, base):
    run = launch()
    assert run.path.name == "r-round-2"
    first, second = made(tmp_path / "r"), made(tmp_path / "r-round-2")
    assert [(one["base"], one["answer"], one["successor"]) for one in first + second] == [
        ("r-base-1", "not worse", "r-round-2"),
        ("r-base-2", second[0]["answer"], None),
    ]
    lineage = json.loads((tmp_path / "r-round-2/lineage.json").read_text())
    assert (lineage["run"], lineage["base"], lineage["round"]) == (
        str(tmp_path / "r"),
        str(tmp_path / "r-base-1"),
        2,
    )
    assert json.loads((tmp_path / "r-base-1/lineage.json").read_text())["into"].startswith(str(base))
    assert json.loads((tmp_path / "r-base-2/lineage.json").read_text())["into"].startswith(
        str(tmp_path / "r-base-1")
    )
    assert dovetail.open(run.path).config.policy.config.base == {"run": str(tmp_path / "r-base-1")}
    budget = dovetail.open(run.path).config.run.env_steps
    assert budget == 100 - online_steps(tmp_path / "r") and online_steps(run.path) >= budget
    assert (run.path / "report.json").exists() and not (tmp_path / "r/report.json").exists()


@pytest.mark.extended
def test_residual_of_a_new_round_starts_from_zero(launch, tmp_path, answers):
    answers += [Answer.NOT_WORSE, Answer.NOT_WORSE]
    launch("run.untrained_episodes=1")
    log = EpisodeLog(tmp_path / "r-round-2/episodes")
    first = log.load(log.ids()[0])
    assert first.purpose is Purpose.EVAL  # before it learned: the executed actions are those of the new base
    assert (first.column("proposed") == first.column("observation/proposal")).all()


@pytest.mark.extended
def test_rejected_distillation_learns_on_in_the_same_run(launch, tmp_path, answers):
    answers += [Answer.WORSE, Answer.CANNOT_TELL]
    run = launch()
    assert run.path.name == "r" and online_steps(run.path) >= 100
    assert [(one["base"], one["answer"], one["successor"]) for one in made(run.path)] == [
        ("r-base-1", "worse", None),
        ("r-base-2", "cannot tell", None),
    ]
    assert made(run.path)[0]["env_steps"] < 100 <= made(run.path)[1]["env_steps"]
    events = [event["base"] for event in dovetail.open(run.path).events("distillation")]
    assert events == ["r-base-1", "r-base-2"]


@pytest.mark.extended
@pytest.mark.parametrize("step", ["train_candidate", "offer", "_successor", "train"])
def test_killed_round_continues(launch, tmp_path, answers, monkeypatch, step):
    """The process dies before or in the middle of a step of the first distillation."""
    answers += [Answer.NOT_WORSE] * 3
    target = "dovetail.api.distilled_candidate.train" if step == "train" else f"dovetail.api.rounds.{step}"
    with monkeypatch.context() as patched:
        patched.setattr(target, _die)
        with pytest.raises(_KilledError):
            launch()
    run = launch(resume="r")
    assert run.path.name == "r-round-2"
    assert [one["base"] for one in made(tmp_path / "r")] == ["r-base-1"]
    names = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert names == {"r", "r-base-1", "r-round-2", "r-base-2"}
    assert launch(resume="r").path.name == "r-round-2"  # all rounds are over: nothing happens
    assert len(made(tmp_path / "r-round-2")) == 1


@pytest.mark.extended
def test_gate_of_a_person_decides_about_a_distillation(launch, tmp_path):
    """The comparison alone would deploy it."""

    def waits(name):
        if not (tmp_path / "r/deployment.json").exists():
            return False
        state = deployment_of(tmp_path / "r")
        return name in (state.candidate or "") and state.comparison is not None

    with pytest.raises(Interrupted, match="waits for a person"):
        launch("deploy.gate=person", should_stop=lambda: waits("r-base-1"))
    assert "r-base-1" not in deployment_of(tmp_path / "r").deployed.weights
    assert not made(tmp_path / "r") and not (tmp_path / "r-round-2").exists()
    reject(tmp_path / "r", by="Ada")
    with pytest.raises(Interrupted, match="waits for a person"):  # the last one waits, too
        launch(resume="r", should_stop=lambda: waits("r-base-2"))
    assert [(one["base"], one["answer"]) for one in made(tmp_path / "r")] == [("r-base-1", "rejected by Ada")]
    assert online_steps(tmp_path / "r") >= 100  # it learned on


class _KilledError(RuntimeError):
    pass


def _die(*arguments, **options):
    raise _KilledError


@pytest.mark.extended
def test_half_copied_base_is_made_again(launch, tmp_path, answers):
    answers += [Answer.NOT_WORSE] * 2
    (tmp_path / "r-base-1").mkdir()
    (tmp_path / "r-base-1/config.yaml").write_text("half")
    assert launch().path.name == "r-round-2"


def test_settings_without_a_base_are_refused(launch, tmp_path):
    with pytest.raises(UsageError, match="needs a policy with a base"):
        dovetail.run(["push-cube"], ["run.distill_every=5"], runs_dir=tmp_path, name="p")
    assert not (tmp_path / "p").exists()


def test_served_base_needs_a_policy_to_distill_into(tmp_path):
    served = RESIDUAL.replace("{run: BASE}", '{type: openpi, address: "127.0.0.1:1", keys: lerobot, horizon: 4}')
    (tmp_path / "served.yaml").write_text(served)
    folder = RunFolder.create(tmp_path / "s", load([tmp_path / "served.yaml"]))
    with pytest.raises(UsageError, match=r"Set run\.distill_into to a run or recipe"):
        Rounds(folder).check()
    Rounds(RunFolder.create(tmp_path / "t", load([tmp_path / "served.yaml"], ["run.distill_into=base"]))).check()
