"""Delay of a takeover: from the operator's first message to the arm's motion, and from the last one to holding still."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dovetail.bench.rows import Row, at_most
from dovetail.config.load import load
from dovetail.core.clock import NS_PER_S
from dovetail.core.types import EpisodeOrder, Purpose
from dovetail.episodes.ids import new_episode_id
from dovetail.human.mailbox import EXPIRY_S, Control
from dovetail.live.link import LiveLink
from dovetail.live.view import LiveView
from dovetail.runs.assembly.build import Assembly, build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.testing.live import JournalNote, read_journal

__all__ = ["bench"]

AIM_MS = 100.0
CONFIG = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 1000000, tolerance: 1.0e-9}
robot: {type: "dovetail.testing.live:LiveArm", control_hz: %g, journal: "%s"}
policy: {type: "dovetail.testing.live:FaultyPolicy"}
actor: {type: naive, layout: %s}
algorithm: {type: "dovetail.testing.fake_learning:FakeAlgorithm"}
safety: {controller_watchdog: true}
"""
_UP = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
_MIN_OPERATOR_STEP_M = 0.015  # steps of the policy are a tenth of the operator's


def bench(*, quick: bool) -> Iterator[Row]:
    for layout in ("one_process", "processes"):
        for control_hz in (50.0, 10.0):
            num_trials = 20 if quick else 100
            with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
                to_motion, to_holding = _measure(Path(folder), layout, control_hz, num_trials)
            where = f"{layout}, {control_hz:g} Hz"
            for share in (50, 99):
                value = float(np.percentile(to_motion, share))
                yield at_most(f"{where}: message to motion, p{share}", value, "ms", AIM_MS)
            value = float(np.percentile(to_holding, 99))
            yield Row(
                name=f"{where}: silence to holding, p99 (expiry {1e3 * EXPIRY_S:g} ms)", value=value, unit="ms"
            )


def _measure(folder: Path, layout: str, control_hz: float, num_trials: int) -> tuple[list[float], list[float]]:
    """Milliseconds from each first message to the operator's first command, and from each last message to holding."""
    (folder / "bench.yaml").write_text(CONFIG % (control_hz, folder / "journal", layout))
    run = RunFolder.create(folder / "run", load([folder / "bench.yaml"], ()))
    stop = threading.Event()
    assembly = build_assembly(
        run.config, should_stop=stop.is_set, live=lambda robot: LiveLink(run.path, robot=robot, waits=True)
    )
    actor_thread = threading.Thread(target=_run_actor, args=(assembly,))
    actor_thread.start()
    try:
        view = _attach(run.path, actor_thread)
        started, ended = _trials(view, num_trials, period_s=1.0 / control_hz)
    finally:
        stop.set()
        actor_thread.join()
        assembly.close()
    notes = read_journal(folder / "journal")
    to_motion = [_first(notes, start, _is_operators) for start in started]
    to_holding = [_first(notes, end, lambda note: not note.moves) for end in ended]
    return to_motion, to_holding


def _trials(view: LiveView, num_trials: int, *, period_s: float) -> tuple[list[int], list[int]]:
    rng, box, sequence = np.random.default_rng(0), view.writer.box, 0
    started, ended = [], []
    for _ in range(num_trials):
        time.sleep(2 * period_s * (1.0 + rng.random()))  # so that messages arrive at any phase of a tick
        started.append(time.monotonic_ns())
        for _ in range(4):
            sequence += 1
            ended_ns = time.monotonic_ns()
            view.writer.drive(session=1, sequence=sequence, held=True, axes=_UP)
            time.sleep(period_s)
        ended.append(ended_ns)
        _wait(lambda: box.control is Control.HOLDING)
        sequence += 1
        view.writer.lose(session=1, sequence=sequence)
        sequence += 1
        view.writer.drive(session=1, sequence=sequence, held=True, axes=_UP)  # press again, to release it
        _wait(lambda: box.control is Control.HUMAN)
        sequence += 1
        view.writer.drive(session=1, sequence=sequence, held=False, axes=_UP)
        _wait(lambda: box.control is Control.POLICY)
    return started, ended


def _run_actor(assembly: Assembly) -> None:
    now_ns = time.time_ns()
    order = EpisodeOrder(
        id=new_episode_id(unix_ns=now_ns, robot="bench"),
        purpose=Purpose.ONLINE,
        seed=0,
        index=0,
        config_hash="0" * 64,
        started_unix_ns=now_ns,
    )
    actor = assembly.actor_for(Purpose.ONLINE)
    actor.run(order)
    actor.close()


def _attach(path: Path, actor_thread: threading.Thread) -> LiveView:
    view = LiveView.attach(path)
    while actor_thread.is_alive() and view.writer.box.reader_ns == 0:
        time.sleep(0.01)
    return view


def _wait(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 10.0
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError("the control loop did not react to the mailbox within 10 s")
        time.sleep(0.0005)


def _is_operators(note: JournalNote) -> bool:
    return note.what == "send" and float(np.abs(note.action[:3]).max()) > _MIN_OPERATOR_STEP_M


def _first(notes: list[JournalNote], since_ns: int, matches: Callable[[JournalNote], bool]) -> float:
    found = next(note.time_ns for note in notes if note.time_ns >= since_ns and matches(note))
    return 1e3 * (found - since_ns) / NS_PER_S
