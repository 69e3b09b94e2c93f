"""From a replay's arrays to the tensors of an update: sampled ahead by a thread, into buffers that go round."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from dovetail.core.achieved import measures_achieved
from dovetail.core.contracts import ReplayReader
from dovetail.core.errors import UsageError
from dovetail.core.prompts import PROMPT_BYTES
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, SampleRequest, View
from dovetail.policies.embodiments.canonical_space import EMBODIMENT

__all__ = ["Batches", "batch_arrays", "drawn_from", "observations_of"]

_WORTH_A_THREAD = 1 << 20  # bytes in a batch: a smaller one is sampled faster than it is handed over


def batch_arrays(request: SampleRequest, robot: RobotSpec) -> dict[str, Array]:
    """Empty arrays for one batch, by the names and shapes that a replay fills; what the robot cannot give is refused."""
    num_rows, window = sum(request.rows.values()), request.window
    ahead = (window.horizon,) if window.horizon > 1 else ()
    arrays: dict[str, Array] = {
        "action": np.zeros((num_rows, *ahead, *robot.action.shape), np.float32),
        "human": np.zeros((num_rows, *ahead), np.bool_),
        "reward": np.zeros(num_rows, np.float32),
        "discount": np.zeros(num_rows, np.float32),
    }
    if request.achieved:
        if EMBODIMENT not in robot.observation and not measures_achieved(robot):
            raise UsageError(
                f"this algorithm learns from what actions came to, which robot '{robot.name}' does not tell: it needs "
                "observation 'ee_pose' for ee_delta actions, 'joint_pos' for joint targets, or one named 'achieved'"
            )
        arrays["achieved"] = np.zeros_like(arrays["action"])
    if EMBODIMENT in robot.observation:  # it stands for several: see learn.mixing
        arrays["embodiment"] = np.zeros(num_rows, np.int64)
        arrays["action_mask"] = np.zeros((num_rows, *robot.action.shape), np.bool_)
    if request.prompts:
        arrays["prompt"] = np.zeros((num_rows, PROMPT_BYTES), np.uint8)
    if ahead:
        arrays["action/mask"] = np.zeros((num_rows, *ahead), np.bool_)
    for key in request.observation_keys:
        spec, ticks = robot.observation[key], window.history.get(key)
        behind = () if ticks is None else (ticks,)
        for side in ("observation", "next") if request.next_observations else ("observation",):
            arrays[f"{side}/{key}"] = np.zeros((num_rows, *behind, *spec.shape), spec.dtype)
            if ticks is not None:
                arrays[f"{side}/{key}/mask"] = np.zeros((num_rows, ticks), np.bool_)
    return arrays


def drawn_from(request: SampleRequest, replay: ReplayReader) -> list[tuple[View, int]]:
    """Views, and how many rows of a batch each gives. For one that has nothing `when_empty` stands in, or what else is asked
    for; where all is empty, the view stays."""
    rows = [(view, num_rows) for view, num_rows in request.rows.items() if num_rows]
    if request.when_empty is None or all(replay.size(view) for view, _ in rows):
        return rows
    spare = next((view for view in (request.when_empty, *(v for v, _ in rows)) if replay.size(view)), None)
    return [(view if spare is None or replay.size(view) else spare, num_rows) for view, num_rows in rows]


def observations_of(batch: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the batch's observations under `name` (`observation`, `next` or `final`), by the policy's keys."""
    return {key.removeprefix(f"{name}/"): batch[key] for key in batch.keys() if key.startswith(f"{name}/")}  # noqa: SIM118


