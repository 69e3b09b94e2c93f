"""By hand where everything runs at once: the arm's mailbox is in the process of its role, and the console finds it."""

import os
import signal
import subprocess
import sys

import pytest

from dovetail.core.types import Purpose, Source
from dovetail.episodes.log import EpisodeLog
from support.console_process import end_console, start_console
from support.live_run import SETTINGS, until
from support.takeover_page import has_control, read_events, read_state, take_over

SLOW_S = 300.0  # five processes that import torch, on a machine that may be busy


@pytest.mark.slow
def test_watched_taken_over_judged_stopped_acknowledged_and_ended(page, tmp_path):
    settings = [*SETTINGS, "operator=scripted", "runtime=ray", "learner.publish_every=5"]
    command = [sys.executable, "-m", "dovetail.cli", "run", "push-cube", *settings, "--realtime", "--quiet"]
    process = subprocess.Popen(
        [*command, "--runs-dir", str(tmp_path), "--name", "arm"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    console = None
    try:
        live = tmp_path / "arm" / "live.json"
        until(lambda: live.exists() or process.poll() is not None, what="the arm to be there", timeout_s=SLOW_S)
        console = start_console(tmp_path / "arm")
        until(
            lambda: (now := read_state(console)) and now["episode"].get("purpose") == "online",
            what="practice to begin",
            timeout_s=SLOW_S,
        )
        console.enter(page)
        page.wait_for_function("+document.querySelector('canvas')?.dataset.frames >= 3")
        page.wait_for_function(
            "['robot-0', 'store', 'learner', 'weights', 'labeler-0'].every((name) => "
            "document.querySelector(`[data-role=${name}] td:nth-child(2)`)?.textContent === 'well')"
        )
        page.screenshot(path=tmp_path / "roles.png", full_page=True)
        take_over(console, page)
        until(has_control(console, "human"), what="the person to drive")
        ids = {read_state(console)["episode"]["id"]}
        page.keyboard.press("y")
        judged = until(lambda: [e for e in read_events(console) if e.get("id") in ids], what="the episode to end")
        page.keyboard.up("Space")
        log = EpisodeLog(console.run / "episodes")
        episode = log.load(judged[0]["id"])
        assert episode.purpose is Purpose.ONLINE and (episode.column("source") == Source.HUMAN).any()
        until(has_control(console, "policy"), what="the policy to act")
        page.keyboard.press("Escape")
        until(has_control(console, "fault"), what="the arm to stop")
        page.goto(console.address)
        page.wait_for_selector("[data-role=robot-0].dt-worry")
        page.click('[data-event="acknowledge"]')
        until(has_control(console, "policy", "idle"), what="the arm to go on")
        page.on("dialog", lambda dialog: dialog.accept())
        page.click('[data-event="stop"]')
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert "robot-0 has stopped: " in said and "robot-0 goes on" in said
        assert "stopped; continue with: dovetail run --resume" in said
    finally:
        if console is not None:
            end_console(console)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=60)
            finally:
                process.kill()
