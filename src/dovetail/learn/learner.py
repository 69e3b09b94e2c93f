"""The learner: samples what its algorithm wants, paces itself by an update-to-data ratio, publishes weights."""

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
from dovetail.core.types import Array, SampleRequest
from dovetail.learn.batches import Batches
from dovetail.learn.finite import BadUpdates, SkippedUpdate

__all__ = ["Learner"]


class Learner:
    """`step(env_steps=n)` does the updates that n online steps have earned and that are not done yet.

    The count is kept over the whole run, so a resumed learner catches up with what the log already holds.
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
    ) -> None:
        self._algorithm = algorithm
        self._rng = rng
        self._utd = utd
        self._start_after_steps = start_after_steps
        self._batches = Batches(
            request=algorithm.sample_request, robot=robot, replay=replay, rng=rng, num_ahead=num_ahead, device=device
        )
        self._bad = BadUpdates(max_bad_updates)
        self.healthy = True  # until an update broke: from then on nothing is worth keeping
        self.num_warmup_updates = 0
        self.num_online_updates = 0
        self._seconds: dict[str, float] = defaultdict(float)

    @property
    def num_updates(self) -> int:
        return self.num_warmup_updates + self.num_online_updates

    def warm_up(self, num_updates: int, *, on_update: Callable[[], None] = lambda: None) -> Mapping[str, float]:
        """Updates on what is there before the first online step, up to `num_updates` in the whole run."""
        metrics = _Means()
        with closing(self._drawn(lambda: num_updates - self.num_warmup_updates)) as batches:
            for batch in batches:
                metrics.add(self._update(batch))
                self.num_warmup_updates += 1
                on_update()
        if self.num_warmup_updates < num_updates:
            raise UsageError(
                "nothing that was demonstrated is to be learned from, as the algorithm is set (thresholds, shortest "
                "episodes): change that, or begin without by learner.warmup_updates=0"
            )
        return {**metrics.take(), **self._told()}

    @property
    def sample_request(self) -> SampleRequest:
        """What its algorithm draws from now."""
        return self._algorithm.sample_request

    def owed(self, env_steps: int) -> int:
        """Updates that `env_steps` online steps have earned and that are not done yet."""
        return math.floor(self._utd * max(0, env_steps - self._start_after_steps)) - self.num_online_updates

    def step(
        self,
        *,
        env_steps: int,
        on_update: Callable[[], None] = lambda: None,
        enough: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, float]:
        """Do what is owed for `env_steps` online steps, or some of it, until it is `enough`; returns the metrics' means."""
        metrics = _Means()
        done = self.num_online_updates
        with closing(self._drawn(lambda: self.owed(env_steps))) as batches:  # closed at once, whatever comes up
            for batch in batches:
                metrics.add(self._update(batch))
                self.num_online_updates += 1
                on_update()
                if enough():
                    break
        if self.num_online_updates == done and self.owed(env_steps) > 0:
            return {}  # it waits
        return {**metrics.take(), **self._batches.shares(), **self._told()}

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return self._algorithm.policy_weights()

    def _drawn(self, owed: Callable[[], int]) -> Generator[Mapping[str, Tensor], None, None]:
        """Batches until nothing is owed, of the views that the algorithm wants by then: they may change with each update."""
        while owed() > 0:
            wants = self._algorithm.sample_request
            self._batches.ask(wants)
            if wants.waits and not self._batches.are_there:
                return
            with closing(self._batches.take(owed())) as batches:
                for batch in self._timed(batches):
                    yield batch
                    if self._algorithm.sample_request != wants:
                        break

    def _update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        began_s = time.monotonic()
        try:
            metrics = self._algorithm.update(batch)
        except SkippedUpdate as reason:
            self._skip(reason)
            return {}
        except BaseException:  # in the midst of it, so nobody may save what is left
            self.healthy = False
            raise
        finally:
            self._seconds["updating"] += time.monotonic() - began_s
        if not all(math.isfinite(value) for value in metrics.values()):
            self.healthy = False
            bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
            raise FailureError(f"learning broke at update {self.num_updates}: {bad}. Try a lower learning rate")
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
        """What sampling and updating took since this was asked last; a batch that was sampled ahead took no time."""
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

    def _told(self) -> dict[str, float]:
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
            raise CheckpointError(f"the checkpoint is not a learner's: {error}") from error
        self._algorithm.load_state_dict(
            {name.removeprefix("algorithm/"): v for name, v in state.items() if name.startswith("algorithm/")}
        )
        self.num_warmup_updates, self.num_online_updates = (int(n) for n in counters[:2])
        self._bad.count = int(sum(counters[2:]))  # none, in a checkpoint of before they were counted
        self._rng.bit_generator.state = rng


class _Means:
    """Averages of metrics that do not all come with every update."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._sums[name] += value
            self._counts[name] += 1

    def take(self) -> dict[str, float]:
        return {name: total / self._counts[name] for name, total in self._sums.items()}