class Batches:
    """`for batch in batches.take(n)`: exactly n, in one order, whatever is sampled ahead of them.

    A batch is a TensorDict on `device`, valid until the next one is asked for; images are uint8 as they were
    recorded. For a GPU the buffers are pinned, and a copy is under way while the update before it runs.
    """

    def __init__(
        self,
        *,
        request: SampleRequest,
        robot: RobotSpec,
        replay: ReplayReader,
        rng: np.random.Generator,
        device: torch.device | str = "cpu",
        num_ahead: int | None = None,
    ) -> None:
        self._request, self._replay, self._rng = request, replay, rng
        self._device = torch.device(device)
        arrays = batch_arrays(request, robot)
        if num_ahead is None:
            num_ahead = 2 if sum(array.nbytes for array in arrays.values()) >= _WORTH_A_THREAD else 0
        self._num_ahead = num_ahead
        # one being used, and one for each that may be sampled meanwhile
        self._slots = [_Slot(arrays, self._device) for _ in range(num_ahead + 1)]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches") if num_ahead else None

    def ask(self, request: SampleRequest) -> None:
        """Draw from other views from now on; between two calls of `take`, so that nothing depends on what was ahead."""
        if self._shape(request) != self._shape(self._request):
            raise ValueError(
                "an algorithm may change the views that it wants to draw from, but nothing else of a batch"
            )
        self._request = request

    def reseed(self, rng: np.random.Generator) -> None:
        """Draw with another generator from now on; between two calls of `take`."""
        self._rng = rng

    @staticmethod
    def _shape(request: SampleRequest) -> tuple[object, ...]:
        return sum(request.rows.values()), dataclasses.replace(request, rows={}, when_empty=None, shares={})

    @property
    def are_there(self) -> bool:
        """Whether each view, or what stands in for it, has something to give."""
        return all(self._replay.size(view) for view, _ in drawn_from(self._request, self._replay))

    def shares(self) -> dict[str, float]:
        """How much of one view is in another, as the request wants it told; nothing of what is empty."""
        sizes = {name: [self._replay.size(v) for v in views] for name, views in self._request.shares.items()}
        return {f"{name}_share": part / whole for name, (part, whole) in sizes.items() if whole}

    def take(self, count: int) -> Generator[TensorDict, None, None]:
        if self._thread is None:
            for _ in range(count):
                self._sample(self._slots[0])
                yield self._slots[0].hand_over()
            return
        coming: deque[tuple[_Slot, Future[dict[str, Any]]]] = deque()
        state = self._rng.bit_generator.state
        try:
            for number in range(count + self._num_ahead):
                if number < count:
                    slot = self._slots[number % len(self._slots)]
                    coming.append((slot, self._thread.submit(self._sample, slot)))
                if number >= self._num_ahead:
                    slot, sampled = coming.popleft()
                    state = sampled.result()
                    yield slot.hand_over()
        finally:
            for _, sampled in coming:  # nobody wants these any more
                sampled.exception()
            self._rng.bit_generator.state = state  # as if nothing had been sampled ahead: a checkpoint may come

    def _sample(self, slot: _Slot) -> dict[str, Any]:
        """Fill a slot, one view after the other; returns the generator's state after it."""
        slot.wait()
        first = 0
        for view, num_rows in drawn_from(self._request, self._replay):
            rows = {name: array[first : first + num_rows] for name, array in slot.arrays.items()}
            self._replay.sample(rows, view=view, rng=self._rng, window=self._request.window)
            first += num_rows
        return dict(self._rng.bit_generator.state)


class _Slot:
    """One set of buffers: numpy to the replay, tensors to the algorithm."""

    def __init__(self, arrays: Mapping[str, Array], device: torch.device) -> None:
        pinned = device.type == "cuda"
        tensors = {
            name: torch.zeros(array.shape, dtype=torch.from_numpy(array).dtype, pin_memory=pinned)
            for name, array in arrays.items()
        }
        self.arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._batch = TensorDict(tensors, batch_size=[len(next(iter(arrays.values())))])
        self._device = device
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def hand_over(self) -> TensorDict:
        if self._copied is None:
            return self._batch
        batch = self._batch.to(self._device, non_blocking=True)
        self._copied.record()
        return batch

    def wait(self) -> None:
        """Until the copy to the GPU no longer needs what is here."""
        if self._copied is not None:
            self._copied.synchronize()
