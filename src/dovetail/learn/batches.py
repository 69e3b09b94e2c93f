"""Sample batches from a replay into reused buffers, ahead of time on a thread, and return them as tensors."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from dovetail.core.achieved import measures_achieved
from dovetail.core.contracts import ReplayReader
from dovetail.core.errors import UsageError
from dovetail.core.policy_rate import covering_ticks
from dovetail.core.prompts import MAX_PROMPT_BYTES, PROMPT_BYTES, prompt_width
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, SampleRequest, TicksPerStep, View
from dovetail.policies.embodiments.canonical_space import EMBODIMENT

if TYPE_CHECKING:  # its import takes as long as that of torch
    from tensordict import TensorDict

__all__ = [
    "Batches",
    "batch_arrays",
    "observations_of",
    "only_driven_axes",
    "rollout_batch",
    "rows_to_draw",
]

_MIN_THREAD_BYTES = 1 << 20  # a smaller batch is sampled faster than a thread can hand it over


def batch_arrays(request: SampleRequest, robot: RobotSpec) -> dict[str, Array]:
    """Return zeroed arrays for one batch, with the names and shapes that a replay fills. Raise UsageError if the robot lacks
    something."""
    num_rows, window = sum(request.rows.values()), request.window
    chunk = (window.horizon,) if window.horizon > 1 else ()
    arrays: dict[str, Array] = {
        "action": np.zeros((num_rows, *chunk, *robot.action.shape), np.float32),
        "human": np.zeros((num_rows, *chunk), np.bool_),
        "reward": np.zeros(num_rows, np.float32),
        "discount": np.zeros(num_rows, np.float32),
    }
    if request.achieved:
        if EMBODIMENT not in robot.observation and not measures_achieved(robot):
            raise UsageError(
                f"this algorithm learns from achieved actions, which robot '{robot.name}' does not measure. It needs "
                "observation 'ee_pose' for ee_delta actions, 'joint_pos' for joint targets, or one named 'achieved'"
            )
        arrays["achieved"] = np.zeros_like(arrays["action"])
    if request.human_axes and EMBODIMENT not in robot.observation:
        arrays["human_axes"] = np.zeros_like(arrays["action"], np.bool_)
    if EMBODIMENT in robot.observation:  # several arms: see learn.mixed_replay
        arrays["embodiment"] = np.zeros(num_rows, np.int64)
        arrays["action_mask"] = np.zeros((num_rows, *robot.action.shape), np.bool_)
    if request.outcomes:
        arrays["steps_to_end"] = np.zeros(num_rows, np.int64)
        arrays["success"] = np.zeros(num_rows, np.bool_)
    if request.prompts:
        arrays["prompt"] = np.zeros((num_rows, MAX_PROMPT_BYTES), np.uint8)
    if chunk:
        arrays["action/mask"] = np.zeros((num_rows, *chunk), np.bool_)
    for key in request.observation_keys:
        spec, ticks = robot.observation[key], window.history.get(key)
        history = () if ticks is None else (ticks,)
        for name in ("observation", "next") if request.next_observations else ("observation",):
            arrays[f"{name}/{key}"] = np.zeros((num_rows, *history, *spec.shape), spec.dtype)
            if ticks is not None:
                arrays[f"{name}/{key}/mask"] = np.zeros((num_rows, ticks), np.bool_)
    return arrays


def rows_to_draw(request: SampleRequest, replay: ReplayReader) -> list[tuple[View, int]]:
    """Return the views of a batch and their rows. `when_empty`, or another view of the request, replaces an empty view. If
    all are empty, the view stays."""
    rows = [(view, num_rows) for view, num_rows in request.rows.items() if num_rows]
    if request.when_empty is None or all(replay.size(view) for view, _ in rows):
        return rows
    replacement = next((view for view in (request.when_empty, *(v for v, _ in rows)) if replay.size(view)), None)
    return [
        (view if replacement is None or replay.size(view) else replacement, num_rows) for view, num_rows in rows
    ]


def observations_of(batch: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the batch's observations under `name` (`observation`, `next` or `final`), by the policy's keys."""
    return {key.removeprefix(f"{name}/"): batch[key] for key in batch.keys() if key.startswith(f"{name}/")}  # noqa: SIM118


@overload
def only_driven_axes(mask: Tensor, batch: Mapping[str, Tensor]) -> Tensor: ...


@overload
def only_driven_axes(mask: Tensor | None, batch: Mapping[str, Tensor]) -> Tensor | None: ...


def only_driven_axes(mask: Tensor | None, batch: Mapping[str, Tensor]) -> Tensor | None:
    """A mask of steps, [B] or [B, H], by axis: false for the axes that the policy drove while a person drove others, because
    the policy must not imitate itself. The same mask if a person can only drive this robot as a whole; None: all steps."""
    if "human_axes" not in batch.keys():  # noqa: SIM118 - a TensorDict is not a dict
        return mask
    driven = batch["human_axes"] | ~batch["human"][..., None]
    return driven if mask is None else driven & mask[..., None]


def rollout_batch(rollout: Mapping[str, Array], *, device: torch.device) -> TensorDict:
    """The arrays of a RolloutBuffer as one TensorDict. It has no batch size, because they have several lengths."""
    from tensordict import TensorDict

    return TensorDict({name: torch.from_numpy(array) for name, array in rollout.items()}, device=device)


