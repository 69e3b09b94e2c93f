"""Batches: fixed order, identical with and without sampling ahead, and recorded dtypes."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
import torch

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import SampleRequest, View, Window
from dovetail.learn.batches import Batches, batch_arrays

ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={"state": ArraySpec(shape=(3,)), "front": ArraySpec(shape=(8, 8, 3), dtype="uint8")},
    action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)
REQUEST = SampleRequest(
    observation_keys=("state", "front"),
    rows={View(part="prior"): 4, View(part="online"): 4},
    window=Window(horizon=5, history={"state": 3}),
)


class RandomReplay:
    """A replay of random rows that records the calling threads and the views."""

    def __init__(self, *, empty=()):
        self.threads, self.views, self._empty = set(), [], empty

    def size(self, view):
        return 0 if view.part in self._empty else 100

    def sample(self, into, *, view, rng, window):
        self.threads.add(threading.current_thread().name)
        self.views.append(view.part)
        for out in into.values():
            out[...] = rng.integers(0, 2 if out.dtype == bool else 200, out.shape)


def make(replay, num_ahead, seed=0):
    rng = np.random.default_rng(seed)
    return rng, Batches(request=REQUEST, robot=ROBOT, replay=replay, rng=rng, num_ahead=num_ahead)


def copies(batches, count):
    return [{name: batch[name].clone() for name in batch.keys()} for batch in batches.take(count)]  # noqa: SIM118


def test_sampling_ahead_gives_the_same_batches():
    expected = copies(make(RandomReplay(), 0)[1], 7)
    for num_ahead in (1, 2, 10):
        rng, batches = make(RandomReplay(), num_ahead)
        got = copies(batches, 3) + copies(batches, 4)
        for batch, reference in zip(got, expected, strict=True):
            assert all(torch.equal(batch[name], reference[name]) for name in expected[0])
        assert rng.bit_generator.state == _after(7)


def _after(count):
    rng, batches = make(RandomReplay(), 0)
    copies(batches, count)
    return rng.bit_generator.state


def test_unused_batches_leave_the_generator_unchanged():
    """In a checkpoint after an interrupt, the generator must not be ahead of the learner."""
    rng, batches = make(RandomReplay(), 3)
    taken = batches.take(50)
    for _ in range(2):
        next(taken)
    taken.close()
    assert rng.bit_generator.state == _after(2)


@pytest.mark.parametrize("num_ahead", [1, 2])
def test_sampling_ahead_does_not_overwrite_the_batch_in_use(num_ahead):
    expected = copies(make(RandomReplay(), 0)[1], 6)
    _, batches = make(RandomReplay(), num_ahead)
    for batch, other in zip(batches.take(6), expected, strict=True):
        batches._thread.submit(lambda: None).result()  # the thread has done all that it was asked for
        assert all(torch.equal(batch[name], other[name]) for name in other)


def test_large_batches_are_sampled_on_another_thread():
    replay = RandomReplay()
    copies(make(replay, 2)[1], 4)
    assert threading.current_thread().name not in replay.threads


def test_small_batches_are_sampled_without_a_thread():
    replay = RandomReplay()
    rng = np.random.default_rng(0)
    copies(Batches(request=REQUEST, robot=ROBOT, replay=replay, rng=rng), 2)
    assert replay.threads == {threading.current_thread().name}


def test_replay_error_is_raised_in_the_learner():
    class Broken(RandomReplay):
        def sample(self, into, **_):
            raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        copies(make(Broken(), 2)[1], 4)


def test_batch_has_requested_shapes_and_uint8_images():
    (batch,) = copies(make(RandomReplay(), 0)[1], 1)
    assert batch["observation/front"].dtype == batch["next/front"].dtype == torch.uint8
    assert batch["observation/front"].shape == (8, 8, 8, 3)
    assert batch["observation/state"].shape == (8, 3, 3)
    assert batch["next/state/mask"].shape == (8, 3)
    assert batch["action"].shape == (8, 5, 2)
    assert batch["action/mask"].dtype == torch.bool
    assert batch["human"].shape == (8, 5)


def test_when_empty_replaces_an_empty_view():
    for when_empty, expected in ((View(), ["prior", "all"]), (None, ["prior", "online"])):
        replay, rng = RandomReplay(empty=("online",)), np.random.default_rng(0)
        request = dataclasses.replace(REQUEST, when_empty=when_empty)
        copies(Batches(request=request, robot=ROBOT, replay=replay, rng=rng), 1)
        assert replay.views == expected  # with None, the replay itself raises


def test_request_without_chunks_or_history_has_no_masks():
    arrays = batch_arrays(SampleRequest(observation_keys=("state",), rows={View(): 2}), ROBOT)
    assert set(arrays) == {"action", "human", "reward", "discount", "observation/state", "next/state"}
    assert arrays["action"].shape == (2, 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_gpu_batches_come_from_pinned_buffers():
    expected = copies(make(RandomReplay(), 0)[1], 20)
    rng = np.random.default_rng(0)
    batches = Batches(request=REQUEST, robot=ROBOT, replay=RandomReplay(), rng=rng, num_ahead=2, device="cuda")
    for batch, other in zip(batches.take(20), expected, strict=True):
        assert all(batch[name].is_cuda for name in other)
        assert all(torch.equal(batch[name].cpu(), other[name]) for name in other)
