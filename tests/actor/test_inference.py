"""Inference inline, in a thread and over the board: the same request gets the same answer."""

import threading

import numpy as np
import pytest

from dovetail.actor.board import Board, BoardLayout
from dovetail.actor.inference import (
    NO_ANSWER,
    Answer,
    ChunkOrHold,
    InlineInference,
    ProcessInference,
    Request,
    ThreadInference,
    compute_chunk,
    next_request,
    write_answer,
)
from dovetail.core.errors import PolicyUnreachable
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from support.acting import ChunkPolicy

H, A = 4, 7


@pytest.fixture
def policy():
    return ChunkPolicy(FakeArm(FakeArmConfig()).spec, horizon=H, history={"ee_pose": 3})


@pytest.fixture
def board(policy):
    robot = FakeArm(FakeArmConfig())
    board = Board(BoardLayout.of(robot.spec, extras={}, horizon=H, num_rows=8))
    for number in range(3):
        seen = robot.observe()
        seen.values["gripper"][:] = number
        board.observe(seen)
    return board


def request(**changes):
    prefix = np.full((H, A), np.nan, np.float32)
    prefix[:2] = 0.5
    known = {
        "row": 2,
        "first": 1,
        "delay": 3,
        "horizon": 2,
        "seed": 2**62,
        "deterministic": True,
        "prefix": prefix,
    }
    return Request(**(known | changes))


def chunk(value):
    return np.full((H, A), value, np.float32)


def answer(board, value, *, to):
    write_answer(board, Answer(id=to.id, actions=chunk(value), policy_version=9, latency_ns=5))


class WakeCounter:
    def __init__(self):
        self.num_wakes = 0

    def wake(self):
        self.num_wakes += 1


@pytest.fixture
def waker():
    return WakeCounter()


@pytest.fixture
def shared(board, waker):
    def never(timeout_s):
        raise AssertionError("this must not wait")

    return ProcessInference(board, wake=waker.wake, listen=never)


def test_policy_receives_the_whole_request(board, policy):
    compute_chunk(board, policy, request())
    (context,) = policy.contexts
    assert (context.delay, context.horizon, context.seed, context.deterministic) == (3, 2, 2**62, True)
    np.testing.assert_array_equal(context.prefix, request().prefix[None])
    assert policy.observations[0]["gripper"].tolist() == [[2.0]]
    assert policy.observations[0]["ee_pose/mask"].tolist() == [[False, True, True]]


def test_request_crosses_the_board_unchanged(board, shared, waker):
    for asked in (request(), request(prefix=None, deterministic=False)):
        shared.ask(asked)
        _, got = next_request(board, newer_than=0)
        for name in ("row", "first", "delay", "horizon", "seed", "deterministic"):
            assert getattr(got, name) == getattr(asked, name)
        if asked.prefix is None:
            assert got.prefix is None
        else:
            np.testing.assert_array_equal(got.prefix, asked.prefix)
    assert waker.num_wakes == 2


def test_answer_is_returned_once(board, shared):
    shared.ask(request())
    assert shared.answer(wait=False) is None
    version, question = next_request(board, newer_than=0)
    assert next_request(board, newer_than=version) is None
    answer(board, 0.25, to=question)
    got = shared.answer(wait=True)
    assert (got.actions == 0.25).all()
    assert (got.policy_version, got.latency_ns) == (9, 5)
    assert shared.answer(wait=False) is None


def test_answer_to_an_older_request_is_ignored(board, shared):
    shared.ask(request())
    _, old = next_request(board, newer_than=0)
    shared.ask(request(row=1))
    answer(board, 0.25, to=old)
    assert shared.answer(wait=False) is None
    _, new = next_request(board, newer_than=old.id)
    answer(board, 0.75, to=new)
    assert (shared.answer(wait=False).actions == 0.75).all()


def test_answer_to_another_requester_is_ignored(board, waker):
    """Several control loops and a restarted control process: request ids never repeat."""
    before = ProcessInference(board, wake=waker.wake, listen=lambda timeout_s: None)
    before.ask(request())
    _, old = next_request(board, newer_than=0)
    after = ProcessInference(board, wake=waker.wake, listen=lambda timeout_s: None)
    after.ask(request(row=1))
    answer(board, 0.25, to=old)
    assert after.answer(wait=False) is None


