"""kill -9 while episodes are being committed: what was acknowledged is there, what is there is whole."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from dovetail.episodes.log import EpisodeLog

WRITER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("factory", sys.argv[2])
factory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(factory)
from dovetail.episodes.ids import new_episode_id
from dovetail.episodes.log import EpisodeLog
import itertools, time
log = EpisodeLog(sys.argv[1])
for n in itertools.count():
    now = time.time_ns()
    id = new_episode_id(unix_ns=now, robot="panda")
    log.commit(factory._make(id=id, num_steps=20, seed=n))
    print(id, flush=True)
"""


def test_kill_the_writer_at_random_moments(tmp_path: Path) -> None:
    folder = tmp_path / "episodes"
    factory = Path(__file__).with_name("conftest.py")
    acknowledged: list[str] = []
    dice = random.Random()
    for _ in range(5):
        command = [sys.executable, "-c", WRITER, str(folder), str(factory)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
            assert process.stdout is not None
            first = process.stdout.readline()  # it has started
            assert first, "the writer died by itself"
            time.sleep(dice.uniform(0.0, 0.15))
            process.kill()
            rest = process.stdout.read()
        lines = (first + rest).splitlines(keepends=True)
        acknowledged += [line.strip() for line in lines if line.endswith("\n")]
    log = EpisodeLog(folder)
    listed = log.ids()
    assert len(acknowledged) >= 5
    assert len(set(acknowledged)) == len(acknowledged)
    assert set(acknowledged) <= set(listed)
    for episode_id in listed:
        log.verify(episode_id)
        assert len(log.load(episode_id)) == 20
