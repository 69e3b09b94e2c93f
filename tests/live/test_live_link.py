"""A run that another process shows and drives, in both layouts. A killed console never moves the arm."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dovetail.config.load import _hash as config_values_hash
from dovetail.config.load import load
from dovetail.core.errors import UsageError
from dovetail.core.types import Event, Outcome, Purpose, Source
from dovetail.episodes.log import EpisodeLog
from dovetail.live.link import LIVE_JSON, LiveLink
from dovetail.live.rendering import LiveRenderer
from dovetail.live.view import LiveView, NotLive
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.testing.live import read_journal
from support.live_host import order
from support.toy_run import TOY
from support.waiting import wait_until

CONFIG = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 100000, tolerance: 1.0e-9}
robot: {type: "dovetail.testing.live:LiveArm", image_size: [8, 6], journal: "%s"}
policy: {type: "dovetail.testing.live:FaultyPolicy"}
actor: {type: naive, layout: %s, flush_every_s: 0.1, inference_timeout_s: 5.0, heartbeat_timeout_s: 5.0}
algorithm: {type: "dovetail.testing.fake_learning:FakeAlgorithm"}
safety: {controller_watchdog: true}
"""
DRIVER = """
import sys, time
from pathlib import Path
from dovetail.live.view import LiveView
view, sequence = LiveView.attach(Path(sys.argv[1])), 0
print("attached", flush=True)
while True:
    sequence += 1
    view.writer.drive(session=77, sequence=sequence, held=True, axes=[0, 0, 1, 0, 0, 0, 0])
    time.sleep(0.02)
"""
OPERATOR_STEP_M = 0.019  # steps of the policy are a tenth of it


