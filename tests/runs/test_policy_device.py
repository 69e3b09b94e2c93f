"""`policy.device` and `policy.num_threads` reach the policy wherever it acts, before its first tick."""

import os

import pytest
import torch

from dovetail.api.checks import fit_problems
from dovetail.api.policy import following_policy, load_policy
from dovetail.api.weights import find_weights
from dovetail.config.load import load
from dovetail.core.errors import ConfigError, UsageError
from dovetail.core.types import EpisodeOrder, Purpose
from dovetail.robot_host.host import RobotHost
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from support import TESTS
from support.reporting_policy import read_reports
from support.toy_run import TOY

GPU = torch.cuda.is_available()
OTHER = "cuda:0" if GPU else "cpu"  # what `auto` is


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))  # for the inference process

    def make(*overrides):
        path = tmp_path / "toy.yaml"
        report = f"policy: {{type: 'support.reporting_policy:ReportingPolicy', report: {tmp_path / 'report'}}}"
        path.write_text(TOY.replace("policy: {type: gaussian_mlp, hidden: [32, 32]}", report))
        return load([path], list(overrides))

    before = torch.get_num_threads()
    yield make
    torch.set_num_threads(before)


CHOSEN = ("policy.device=auto", "policy.num_threads=2")


@pytest.mark.parametrize(
    ("layout", "settings", "expected"),
    [
        ("one_process", (), {"moved_to": "cpu", "device": "cpu", "num_threads": 1}),
        ("one_process", CHOSEN, {"moved_to": OTHER, "device": OTHER, "num_threads": 2}),
        ("processes", CHOSEN, {"moved_to": OTHER, "device": OTHER, "num_threads": 2}),
    ],
)
def test_policy_of_an_arm_computes_where_it_should(config, tmp_path, layout, settings, expected):
    assembly = build_assembly(config(f"actor.layout={layout}", *settings))
    try:
        actor = assembly.actor_for(Purpose.EVAL)
        if isinstance(actor, RobotHost):
            actor.start()
        reports = read_reports(tmp_path / "report")  # before the first episode
        assert reports
        for report in reports:
            assert (report.pop("pid") == os.getpid()) == (layout == "one_process")
            assert report == expected
        assert actor.run(EpisodeOrder(id="e", purpose=Purpose.EVAL, seed=1, index=0, config_hash="0")) is not None
    finally:
        assembly.close()


def test_served_policy_computes_where_it_should(config, tmp_path):
    run = InlineRun(RunFolder.create(tmp_path / "run", config("run.env_steps=1")))
    run.run()
    (tmp_path / "report").unlink()
    source = find_weights(str(tmp_path / "run"), version=None, runs_dir=tmp_path)
    following_policy(source, log=lambda line: None)
    assert {(r["moved_to"], r["num_threads"]) for r in read_reports(tmp_path / "report")} == {("cpu", 1)}
    (tmp_path / "report").unlink()
    following_policy(source, log=lambda line: None, place={"device": "auto", "num_threads": 2})
    assert {(r["moved_to"], r["num_threads"]) for r in read_reports(tmp_path / "report")} == {(OTHER, 2)}
    with pytest.raises(UsageError, match=r"policy\.device is 'cuda:99'"):
        following_policy(source, log=lambda line: None, place={"device": "cuda:99"})
    with pytest.raises(ConfigError, match="device"):
        following_policy(source, log=lambda line: None, place={"device": "tpu"})
    folder = RunFolder.open(tmp_path / "run")
    folder.lock()
    folder.change({"policy.num_threads": 3})  # a resumed run on another machine
    folder.unlock()
    (tmp_path / "report").unlink()
    load_policy(find_weights(str(tmp_path / "run"), version=None, runs_dir=tmp_path))
    assert {r["num_threads"] for r in read_reports(tmp_path / "report")} == {3}


@pytest.mark.parametrize("layout", ["one_process", "processes"])
def test_missing_gpu_is_refused_before_anything_moves(config, layout):
    chosen = config("policy.device=cuda:99", f"actor.layout={layout}")
    message = r"^policy\.device is 'cuda:99', but torch finds (no|\d+) GPUs\. Set policy\.device=cpu or policy\.device=auto$"
    assert str(fit_problems(chosen)[0]).startswith("policy.device is 'cuda:99'")
    assembly = build_assembly(chosen)
    try:
        for purpose in Purpose:
            with pytest.raises(UsageError, match=message):
                assembly.actor_for(purpose)
        assert assembly.robot.command_times[0] == 0
    finally:
        assembly.close()


def test_unknown_device_is_refused_by_the_config(config):
    with pytest.raises(ConfigError, match=r"policy\.device"):
        config("policy.device=tpu")


def test_learner_keeps_its_own_device(config):
    assembly = build_assembly(config("policy.device=auto", "device=cpu"))
    try:
        policy = assembly.trainable()
        assert next(policy.components["actor"].parameters()).device.type == "cpu"
    finally:
        assembly.close()
