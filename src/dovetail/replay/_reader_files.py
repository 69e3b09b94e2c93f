"""The reader's access to the files of a replay: gather the batch for given rows from mapped files."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dovetail.core.disk import load_json, read_file
from dovetail.core.errors import StoreError, shown
from dovetail.core.policy_rate import covering_ticks, first_tick, nearest_ticks, ticks_of_steps, to_steps
from dovetail.core.types import Array, TicksPerStep, Window
from dovetail.replay._layout import SCHEMA, STEP_COLUMNS, Layout
from dovetail.replay._rings import Counters, Ring, fence, ring_paths, short_ring

__all__ = ["CopyThreads", "ReaderFiles"]

_MIN_MEMORY_BYTES_PER_S = 10**9  # slower copies come from disk
_MIN_THREADED_BYTES = 1 << 20  # for smaller copies a thread costs more time than it saves
_ROWS = ""  # key of the rows among the cameras' keys
_NO_FRAME = 2**62


class CopyThreads:
    """Thread pool for large copies, because one core does not use the full memory bandwidth."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        self._from_disk = True  # whether the last copy was slow; then the next one is prefetched

    def run(self, rings: Mapping[str, Ring], jobs: Sequence[tuple[str, Array, Array]]) -> None:
        """Copy (ring, numbers, out) for each job."""
        if not jobs:
            return
        if self._from_disk:
            for name in dict.fromkeys(name for name, _, _ in jobs):
                rings[name].prefetch(np.concatenate([n.reshape(-1) for other, n, _ in jobs if other == name]))
        start_s = time.perf_counter()
        self._copy(lambda name, numbers, out: rings[name].read_into(numbers, out), jobs)
        num_bytes = sum(out.nbytes for _, _, out in jobs)
        self._from_disk = num_bytes < _MIN_MEMORY_BYTES_PER_S * (time.perf_counter() - start_s)

    def _copy(self, copy: Callable[[str, Array, Array], None], jobs: Sequence[tuple[str, Array, Array]]) -> None:
        """Split each job among the threads."""
        if self._num_threads == 1:
            for job in jobs:
                copy(*job)
        else:
            self._pool = self._pool or ThreadPoolExecutor(self._num_threads, thread_name_prefix="replay")
            cuts = []
            for name, numbers, out in jobs:
                edges = np.linspace(0, len(numbers), self._num_threads + 1).astype(int)
                cuts += [(name, numbers[a:b], out[a:b]) for a, b in itertools.pairwise(edges)]
            for done in [self._pool.submit(copy, *cut) for cut in cuts]:
                done.result()


