"""An arm on a machine of its own: it comes after the run has begun, leaves while it practises, and comes back."""

import json
import os
import signal
import subprocess
import sys

import pytest
import yaml

from dovetail.episodes.log import EpisodeLog
from dovetail.runtime.ray.cluster.joining import leave
from support.lab import dovetail, lab_file, until
from support.toy_run import TOY

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path):
    path = lab_file(tmp_path)
    config = yaml.safe_load(path.read_text())
    config["cluster"] |= {
        "min_robots": 1,
        "robot_timeout_s": 300,
        "learner": {"resources": {"training": 1}},
        "robots": {"here": {"machine": "desk"}, "there": {"machine": "cell"}},
    }
    path.write_text(yaml.safe_dump(config))
    yield path
    for name in ("cell", "desk"):
        leave(name)


def joined(path, name):
    done = dovetail("cluster", "join", path, "--as", name)
    assert done.returncode == 0, done.stderr


def test_an_arm_comes_late_leaves_and_comes_back(lab, tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)
    joined(lab, "desk")
    words = ["run", "toy.yaml", str(lab), "runtime=ray", "run.env_steps=1000000", "--name", "r"]
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(
            [sys.executable, "-m", "dovetail.cli", *words, "--quiet"],
            cwd=tmp_path,
            stderr=said,
            env=dict(os.environ),
        )

    def events(kind, **facts):
        assert run.poll() is None, (tmp_path / "said").read_text()[-2000:]
        path = tmp_path / "runs/r/events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        told = [json.loads(line) for line in lines if line.endswith("}")]
        return [one for one in told if one["event"] == kind and facts.items() <= one.items()]

    try:
        until(lambda: events("robot missing", name="there"), seconds=600)
        until(lambda: len(events("episode", robot="here")) > 3, seconds=600)
        assert not events("episode", robot="there")

        joined(lab, "cell")
        until(lambda: events("robot", name="there"), seconds=600)
        until(lambda: len(events("episode", robot="there")) > 3, seconds=600)

        assert dovetail("cluster", "leave", lab, "--as", "cell").returncode == 0
        until(lambda: events("lost", role="there"), seconds=300)
        so_far, mine = len(events("episode", robot="there")), len(events("episode", robot="here"))
        until(lambda: len(events("episode", robot="here")) > mine + 3, seconds=300)  # the other goes on

        joined(lab, "cell")
        until(lambda: events("started anew", role="there"), seconds=600)
        until(lambda: len(events("episode", robot="there")) > so_far + 3, seconds=600)
        shown = dovetail("cluster", "status", lab)
        assert "there" in shown.stdout
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(120)
    spools = [list((tmp_path / f"runs/r/robots/{name}/spool").glob("*")) for name in ("here", "there")]
    assert spools == [[], []]  # also what it had not delivered when it left
    log = EpisodeLog(tmp_path / "runs/r/episodes")
    assert len(log.ids()) == len(set(log.ids()))
    for episode_id in log.ids():
        log.verify(episode_id)
