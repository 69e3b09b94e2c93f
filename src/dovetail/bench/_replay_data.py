"""Steps with two cameras to fill replays with. As a program: the writer that `bench replay` runs beside its reader."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Episode, EpisodeStart, Labels, Observation, Outcome, Purpose, Segment
from dovetail.replay.writer import MappedReplayWriter

__all__ = ["BATCH", "CAMERAS", "KEYS", "ROBOT", "Source", "buffers", "fill"]

BATCH = 256
CAMERAS = ("front", "wrist")
KEYS = (*CAMERAS, "state")
_IMAGE = ArraySpec(shape=(128, 128, 3), dtype="uint8")
ROBOT = RobotSpec(
    name="panda",
    embodiment="arm7",
    observation={"front": _IMAGE, "wrist": _IMAGE, "state": ArraySpec(shape=(19,))},
    action=ArraySpec(shape=(7,)),
    action_kind="ee_delta",
    control_hz=10.0,
)
_EPISODE = 100  # steps
_NUM_IMAGES = 1021  # cut from one array of noise; a prime, so that no two episodes are equal


class Source:
    """A sequence of steps; consecutive images of a camera differ."""

    def __init__(self, num_steps: int) -> None:
        rng = np.random.default_rng(0)
        size = int(np.prod(_IMAGE.shape))
        self._noise: Array = rng.integers(0, 256, size + 64 * _NUM_IMAGES, np.uint8)
        self._size = size
        self._frames: dict[bytes, int] = {}
        self.states: Array = rng.normal(size=(num_steps + 1, 19)).astype(np.float32)

    def images(self, key: str, rows: Array) -> Array:
        first = 64 * ((rows + 7 * CAMERAS.index(key)) % _NUM_IMAGES)
        return np.stack([self._noise[a : a + self._size] for a in first]).reshape(-1, *_IMAGE.shape)

    def frame_of(self, state: Array) -> int:
        """The index of the frame that a replay filled from here stores with this state."""
        if not self._frames:
            for step, known in enumerate(self.states):
                # each episode has one more frame than it has steps
                self._frames[known.tobytes()] = step + step // _EPISODE
        return self._frames[state.tobytes()]

    def all(self, key: str) -> Array:
        return self.images(key, np.arange(len(self.states)))

    def observations(self, rows: Array) -> dict[str, Array]:
        return {**{key: self.images(key, rows) for key in CAMERAS}, "state": self.states[rows]}


def buffers() -> dict[str, Array]:
    """Arrays that a batch is sampled into."""
    into: dict[str, Array] = {
        f"{side}/{key}": np.zeros((BATCH, *spec.shape), spec.dtype)
        for side in ("observation", "next")
        for key, spec in ROBOT.observation.items()
    }
    into |= {"action": np.zeros((BATCH, 7), np.float32), "reward": np.zeros(BATCH, np.float32)}
    into["discount"] = np.zeros(BATCH, np.float32)
    return into


def fill(store: MappedReplayWriter, source: Source) -> None:
    for number, first in enumerate(range(0, len(source.states) - 1, _EPISODE)):
        rows = np.arange(first, min(first + _EPISODE, len(source.states) - 1))
        segment = _segment(f"e{number}", source, rows, first=0, final=True)
        episode = Episode.of(_start(f"e{number}"), (segment,), outcome=Outcome.SUCCESS)
        ones = np.ones(len(rows), np.float32)
        labels = Labels(
            episode_id=episode.id,
            rewards=0 * ones,
            discounts=ones,
            success=True,
            confidence=1.0,
            labeler="bench",
            version="1",
        )
        store.add(episode, labels)


def _start(episode_id: str) -> EpisodeStart:
    return EpisodeStart(
        id=episode_id,
        task="bench",
        prompt="",
        robot=ROBOT,
        operator="none",
        purpose=Purpose.ONLINE,
        seed=0,
        config_hash="",
        started_unix_ns=0,
    )


def _segment(episode_id: str, source: Source, rows: Array, *, first: int, final: bool) -> Segment:
    seen = source.observations(rows)
    last = {key: value[0] for key, value in source.observations(rows[-1:] + 1).items()}
    columns = {f"observation/{key}": value for key, value in seen.items()}
    columns |= {
        "executed": np.zeros((len(rows), 7), np.float32),
        "source": np.zeros(len(rows), np.uint8),
        "policy_version": np.zeros(len(rows), np.int64),
    }
    return Segment(
        episode_id=episode_id,
        first=first,
        final=final,
        columns=columns,
        last_observation=Observation(time_ns=0, values=last) if final else None,
    )


def _write(folder: Path, seconds: float) -> float:
    """Append like four robots at 20 Hz, a segment of each per second; return the median milliseconds of an append."""
    store = MappedReplayWriter(folder, keys=KEYS, capacity_bytes=2 * 10**9)
    source, took = Source(2000), []
    episodes = [_start(f"r{robot}") for robot in range(4)]
    deadline_s = time.perf_counter()
    end_s = deadline_s + seconds
    for first in itertools.count(step=20):
        for start in episodes:
            rows = np.arange(first, first + 20) % 1980
            segment = _segment(start.id, source, rows, first=first, final=False)
            deadline_s += 0.25
            time.sleep(max(0.0, deadline_s - time.perf_counter()))
            start_s = time.perf_counter()
            store.extend(start, segment)
            took.append(1e3 * (time.perf_counter() - start_s))
        if time.perf_counter() > end_s:
            break
    store.close()
    return statistics.median(took)


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"ms": _write(Path(sys.argv[1]), float(sys.argv[2]))}))