@dataclass(frozen=True, slots=True)
class ReaderFiles:
    """The files of a replay, mapped for reading."""

    layout: Layout
    rings: Mapping[str, Ring]
    counters: Counters
    counters_path: Path
    inode: int

    @staticmethod
    def open(folder: Path, *, deadline_s: float) -> ReaderFiles | None:
        """Open the files; None if there are none yet.

        Counters are opened first. A writer that starts again marks them as retired before it deletes anything, so all files
        opened before that mark belong together.
        """
        while (folder / "layout.json").exists():
            try:
                path = folder / "counters"
                inode = path.stat().st_ino
                counters = Counters(path)
                data = load_json(read_file(folder / "layout.json"), name=str(folder / "layout.json"), indent=1)
                if data["schema"] != SCHEMA:
                    raise StoreError(f"its schema is {shown(data['schema'])}, but this version reads {SCHEMA}")
                layout = Layout.from_json(data)
                rings = {
                    name: Ring(file, num_items=num_items, shape=shape, dtype=dtype)
                    for name, (file, num_items, shape, dtype) in ring_paths(folder, layout).items()
                }
                fence()
                files = ReaderFiles(layout, rings, counters, path, inode)
                if counters["magic"] == Counters.MAGIC and files.are_current():
                    return files
                error: Exception = StoreError("it is damaged; start its writer")
            except (StoreError, OSError, KeyError, TypeError, ValueError) as failure:
                error = failure  # the writer may be deleting the files now
            if time.monotonic() > deadline_s:
                raise StoreError(f"cannot open the replay in {folder}: {shown(error, max_chars=300)}") from error
            time.sleep(0.001)
        return None

    def are_current(self) -> bool:
        """Whether the writer still uses these files; a writer that starts again may create others."""
        if self.counters["retired"]:
            return False
        try:
            return self.counters_path.stat().st_ino == self.inode
        except OSError:
            return False

    def check_complete(self) -> None:
        """Raise StoreError if a file was cut. Rows behind its end would be read as others."""
        if (name := short_ring(self.layout, self.rings, self.counters)) is not None and self.are_current():
            raise StoreError(
                f"the replay's file of '{name}' was cut. Restart its writer, which rebuilds the replay"
            )

    def none_overwritten(self, oldest: Mapping[str, int]) -> bool:
        """Whether the writer has freed none of the gathered rows and frames meanwhile."""
        tails = dict(zip(self.layout.cameras, self.counters.tail_frame, strict=False))
        tails[_ROWS] = self.counters["tail_row"]
        return all(number >= tails[name] for name, number in oldest.items())

    def gather(
        self,
        into: Mapping[str, Array],
        rows: Array,
        window: Window,
        *,
        head_row: int,
        copy_threads: CopyThreads,
    ) -> dict[str, int]:
        """Fill the batch; returns the oldest row, and the oldest frame of each camera, that it read."""
        ticks = window.ticks_per_step
        num_steps, horizon = covering_ticks(window.num_steps, ticks), covering_ticks(window.horizon, ticks)
        steps, alive, after = self._steps_from(rows, max(horizon, num_steps), head_row)
        earned, ends = alive[:, :num_steps], after[min(num_steps, len(after)) - 1]
        if window.stop_at_takeover and num_steps > 1:
            earned = earned & self._before_takeover(steps[:, :num_steps])
            ends = np.stack(after, axis=1)[np.arange(len(rows)), earned.sum(axis=1) - 1]
        longest = max(window.history.values(), default=1)
        age = nearest_ticks(np.arange(longest), ticks)  # of each observation in the history, the newest first
        depth = int(age[-1]) + 1
        past = {"observation": self._history_rows(rows, depth), "next": self._history_rows(ends, depth)}
        jobs: list[tuple[str, Array, Array]] = []
        for name, out in into.items():
            side, _, key = name.partition("/")
            if side in past:
                key, mask = (
                    (key[:-5], True) if key.endswith("/mask") and key[:-5] in window.history else (key, False)
                )
                seen, known = past[side]
                num_wanted = window.history.get(key)
                at = depth - 1 - age[:num_wanted][::-1]  # oldest first
                if mask:
                    out[:] = known[:, at]
                else:
                    jobs.append((key, seen[:, -1] if num_wanted is None else seen[:, at], out))
            elif name == "action/mask":
                out[:] = alive[:, first_tick(np.arange(window.horizon), ticks)]
            elif name in STEP_COLUMNS:
                if ticks != 1:
                    self._read_combined(name, steps[:, :horizon], alive[:, :horizon], ticks, out)
                    continue
                chosen = steps[:, :horizon] if horizon > 1 else rows
                self._read_into(name, chosen, out)
        if "reward" in into or "discount" in into:
            gamma = window.gamma if ticks == 1 else window.gamma ** (1.0 / float(ticks))
            self._returns(into, steps[:, :num_steps], earned, gamma)
        oldest = {_ROWS: int(min(past["observation"][0].min(), past["next"][0].min()))}
        return self._observations(jobs, oldest, copy_threads)

    def _read_combined(self, name: str, steps: Array, alive: Array, ticks: TicksPerStep, out: Array) -> None:
        """Combine the recorded steps [B, T] of each policy step."""
        values, found = self._column(name, steps), out
        if name in ("action", "achieved"):
            found = to_steps(self.layout.robot.parts, values, ticks, exists=alive)  # [B, H, A]
        else:
            of_step, _ = ticks_of_steps(values.shape[1] // ticks, ticks)
            found = values[:, of_step].max(axis=2) if name == "human" else values[:, of_step[:, 0]]
        out[:] = found.reshape(out.shape)

    def _steps_from(self, rows: Array, num_steps: int, head_row: int) -> tuple[Array, Array, list[Array]]:
        """Return the rows of the next K steps [B, K], which of them exist, and for each the row after it.

        The last step is repeated past the end. A row without a following row is not a step: it is the last observation,
        or the newest row of a running episode.
        """
        following = self.rings["following"]
        current, after = rows, following.get(rows)
        exists = np.ones(len(rows), bool)
        steps, alive, ends = [current], [exists], [after]
        for _ in range(num_steps - 1):
            then = following.get(after)
            exists = exists & (then >= 0) & (then < head_row)
            current, after = np.where(exists, after, current), np.where(exists, then, after)
            steps.append(current)
            alive.append(exists)
            ends.append(after)
        return np.stack(steps, axis=1), np.stack(alive, axis=1), ends

    def _before_takeover(self, steps: Array) -> Array:
        """Return which of the steps [B, K] come before an operator takes over from the policy; the first always does."""
        human = self._column("human", steps).astype(bool)
        taken_over = human[:, 1:] & ~human[:, :-1]
        before: Array = np.ones(steps.shape, bool)
        before[:, 1:] = np.logical_and.accumulate(~taken_over, axis=1)
        return before

    def _history_rows(self, rows: Array, num_ticks: int) -> tuple[Array, Array]:
        """Return the rows of the last h ticks [B, h], oldest first, and which exist; the first row is repeated."""
        previous = self.rings["previous"]
        exists = np.ones(len(rows), bool)
        ticks, known = [rows], [exists]
        for _ in range(num_ticks - 1):
            before = previous.get(rows)
            exists = exists & (before >= 0)
            rows = np.where(exists, before, rows)
            ticks.append(rows)
            known.append(exists)
        return np.stack(ticks[::-1], axis=1), np.stack(known[::-1], axis=1)

    def _returns(self, into: Mapping[str, Array], steps: Array, alive: Array, gamma: float) -> None:
        """Compute n-step rewards and the discount of the value after them."""
        rewards = np.where(alive, self._column("reward", steps), np.float32(0.0))
        factors = np.where(alive, np.float32(gamma) * self._column("discount", steps), np.float32(1.0))
        weights = np.cumprod(factors, axis=1, dtype=np.float32)  # after each step
        if "reward" in into:
            before = np.concatenate((np.ones_like(weights[:, :1]), weights[:, :-1]), axis=1)
            into["reward"][:] = (before * rewards).sum(axis=1, dtype=np.float32)
        if "discount" in into:
            into["discount"][:] = weights[:, -1]

    def _observations(
        self, jobs: list[tuple[str, Array, Array]], oldest: dict[str, int], copy_threads: CopyThreads
    ) -> dict[str, int]:
        large: list[tuple[str, Array, Array]] = []
        for key, rows, out in jobs:
            if key not in self.layout.cameras:
                self._read_into(f"observation/{key}", rows, out)
                continue
            numbers = self._column(f"frame/{key}", rows)
            oldest[key] = min(int(numbers.min()), oldest.get(key, _NO_FRAME))
            job = (f"frames/{key}", numbers, out)
            if out.nbytes < _MIN_THREADED_BYTES:
                self._read_into(*job)
            else:
                large.append(job)
        copy_threads.run(self.rings, large)
        return oldest

    def _column(self, name: str, rows: Array) -> Array:
        return self.rings[name].get(rows)

    def _read_into(self, name: str, numbers: Array, out: Array) -> None:
        self.rings[name].read_into(numbers, out)
