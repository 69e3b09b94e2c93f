"""The table task in collect, run and eval, on robots of every kind, with a person or a labeler as the judge."""

import json
import os
import re
import time
from typing import ClassVar

import numpy as np
import pytest

from dovetail.api import evaluate
from dovetail.api.readiness import refuse_unready
from dovetail.cli.main import main
from dovetail.config.load import load
from dovetail.config.model import Config
from dovetail.config.safety import SafetyConfig
from dovetail.config.schema import PluginSection
from dovetail.core.types import EpisodeOrder, Event, HumanInput, Labels, Outcome, Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.human.device import VerdictsOnly
from dovetail.live.link import LiveLink
from dovetail.live.view import LiveView
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.workcell import build_workcell
from dovetail.runs.roles.robot import evaluation_episodes
from support import TESTS
from support.waiting import wait_until

PERSON = "support.table_person:TablePerson"
COMMON = f"""
task: {{type: table, prompt: put it there, time_limit_s: 2, ask: place the part}}
operator: {{type: "{PERSON}", start_at: 8, judge_at: 14}}
policy: {{type: gaussian_mlp, hidden: [16]}}
algorithm: {{type: rlpd, batch_size: 16, hidden: [16]}}
learner: {{utd: 0.2, warmup_updates: 3, bc_updates: 3}}
run: {{demos: 2, env_steps: 30, eval_episodes: 2, untrained_episodes: 0, video_episodes: 0}}
"""
JOINTS = "[0.0, 0.009, 0.0, -2.3, 0.0, 2.3, 0.6]"
ROBOTS = {
    "mobile": 'robot: {type: "dovetail.testing.mobile_arm:FakeMobileArm", control_hz: 20}\n'
    "policy: {inputs: [joint_pos]}\ntask: {home: {parts: {arm: [0.5, -0.5]}}}",
    "sim": "robot: {type: sim}\npolicy: {inputs: [ee_pose]}\n"
    "task: {home: {parts: {arm: [0.45, 0.05, 0.2, 0, 1, 0, 0], gripper: [1]}}}",
    "sim, joints": f"robot: {{type: sim, action: joint}}\npolicy: {{inputs: [joint_pos]}}\n"
    f"task: {{home: {{parts: {{arm: {JOINTS}}}, speed: 0.5}}}}",
}


def written(folder, robot, *more):
    sources = []
    for number, text in enumerate((COMMON, ROBOTS[robot], *more)):
        sources.append(folder / f"{number}.yaml")
        sources[-1].write_text(text)
    return [str(source) for source in sources]


@pytest.mark.parametrize("robot", list(ROBOTS))
def test_collect_run_and_eval(robot, tmp_path, capfd):
    runs, sources = str(tmp_path / "runs"), written(tmp_path, robot)
    assert main(["collect", *sources, "--runs-dir", runs, "--name", "a"]) == 0, capfd.readouterr().err
    assert "place the part. Then press start" in capfd.readouterr().out
    assert main(["run", "--resume", "a", "--runs-dir", runs, "--quiet"]) == 0, capfd.readouterr().err
    report = json.loads((tmp_path / "runs/a/report.json").read_text())
    assert report["demos"] == 2
    assert report["success_after"]["rate"] == 1.0  # the person pressed success in both evaluation episodes
    lost = evaluate("a", [f"operator={{type: '{PERSON}', verdict: failure}}"], num_episodes=2, runs_dir=runs)
    assert lost.success_rate == 0.0
    late = evaluate("a", [f"operator={{type: '{PERSON}', verdict: ''}}"], num_episodes=1, runs_dir=runs)
    assert late.success_rate == 0.0  # nobody pressed success within the time limit