class LinkedRun:
    """A run with a live link in this process; `go()` runs episodes until `stop` is set."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.journal_path = folder / "journal"
        path = folder / "live.yaml"
        path.write_text(CONFIG % (self.journal_path, layout))
        self.folder = RunFolder.create(folder / "run", load([path], ()))
        self.stop, self.lines = threading.Event(), []
        self.assembly = build_assembly(
            self.folder.config,
            should_stop=self.stop.is_set,
            live=lambda robot: LiveLink(self.folder.path, robot=robot, waits=True, announce=self.lines.append),
        )
        self.actor = self.assembly.actor_for(Purpose.ONLINE)
        self.episodes, self.error, self._thread, self.view = [], None, None, None

    def go(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(lambda: self.num_moves() > 5 or self.error, timeout_s=60.0)
        self.view = LiveView.attach(self.folder.path)

    def _run(self) -> None:
        try:
            while not self.stop.is_set():
                episode = self.actor.run(order(index=len(self.episodes)))
                if episode is not None:
                    self.episodes.append(episode)
        except Exception as error:
            self.error = error

    def num_moves(self, since_ns: int = 0) -> int:
        return sum(note.moves for note in self.after(since_ns))

    def after(self, since_ns: int):
        return [note for note in read_journal(self.journal_path) if note.time_ns >= since_ns]

    def is_driven(self, since_ns: int) -> bool:
        return any(np.abs(note.action[:3]).max() > OPERATOR_STEP_M for note in self.after(since_ns) if note.action)

    def holds_for(self, num_ticks: int, since_ns: int) -> bool:
        return len(self.after(since_ns)) >= num_ticks

    def close(self) -> None:
        self.stop.set()
        if self._thread is not None:
            self._thread.join(20.0)
            assert not self._thread.is_alive()
        if self.assembly is None:
            return
        if self.view is not None:
            self.view.close()
        self.actor.close()
        self.assembly.close()
        self.assembly = self.actor = self.view = None  # a mapping keeps its descriptor open
        gc.collect()
        assert self.error is None, self.error


@pytest.fixture(params=["one_process", "processes"])
def run(request, tmp_path, processes):
    linked = LinkedRun(tmp_path, request.param)
    yield linked
    linked.close()


@pytest.fixture
def driver(processes):
    """Starts a process that takes over."""
    started = []

    def start(folder: Path) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder)], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def posts(writer, event) -> bool:
    try:
        writer.post(event)
    except UsageError:
        return False
    return True


def test_arm_holds_after_the_driving_process_was_killed(run, driver):
    run.go()
    began_ns = time.monotonic_ns()
    process = driver(run.folder.path)
    wait_until(lambda: run.is_driven(began_ns), timeout_s=20.0)
    wait_until(lambda: run.view.state().control == "human")
    assert run.view.state().driver == 77
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: run.view.state().control == "holding")
    assert "take over again" in run.view.state().reason
    held_ns = time.monotonic_ns()
    wait_until(lambda: run.holds_for(25, held_ns))
    assert run.num_moves(held_ns) == 0  # half a second, in which the policy would have moved
    wait_until(lambda: posts(run.view.writer, Event.START))  # after the claim of the killed process has expired
    wait_until(lambda: run.num_moves(held_ns) > 10)
    assert not run.is_driven(held_ns)  # by the policy
    run.stop.set()
    run.close()
    sources = np.concatenate([episode.column("source") for episode in run.episodes])
    assert {Source.POLICY, Source.HUMAN} == {Source(int(source)) for source in np.unique(sources)}
    assert run.episodes[0].operator == "none"  # no console was open at its start


@pytest.mark.extended
def test_emergency_stop_lasts_until_it_is_acknowledged(run):
    run.go()
    run.view.writer.beat()
    pressed_ns = time.monotonic_ns()
    run.view.writer.post(Event.EMERGENCY)
    wait_until(lambda: any(note.what == "stop" for note in run.after(pressed_ns)))
    wait_until(lambda: any("Acknowledge it in the console" in line for line in run.lines))
    stopped_ns = next(note.time_ns for note in run.after(pressed_ns) if note.what == "stop")
    state = run.view.state()
    assert (state.control, "emergency stop" in state.reason) == ("fault", True)
    run.view.writer.post(Event.START)  # does not acknowledge
    run.view.writer.drive(session=1, sequence=1, held=True, axes=[0, 0, 1, 0, 0, 0, 0], expires_s=2.0)
    threading.Event().wait(0.3)
    assert all(note.what == "stop" for note in run.after(stopped_ns))
    acknowledged_ns = time.monotonic_ns()
    run.view.writer.post(Event.ACKNOWLEDGE)
    wait_until(lambda: run.num_moves(acknowledged_ns) > 5)
    wait_until(lambda: run.view.state().control in ("policy", "human", "holding"))
    assert run.episodes[0].outcome is Outcome.ABORTED
    run.view.writer.post(Event.EMERGENCY)
    wait_until(lambda: run.view.state().control == "fault")


def test_second_console_can_stop_but_only_the_first_acknowledges(run):
    run.go()
    run.view.writer.beat()
    other = LiveView.attach(run.folder.path)
    with pytest.raises(UsageError, match="another console"):
        other.writer.post(Event.ACKNOWLEDGE)
    other.writer.post(Event.EMERGENCY)
    other.close()
    wait_until(lambda: any("Acknowledge it in the console" in line for line in run.lines))
    wait_until(lambda: posts(run.view.writer, Event.ACKNOWLEDGE))
    wait_until(lambda: "acknowledged, continuing" in run.lines)


def test_view_attaches_to_the_new_board_after_a_restart(tmp_path, processes):
    """The new board may have the same layout and the same descriptor."""
    run = LinkedRun(tmp_path, "processes")
    try:
        run.go()
        os.kill(run.actor._inner.processes["control"], signal.SIGKILL)
        wait_until(lambda: any("Acknowledge it in the console" in line for line in run.lines), timeout_s=20.0)
        run.actor._link.acknowledge()  # from outside a console
        acknowledged_ns = time.monotonic_ns()
        wait_until(lambda: run.num_moves(acknowledged_ns) > 5, timeout_s=60.0)
        run.view.refresh()
        seen = run.view.num_seen
        wait_until(lambda: run.view.num_seen > seen)
        assert run.view.state().control == "policy"
    finally:
        run.close()


def test_view_shows_the_observations_of_the_robot(run):
    run.go()
    wait_until(lambda: run.view.state().episode)
    state = run.view.state()
    assert state.episode["purpose"] == "online"
    assert state.prompt == run.assembly.task.prompt
    assert set(state.values) == {"ee_pose", "gripper", "goal"}
    assert state.health["ticks"] > 0
    assert run.view.cameras == ("front",)
    before = run.view.frame("front").copy()
    assert before.shape == (6, 8, 3)
    wait_until(lambda: not np.array_equal(run.view.frame("front"), before))
    assert json.dumps(state.values)
    steps = run.view.state().step
    wait_until(lambda: run.view.state().step > steps)


@pytest.mark.extended
def test_stop_event_ends_the_episode(run):
    run.go()
    run.view.writer.post(Event.STOP)
    wait_until(lambda: run.actor.stopped)
    assert run.assembly.should_stop()
    run.stop.set()


def test_ended_run_is_not_live(tmp_path, processes):
    run = LinkedRun(tmp_path, "one_process")
    view = LiveView.attach(run.folder.path)
    assert view.alive
    assert (run.folder.path / LIVE_JSON).exists()
    run.close()
    assert not (run.folder.path / LIVE_JSON).exists()
    with pytest.raises(NotLive, match="dovetail run --resume"):
        view.refresh()
    view.close()
    del view


@pytest.mark.parametrize(
    ("name", "value"), [("pid", 2**22 - 1), ("started", 12345), ("boot_id", "other"), ("version", 99)]
)
def test_file_of_a_killed_run_is_not_live(tmp_path, processes, name, value):
    run = LinkedRun(tmp_path, "one_process")
    try:
        link = json.loads((run.folder.path / LIVE_JSON).read_text())
        (run.folder.path / LIVE_JSON).write_text(json.dumps({**link, name: value}))
        with pytest.raises(NotLive):
            LiveView.attach(run.folder.path)
        for text in ("{", "[]", "{}", '{"pid": "x"}'):
            (run.folder.path / LIVE_JSON).write_text(text)
            with pytest.raises(NotLive):
                LiveView.attach(run.folder.path)
    finally:
        run.close()


def test_mailbox_with_another_number_of_axes_is_refused(tmp_path, processes):
    run = LinkedRun(tmp_path, "one_process")
    try:
        run.assembly.link.mailbox.word["num_axes"][0] = 6
        with pytest.raises(NotLive, match="not a mailbox with 7 axes"):
            LiveView.attach(run.folder.path)
    finally:
        run.close()


def test_failed_renderer_is_not_built_again(tmp_path, monkeypatch):
    """Building a world for every image would take CPU time from the robot."""
    stated = config_values_hash({"robot": {"type": "sim"}, "run": {"video_camera": "front"}})
    text = f"# hash: {stated}\nrobot: {{type: sim}}\nrun: {{video_camera: front}}\n"
    (tmp_path / "config.yaml").write_text(text)
    renderer, tried = LiveRenderer(tmp_path), []

    def fails(camera):
        tried.append(camera)
        raise OSError("no GL here")

    monkeypatch.setattr(renderer, "_open", fails)
    trace = {"sim_qpos": np.zeros(3)}
    with pytest.raises(OSError, match="no GL"):
        renderer.image("front", trace)
    assert renderer.image("front", trace) is None
    assert (tried, renderer.cameras) == (["front"], ())


def test_demonstration_from_a_console_with_a_simulated_clock(tmp_path):
    """The simulation waits for the operator and then runs in real time."""
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    config = load([path], ("operator={type: browser}", "robot.control_hz=50.0", "task.max_steps=400"))
    folder = RunFolder.create(tmp_path / "run", config)
    inline = InlineRun(folder, live=lambda robot: LiveLink(folder.path, robot=robot, waits=True))
    collecting = threading.Thread(target=inline.collect, args=(1,))
    collecting.start()
    view = LiveView.attach(folder.path)
    try:
        wait_until(lambda: view.refresh() or view.state().control == "paused")
        assert view.state().step <= 1  # it waits for a takeover
        sequence = 0
        while collecting.is_alive():
            sequence += 1
            assert sequence < 3000
            seen = view.state().values
            way = np.clip((np.array(seen["goal"]) - seen["ee_pose"][:3]) / 0.02, -1.0, 1.0)
            view.writer.drive(session=5, sequence=sequence, held=True, axes=[*way, 0, 0, 0, 0])
            time.sleep(0.01)
    finally:
        view.writer.post(Event.STOP)
        collecting.join(20.0)
        inline.close()
        view.close()
    log = EpisodeLog(folder.episodes)
    (episode,) = [log.load(episode_id) for episode_id in log.ids()]
    assert (episode.purpose, episode.outcome, episode.operator) == (Purpose.DEMO, Outcome.SUCCESS, "browser")
    assert (episode.column("source") == Source.HUMAN).all()


def test_too_long_status_is_reduced_to_the_essential_values(tmp_path):
    run = LinkedRun(tmp_path, "one_process")
    view = LiveView.attach(run.folder.path)
    try:
        run.assembly.link.update(phase="learning online", advice=["x" * 40_000])
        wait_until(lambda: view.state().facts.get("phase") == "learning online")
        assert "advice" not in view.state().facts
    finally:
        view.close()
        run.close()
