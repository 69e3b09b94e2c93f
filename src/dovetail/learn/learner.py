"""The learner: draws batches for its algorithm and keeps the update-to-data ratio."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from dovetail.core.contracts import Algorithm, ReplayReader
from dovetail.core.errors import CheckpointError, FailureError, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, SampleRequest, TicksPerStep
from dovetail.learn.batches import Batches
from dovetail.learn.finite import BadUpdates, SkippedUpdate

__all__ = ["Learner"]


class Learner:
    """`step(env_steps=n)` does the updates that n online steps have earned and that are not done yet.

    Steps and updates are counted over the whole run, so a resumed learner catches up.
    """

    def __init__(
        self,
        *,
        algorithm: Algorithm,
        replay: ReplayReader,
        robot: RobotSpec,
        rng: np.random.Generator,
        utd: float = 1.0,
        start_after_steps: int = 0,
        num_ahead: int | None = None,
        max_bad_updates: int = 100,
        device: torch.device | str = "cpu",
        ticks_per_step: TicksPerStep = 1,
    ) -> None:
        self._algorithm = algorithm
        self._rng = rng
        self._utd = utd
        self._start_after_steps = start_after_steps
        self._batches = Batches(
            request=algorithm.sample_request,
            robot=robot,
            replay=replay,
            rng=rng,
            num_ahead=num_ahead,
            device=device,
            ticks_per_step=ticks_per_step,
        )
        self._bad = BadUpdates(max_bad_updates)
        self.healthy = True  # False after a failed update; the state must not be saved
        self.num_warmup_updates = 0
        self.num_online_updates = 0
        self._seconds: dict[str, float] = defaultdict(float)

    @property
    def num_updates(self) -> int:
        return self.num_warmup_updates + self.num_online_updates

    def warm_up(self, num_updates: int, *, on_update: Callable[[], None] = lambda: None) -> Mapping[str, float]:
        """Do updates before the first online step, up to `num_updates` in the whole run."""
        metrics = _Means()
        with closing(self._draw(lambda: num_updates - self.num_warmup_updates)) as batches:
            for batch in batches:
                metrics.add(self._update(batch))
                self.num_warmup_updates += 1
                on_update()
        if self.num_warmup_updates < num_updates:
            raise UsageError(
                "the algorithm rejected every demonstration. Relax algorithm.return_thresholds and "
                "algorithm.min_episode_steps, or set learner.warmup_updates=0"
            )
        return {**metrics.take(), **self._skipped_updates()}

    @property
    def sample_request(self) -> SampleRequest:
        return self._algorithm.sample_request

    def owed(self, env_steps: int) -> int:
        """Number of updates that `env_steps` online steps have earned and that are not done yet."""
        return math.floor(self._utd * max(0, env_steps - self._start_after_steps)) - self.num_online_updates

    def step(
        self,
        *,
        env_steps: int,
        on_update: Callable[[], None] = lambda: None,
        enough: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, float]:
        """Do the owed updates for `env_steps` online steps, or until `enough()`; return the means of the metrics."""
        metrics = _Means()
        done = self.num_online_updates
        with closing(self._draw(lambda: self.owed(env_steps))) as batches:
            for batch in batches:
                metrics.add(self._update(batch))
                self.num_online_updates += 1
                on_update()
                if enough():
                    break
        if self.num_online_updates == done and self.owed(env_steps) > 0:
            return {}  # waiting for data
        return {**metrics.take(), **self._batches.shares(), **self._skipped_updates()}

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return self._algorithm.policy_weights()

    def _draw(self, owed: Callable[[], int]) -> Generator[Mapping[str, Tensor], None, None]:
        """Yield batches until no update is owed. The algorithm may change its views with each update."""
        while owed() > 0:
            request = self._algorithm.sample_request
            self._batches.set_request(request)
            if request.waits and not self._batches.ready:
                return
            with closing(self._batches.take(owed())) as batches:
                for batch in self._timed(batches):
                    yield batch
                    if self._algorithm.sample_request != request:
                        break

    def _update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        began_s = time.monotonic()
        try:
            metrics = self._algorithm.update(batch)
        except SkippedUpdate as reason:
            self._skip(reason)
            return {}
        except BaseException:  # the state may be inconsistent
            self.healthy = False
            raise
        finally:
            self._seconds["updating"] += time.monotonic() - began_s
        if not all(math.isfinite(value) for value in metrics.values()):
            self.healthy = False
            bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
            raise FailureError(f"learning failed at update {self.num_updates}: {bad}. Lower the learning rate")
        return metrics

    def _timed(self, batches: Iterator[Mapping[str, Tensor]]) -> Iterator[Mapping[str, Tensor]]:
        while True:
            began_s = time.monotonic()
            batch = next(batches, None)
            self._seconds["sampling"] += time.monotonic() - began_s
            if batch is None:
                return
            yield batch

    def take_seconds(self) -> dict[str, float]:
        """Seconds of sampling and updating since the last call. A batch that was sampled ahead took no time."""
        seconds = dict(self._seconds)
        self._seconds.clear()
        return seconds

    def _skip(self, reason: SkippedUpdate) -> None:
        try:
            self._bad.add(reason, number=self.num_updates)
        except FailureError:
            self.healthy = False
            raise

    @property
    def num_skipped_updates(self) -> int:
        return self._bad.count

    def _skipped_updates(self) -> dict[str, float]:
        return {"skipped_updates": float(self._bad.count)}

    # ---- checkpoints

    def state_dict(self) -> dict[str, Array]:
        rng = json.dumps(self._rng.bit_generator.state).encode()
        return {
            "learner/counters": np.array(
                [self.num_warmup_updates, self.num_online_updates, self._bad.count], np.int64
            ),
            "learner/rng": np.frombuffer(rng, np.uint8),
            **{f"algorithm/{name}": value for name, value in self._algorithm.state_dict().items()},
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        try:
            counters = state["learner/counters"]
            rng = json.loads(state["learner/rng"].tobytes())
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"the checkpoint has no learner state: {error}") from error
        self._algorithm.load_state_dict(
            {name.removeprefix("algorithm/"): v for name, v in state.items() if name.startswith("algorithm/")}
        )
        self.num_warmup_updates, self.num_online_updates = (int(n) for n in counters[:2])
        self._bad.count = int(sum(counters[2:]))  # old checkpoints have no third counter
        self._rng.bit_generator.state = rng


class _Means:
    """Means of metrics. Some updates have only some of the metrics."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._sums[name] += value
            self._counts[name] += 1

    def take(self) -> dict[str, float]:
        return {name: total / self._counts[name] for name, total in self._sums.items()}
