"""The console of a run on Ray, whose mailbox is in the process of the robot role."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from dovetail.core.types import Purpose, Source
from dovetail.episodes.log import EpisodeLog
from support.console_process import end_console, start_console
from support.live_run import SETTINGS, until
from support.takeover_page import has_control, read_events, read_state, take_over

SLOW_S = 300.0  # five processes import torch


@contextmanager
def watched_run(runs, *settings):
    """A run on Ray that learns online, and its console."""
    changed = [*SETTINGS, "operator=scripted", "runtime=ray", "learner.publish_every=5", *settings]
    command = [sys.executable, "-m", "dovetail.cli", "run", "push-cube", *changed, "--realtime", "--quiet"]
    process = subprocess.Popen(
        [*command, "--runs-dir", str(runs), "--name", "arm"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    console = None
    try:
        live = runs / "arm" / "live.json"
        until(lambda: live.exists() or process.poll() is not None, what="the arm to start", timeout_s=SLOW_S)
        console = start_console(runs / "arm")
        until(
            lambda: (now := read_state(console)) and now["episode"].get("purpose") == "online",
            what="online learning to start",
            timeout_s=SLOW_S,
        )
        yield console, process
    finally:
        if console is not None:
            end_console(console)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=60)
            finally:
                process.kill()


@pytest.mark.slow
def test_run_on_ray_is_watched_taken_over_stopped_and_ended(page, tmp_path):
    with watched_run(tmp_path) as (console, process):
        console.enter(page)
        page.wait_for_function("+document.querySelector('canvas')?.dataset.frames >= 3")
        page.wait_for_function(
            "['robot-0', 'store', 'learner', 'weights', 'labeler-0'].every((name) => "
            "document.querySelector(`[data-role=${name}] td:nth-child(2)`)?.textContent === 'well')"
        )
        page.screenshot(path=tmp_path / "roles.png", full_page=True)
        take_over(console, page)
        until(has_control(console, "human"), what="the operator to drive")
        ids = {read_state(console)["episode"]["id"]}
        page.keyboard.press("y")
        rated = until(lambda: [e for e in read_events(console) if e.get("id") in ids], what="the episode to end")
        page.keyboard.up("Space")
        log = EpisodeLog(console.run / "episodes")
        episode = log.load(rated[0]["id"])
        assert episode.purpose is Purpose.ONLINE and (episode.column("source") == Source.HUMAN).any()
        until(has_control(console, "policy"), what="the policy to act")
        page.keyboard.press("Escape")
        until(has_control(console, "fault"), what="the arm to stop")
        page.goto(console.address)
        page.wait_for_selector("[data-role=robot-0].dt-warn")
        page.click('[data-event="acknowledge"]')
        until(has_control(console, "policy", "idle"), what="the arm to continue")
        page.click('[data-event="stop"]')
        page.click(".dt-ask .dt-main-button")
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130, output
        assert "robot-0 has stopped: " in output and "robot-0 continues" in output
        assert "stopped; continue with: dovetail run --resume" in output


@pytest.mark.slow
def test_second_arm_of_a_run_is_chosen_and_taken_over(page, tmp_path):
    with watched_run(tmp_path, "cluster.num_robots=2", "cluster.robot_timeout_s=300") as (console, _):
        until(lambda: read_state(console, "robot-1"), what="the second arm", timeout_s=SLOW_S)
        console.enter(page)
        page.click("[data-arm=robot-1]")
        page.wait_for_selector("[data-arm=robot-1][aria-pressed=true]")
        page.wait_for_function("+document.querySelector('#dt-cameras canvas')?.dataset.frames >= 3")
        take_over(console, page, arm="robot-1")
        page.keyboard.down("w")
        state = until(
            lambda: (now := read_state(console, "robot-1"))["control"] == "human" and now, what="to drive"
        )
        assert page.inner_text("#dt-hold b") == "You drive"
        assert read_state(console, "robot-0")["driver_session"] == 0
        before = state["values"]["ee_pose"][0]
        until(
            lambda: read_state(console, "robot-1")["values"]["ee_pose"][0] > before + 0.01, what="the arm to move"
        )
        episode = state["episode"]["id"]
        page.keyboard.press("y")
        until(lambda: [e for e in read_events(console) if e.get("id") == episode], what="the episode to end")
        page.keyboard.up("w")
        page.keyboard.up("Space")
        recorded = EpisodeLog(console.run / "episodes").load(episode)
        assert recorded.robot.name == "robot-1" and (recorded.column("source") == Source.HUMAN).any()
        page.keyboard.press("Escape")
        for name in ("robot-0", "robot-1"):
            until(lambda name=name: read_state(console, name)["control"] == "fault", what=f"{name} to stop")