class Batches:
    """`for batch in batches.take(n)` yields exactly n batches. Sampling ahead does not change them.

    A batch is a TensorDict on `device`, valid until the next one is requested. Images are uint8. For a GPU the buffers are
    pinned, and the copy of the next batch overlaps the current update.
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
        ticks_per_step: TicksPerStep = 1,
    ) -> None:
        """`ticks_per_step`: recorded steps of one step of the policy, see `Window`."""
        self._ticks_per_step = ticks_per_step
        request = _at_policy_rate(request, ticks_per_step)
        self._request, self._replay, self._rng = request, replay, rng
        self._device = torch.device(device)
        arrays = batch_arrays(request, robot)
        if num_ahead is None:
            num_ahead = 2 if sum(array.nbytes for array in arrays.values()) >= _MIN_THREAD_BYTES else 0
        self._num_ahead = num_ahead
        # one in use, and one for each batch that is sampled ahead
        self._slots = [_Slot(arrays, self._device) for _ in range(num_ahead + 1)]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches") if num_ahead else None

    def set_request(self, request: SampleRequest) -> None:
        """Draw from other views from now on. Call between two calls of `take`."""
        request = _at_policy_rate(request, self._ticks_per_step)
        if self._shape(request) != self._shape(self._request):
            raise ValueError(
                "an algorithm may change the views of its sample_request, but not the number or content of rows"
            )
        self._request = request

    def reseed(self, rng: np.random.Generator) -> None:
        """Draw with another generator from now on. Call between two calls of `take`."""
        self._rng = rng

    @staticmethod
    def _shape(request: SampleRequest) -> tuple[object, ...]:
        return sum(request.rows.values()), dataclasses.replace(request, rows={}, when_empty=None, shares={})

    @property
    def ready(self) -> bool:
        """Whether each view, or its replacement, has steps."""
        return all(self._replay.size(view) for view, _ in rows_to_draw(self._request, self._replay))

    def shares(self) -> dict[str, float]:
        """Return the requested ratios of view sizes, as metrics; none for an empty reference view."""
        sizes = {name: [self._replay.size(v) for v in views] for name, views in self._request.shares.items()}
        return {f"{name}_share": part / whole for name, (part, whole) in sizes.items() if whole}

    def take(self, count: int) -> Generator[TensorDict, None, None]:
        if self._thread is None:
            for _ in range(count):
                self._sample(self._slots[0])
                yield self._slots[0].to_device()
            return
        pending: deque[tuple[_Slot, Future[dict[str, Any]]]] = deque()
        state = self._rng.bit_generator.state
        try:
            for number in range(count + self._num_ahead):
                if number < count:
                    slot = self._slots[number % len(self._slots)]
                    pending.append((slot, self._thread.submit(self._sample, slot)))
                if number >= self._num_ahead:
                    slot, sampled = pending.popleft()
                    state = sampled.result()
                    yield slot.to_device()
        finally:
            for _, sampled in pending:  # discard what was sampled ahead
                sampled.exception()
            self._rng.bit_generator.state = state  # as without sampling ahead, for a checkpoint

    def _sample(self, slot: _Slot) -> dict[str, Any]:
        """Fill a slot, one view after the other; return the generator's state after it."""
        slot.wait()
        first = 0
        for view, num_rows in rows_to_draw(self._request, self._replay):
            rows = {name: array[first : first + num_rows] for name, array in slot.arrays.items()}
            self._replay.sample(rows, view=view, rng=self._rng, window=self._request.window)
            first += num_rows
        return dict(self._rng.bit_generator.state)


def _at_policy_rate(request: SampleRequest, ticks: TicksPerStep) -> SampleRequest:
    """The request in recorded steps. A run of steps from one source must last as many ticks."""
    if ticks == 1:
        return request

    def longer(view: View) -> View:
        whole = covering_ticks(view.min_source_run, ticks) if view.min_source_run > 1 else 1
        return dataclasses.replace(view, min_source_run=whole)

    return dataclasses.replace(
        request,
        rows={longer(view): num_rows for view, num_rows in request.rows.items()},
        window=dataclasses.replace(request.window, ticks_per_step=ticks),
        when_empty=None if request.when_empty is None else longer(request.when_empty),
        shares={name: (longer(one), longer(other)) for name, (one, other) in request.shares.items()},
    )


class _Slot:
    """One set of buffers: numpy arrays for the replay, tensors for the algorithm."""

    def __init__(self, arrays: Mapping[str, Array], device: torch.device) -> None:
        from tensordict import TensorDict

        pinned = device.type == "cuda"
        tensors = {
            name: torch.zeros(array.shape, dtype=torch.from_numpy(array).dtype, pin_memory=pinned)
            for name, array in arrays.items()
        }
        self.arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._batch = TensorDict(tensors, batch_size=[len(next(iter(arrays.values())))])
        self._device = device
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        self._prompt_width = PROMPT_BYTES

    def to_device(self) -> TensorDict:
        whole = self._batch
        if "prompt" in self.arrays:  # as wide as the longest so far
            self._prompt_width = max(self._prompt_width, prompt_width(self.arrays["prompt"]))
            whole = whole.copy()
            whole["prompt"] = self._batch["prompt"][:, : self._prompt_width]
        if self._copied is None:
            return whole
        batch = whole.to(self._device, non_blocking=True)
        self._copied.record()
        return batch

    def wait(self) -> None:
        """Wait until the copy to the GPU has read the buffers."""
        if self._copied is not None:
            self._copied.synchronize()
