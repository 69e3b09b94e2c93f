"""An arm on another machine joins after the start of the run, leaves during learning, and joins again."""

import json
import os
import signal
import subprocess
import sys

import pytest
import yaml

from dovetail.episodes.log import EpisodeLog
from dovetail.runtime.ray.cluster.joining import leave
from support.lab import dovetail, lab_file
from support.toy_run import TOY
from support.waiting import wait_until

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


def join(path, name):
    done = dovetail("cluster", "join", path, "--as", name)
    assert done.returncode == 0, done.stderr


def test_arm_joins_late_leaves_and_joins_again(lab, tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)
    join(lab, "desk")
    words = ["run", "toy.yaml", str(lab), "runtime=ray", "run.env_steps=1000000", "--name", "r"]
    with (tmp_path / "stderr").open("wb") as stderr:
        run = subprocess.Popen(
            [sys.executable, "-m", "dovetail.cli", *words, "--quiet"],
            cwd=tmp_path,
            stderr=stderr,
            env=dict(os.environ),
        )

    def events(kind, **facts):
        assert run.poll() is None, (tmp_path / "stderr").read_text()[-2000:]
        path = tmp_path / "runs/r/events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events_written = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events_written if event["event"] == kind and facts.items() <= event.items()]

    try:
        wait_until(lambda: events("robot missing", name="there"), timeout_s=600)
        wait_until(lambda: len(events("episode", robot="here")) > 3, timeout_s=600)
        assert not events("episode", robot="there")

        join(lab, "cell")
        wait_until(lambda: events("robot", name="there"), timeout_s=600)
        wait_until(lambda: len(events("episode", robot="there")) > 3, timeout_s=600)

        assert dovetail("cluster", "leave", lab, "--as", "cell").returncode == 0
        wait_until(lambda: events("lost", role="there"), timeout_s=300)
        so_far, mine = len(events("episode", robot="there")), len(events("episode", robot="here"))
        wait_until(
            lambda: len(events("episode", robot="here")) > mine + 3, timeout_s=300
        )  # the other arm continues

        join(lab, "cell")
        wait_until(lambda: events("restarted", role="there"), timeout_s=600)
        wait_until(lambda: len(events("episode", robot="there")) > so_far + 3, timeout_s=600)
        shown = dovetail("cluster", "status", lab)
        assert "there" in shown.stdout
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(120)
    spools = [list((tmp_path / f"runs/r/robots/{name}/spool").glob("*")) for name in ("here", "there")]
    assert spools == [[], []]  # also the episodes that were not delivered before it left
    log = EpisodeLog(tmp_path / "runs/r/episodes")
    assert len(log.ids()) == len(set(log.ids()))
    for episode_id in log.ids():
        log.verify(episode_id)