@pytest.mark.extended
def test_collect_in_processes(tmp_path, capfd, monkeypatch):
    """The control process moves home, asks and waits; the supervisor's terminal shows the request."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    runs, sources = str(tmp_path / "runs"), written(tmp_path, "sim")
    assert main(["collect", *sources, "actor.layout=processes", "--runs-dir", runs, "--name", "a"]) == 0
    assert "place the part. Then press start" in capfd.readouterr().out
    log = EpisodeLog(tmp_path / "runs/a/episodes")
    for episode_id in log.ids():
        episode = log.load(episode_id)
        assert episode.outcome is Outcome.SUCCESS and episode.reset_s > 0.5
        np.testing.assert_allclose(episode.column("observation/ee_pose")[0, :3], (0.45, 0.05, 0.2), atol=0.006)


def test_a_run_in_which_nothing_tells_success_is_refused_in_one_line(tmp_path, capfd):
    sources = written(tmp_path, "mobile", "operator: {type: none}\nrun: {demos: 0}")
    assert main(["run", *sources, "--runs-dir", str(tmp_path / "runs")]) != 0
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert "does not detect success" in line and "operator.type" in line and "labels" in line
    assert not (tmp_path / "runs").exists()
    with pytest.raises(Exception, match="does not detect success"):  # `outcome` is sure of every timeout
        refuse_unready(load(sources, ["labels=[outcome, human]"]))
    refuse_unready(load(sources, ["labels=[{type: outcome, timeout_confidence: 0.0}, {type: human}]"]))


class SeesConfig(Config):
    """A labeler that looks at the last observation."""

    success: bool = True
    """Its answer."""


class Sees:
    Config: ClassVar[type[SeesConfig]] = SeesConfig
    version = "1"

    def __init__(self, config):
        self._config = config

    def label(self, episode):
        zeros = np.zeros(len(episode), np.float32)
        return Labels(
            episode_id=episode.id,
            rewards=zeros,
            discounts=zeros + 1,
            success=self._config.success,
            confidence=1.0,
            labeler="sees",
            version="1",
        )


@pytest.mark.parametrize("answer", [True, False])
def test_evaluations_that_no_person_judged_are_judged_by_the_labelers(answer, tmp_path):
    sees = f"labels: [{{type: '{__name__}:Sees', success: {answer}}}]".replace("True", "true").replace(
        "False", "false"
    )
    sources = written(tmp_path, "mobile", "operator: {type: none}\ntask: {ask: null}\n" + sees)
    assembly = build_assembly(load(sources))
    try:
        (episode,) = evaluation_episodes(assembly, None, num_episodes=1, config_hash="h")
        assert episode.outcome is Outcome.TIMEOUT
        assert assembly.score(episode).success is answer
    finally:
        assembly.close()


def test_an_evaluation_passes_verdicts_of_a_person_but_no_driving():
    def workcell(task):
        return build_workcell(
            task=PluginSection.parse("task", task),
            robot=PluginSection.parse("robot", {"type": "dovetail.testing.fakes:FakeArm"}),
            safety=SafetyConfig(),
        )

    person = PluginSection.parse("operator", {"type": PERSON, "start_at": 1, "judge_at": 4})
    table = workcell({"type": "table", "prompt": "x"})
    operator = table.operator(Purpose.EVAL, person, demo_noise=0.0)
    assert isinstance(operator, VerdictsOnly)
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    observation = table.robot.observe()
    polled = [operator.poll(observation) for _ in range(4)]
    assert [one.event for one in polled] == [Event.START, None, None, Event.SUCCESS]
    assert all(one.action is None for one in polled)
    reach = workcell({"type": "dovetail.testing.fakes:FakeTask"})  # this task judges itself
    operator = reach.operator(Purpose.EVAL, person, demo_noise=0.0)
    assert [operator.poll(observation) for _ in range(4)] == [HumanInput()] * 4


@pytest.mark.parametrize(
    ("judge_at", "end"), [(14, r"robot: success after 0\.\d s"), (1000, "robot: timeout after 2.0 s")]
)
def test_terminal_says_how_an_episode_ended(tmp_path, judge_at, end):
    lines = []
    assembly = build_assembly(
        load(written(tmp_path, "mobile", f"operator: {{type: '{PERSON}', start_at: 8, judge_at: {judge_at}}}")),
        live=lambda spec: LiveLink(tmp_path, robot=spec, announce=lines.append),
    )
    try:
        actor = assembly.actor_for(Purpose.DEMO)
        assert (
            actor.run(EpisodeOrder(id="one", purpose=Purpose.DEMO, seed=0, index=0, config_hash="0")) is not None
        )
        actor.close()
    finally:
        assembly.close()
    assert re.fullmatch(end, lines[-1])
    assert "place the part" in lines[-2]


def test_the_request_reaches_terminal_and_console(tmp_path):
    lines = []
    assembly = build_assembly(
        load(written(tmp_path, "mobile", f"operator: {{type: '{PERSON}', start_at: 100}}")),
        live=lambda spec: LiveLink(tmp_path, robot=spec, announce=lines.append),
    )
    (tmp_path / "config.yaml").write_text("")
    try:
        actor, board = assembly.actor_for(Purpose.EVAL), assembly._boards[0]
        board.ask_person("place the part. Then press start")
        board.ticked(time.monotonic_ns())
        view = LiveView.attach(tmp_path)
        state = view.state()
        assert (state.control, state.reason) == ("paused", "place the part. Then press start")
        assert state.request == state.reason
        wait_until(lambda: any("place the part" in line and "dovetail console" in line for line in lines))
        board.ask_person("")
        assert view.state().request == ""
        view.close()
        actor.close()
    finally:
        assembly.close()