def test_wait_listens_until_the_answer_arrives(board, waker):
    timeouts = []

    def listen(timeout_s):
        timeouts.append(timeout_s)
        if len(timeouts) == 3:
            answer(board, 0.5, to=next_request(board, newer_than=0)[1])

    inference = ProcessInference(board, wake=waker.wake, listen=listen)
    inference.ask(request())
    assert (inference.answer(wait=True).actions == 0.5).all()
    assert len(timeouts) == 3


def test_wait_raises_the_error_of_the_listener(board, waker):
    def listen(timeout_s):
        raise RuntimeError("the inference process has died")

    inference = ProcessInference(board, wake=waker.wake, listen=listen)
    inference.ask(request())
    with pytest.raises(RuntimeError, match="has died"):
        inference.answer(wait=True)


@pytest.mark.parametrize("shape", [(A,), (1, A), (H, 1), (H + 1, A), (1, H, A), ()])
def test_chunk_with_wrong_shape_becomes_nan(board, shared, shape):
    """It must neither be spread over the whole chunk nor end the process: the planner passes it over, and counts."""
    shared.ask(request())
    _, question = next_request(board, newer_than=0)
    write_answer(board, Answer(id=question.id, actions=np.ones(shape, np.float32), policy_version=9, latency_ns=5))
    assert np.isnan(shared.answer(wait=False).actions).all()


# ---- in this process


def test_gone_server_means_hold_in_the_thread_of_a_real_clock(board, policy, monkeypatch):
    """The reset of the episode did not arrive; it precedes the first chunk."""
    calls, is_gone = [], True

    def reset():
        calls.append("reset")
        if is_gone:
            raise PolicyUnreachable("connection lost")

    def act(observations, context):
        calls.append("act")
        return ChunkPolicy.act(policy, observations, context)

    monkeypatch.setattr(policy, "reset", reset)
    monkeypatch.setattr(policy, "act", act)
    inference = ThreadInference(board, policy)
    inference.reset()
    inference.ask(request())
    nothing = inference.answer(wait=True)
    assert nothing.policy_version == NO_ANSWER and np.isnan(nothing.actions).all()
    is_gone = False
    for _ in range(2):
        inference.ask(request())
        assert np.isfinite(inference.answer(wait=True).actions).all()
    inference.close()
    assert calls == ["reset", "reset", "reset", "act", "act"]


def test_chunk_whose_server_is_gone_means_hold(board, policy, monkeypatch):
    def act(observations, context):
        raise PolicyUnreachable("connection lost")

    monkeypatch.setattr(policy, "act", act)
    problems = []
    answer = ChunkOrHold(board, policy, on_problem=problems.append).compute(request())
    assert answer.policy_version == NO_ANSWER and problems == ["connection lost"]


def test_inline_and_process_inference_give_the_same_answer(board, policy, shared):
    here = InlineInference(board, policy)
    here.ask(request())
    mine = here.answer(wait=True)
    assert here.answer(wait=True) is None  # once
    policy.calls = 0
    shared.ask(request())
    write_answer(board, compute_chunk(board, policy, next_request(board, newer_than=0)[1]))
    np.testing.assert_array_equal(mine.actions, shared.answer(wait=False).actions)
    assert mine.policy_version == 7
    assert mine.latency_ns > 0


class Gate:
    """A policy whose inference blocks until `open` is set."""

    def __init__(self, policy):
        self.spec, self._policy, self.rows = policy.spec, policy, []
        self.entered, self.open = threading.Event(), threading.Event()

    def act(self, observations, context):
        self.rows.append(int(observations["gripper"][0, 0]))
        self.entered.set()
        assert self.open.wait(10.0)
        return self._policy.act(observations, context)


def test_thread_inference_never_blocks_and_uses_the_newest_request(board, policy):
    gate = Gate(policy)
    inference = ThreadInference(board, gate)
    try:
        inference.ask(request(row=0, first=0))
        assert gate.entered.wait(10.0)
        assert inference.answer(wait=False) is None
        inference.ask(request(row=1, first=0))  # canceled before it began
        inference.ask(request(row=2, first=0))
        gate.open.set()
        assert inference.answer(wait=True) is not None
        assert gate.rows == [0, 2]
        assert inference.answer(wait=False) is None
    finally:
        gate.open.set()
        inference.close()


def test_error_of_inference_thread_is_raised_by_answer(board, policy):
    policy.act = lambda *_: 1 / 0
    inference = ThreadInference(board, policy)
    try:
        inference.ask(request())
        with pytest.raises(ZeroDivisionError):
            inference.answer(wait=True)
    finally:
        inference.close()
