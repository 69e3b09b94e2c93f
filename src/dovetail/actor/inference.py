"""Inference for the control loop: request a chunk for a row of the board, in this thread, another thread or a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dovetail.actor.board import Board
from dovetail.core.contracts import Policy
from dovetail.core.errors import PolicyUnreachable
from dovetail.core.proposals import EMBEDDING, PROPOSAL
from dovetail.core.types import ActContext, Array

__all__ = [
    "NO_ANSWER",
    "Answer",
    "ChunkOrHold",
    "Inference",
    "InlineInference",
    "ProcessInference",
    "Request",
    "ThreadInference",
    "compute_chunk",
    "no_chunk",
]


_PAUSE_S = 0.2  # after a failed connection to a policy server
NO_ANSWER = -1  # in place of a version: the policy's server is gone, so the arm holds and asks again


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Compute a chunk for a row. History starts at row `first`; `prefix` [H, A] holds the committed actions."""

    row: int
    first: int
    delay: int
    horizon: int
    seed: int
    deterministic: bool
    prefix: Array | None
    id: int = 0  # identifies the request on a board


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    id: int
    actions: Array  # [H, A]
    policy_version: int
    latency_ns: int
    proposal: Array | None = None  # [Hb, A]: a new chunk of the policy's base; NaN: the known one was used
    embedding: Array | None = None  # [E]: the base's inner features that belong to it


class Inference(Protocol):
    """Computes chunks, one request at a time. A new request cancels the last one."""

    def ask(self, request: Request) -> None: ...

    def answer(self, *, wait: bool) -> Answer | None:
        """Return the answer once; None while it is computed. `wait` is for simulated time."""


def compute_chunk(board: Board, policy: Policy, request: Request) -> Answer:
    started_ns = time.monotonic_ns()
    context = ActContext(
        deterministic=request.deterministic,
        seed=request.seed,
        prefix=None if request.prefix is None else request.prefix[None],
        delay=request.delay,
        horizon=request.horizon,
    )
    chunk = policy.act(board.inputs(policy.spec, row=request.row, first=request.first), context).at(0)
    return Answer(
        id=request.id,
        actions=np.asarray(chunk.actions, np.float32),
        policy_version=chunk.policy_version,
        latency_ns=time.monotonic_ns() - started_ns,
        proposal=chunk.extras.get(PROPOSAL) if policy.spec.base else None,
        embedding=chunk.extras.get(EMBEDDING) if policy.spec.base else None,
    )


class ChunkOrHold:
    """Computes chunks on the real clock. While the policy's server is gone or too slow, its answers make the arm hold and
    ask again. A `reset` that did not arrive precedes the next chunk."""

    def __init__(
        self, board: Board, policy: Policy, *, on_problem: Callable[[str], None] = lambda line: None
    ) -> None:
        self._board, self._policy, self._on_problem = board, policy, on_problem
        self._reset_is_due = False

    def reset(self) -> None:
        self._reset_is_due = True
        try:
            self._reset()
        except PolicyUnreachable as error:
            self._on_problem(str(error))

    def compute(self, request: Request) -> Answer:
        try:
            self._reset()
            return compute_chunk(self._board, self._policy, request)
        except PolicyUnreachable as error:
            self._on_problem(str(error))
            time.sleep(_PAUSE_S)
            return no_chunk(self._board, request, version=NO_ANSWER)

    def _reset(self) -> None:
        if self._reset_is_due:
            self._policy.reset()
            self._reset_is_due = False


def no_chunk(board: Board, request: Request, *, version: int) -> Answer:
    """An answer without actions (NaN), on which the control loop does not act."""
    nothing = np.full(board.layout.chunk, np.nan, np.float32)
    return Answer(id=request.id, actions=nothing, policy_version=version, latency_ns=0)


class InlineInference:
    """Computes in the caller's thread. For simulated time."""

    def __init__(self, board: Board, policy: Policy) -> None:
        self._board, self._policy = board, policy
        self._answer: Answer | None = None

    def reset(self) -> None:
        self._policy.reset()

    def ask(self, request: Request) -> None:
        self._answer = compute_chunk(self._board, self._policy, request)

    def answer(self, *, wait: bool) -> Answer | None:
        answer, self._answer = self._answer, None
        return answer


class ThreadInference:
    """Computes in another thread of this process, which shares the interpreter lock with the control loop. For real time."""

    def __init__(self, board: Board, policy: Policy) -> None:
        self._chunks = ChunkOrHold(board, policy)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="inference")
        self._future: Future[Answer] | None = None

    def reset(self) -> None:
        self._chunks.reset()

    def ask(self, request: Request) -> None:
        if self._future is not None:
            self._future.cancel()  # no effect if it has begun
        self._future = self._pool.submit(self._chunks.compute, request)

    def answer(self, *, wait: bool) -> Answer | None:
        if self._future is None or not (wait or self._future.done()):
            return None
        future, self._future = self._future, None
        return future.result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class ProcessInference:
    """Computes in the inference process, through the board. `wake` wakes that process; `listen(timeout_s)` waits for its
    wakeup and raises if the process has died."""

    def __init__(self, board: Board, *, wake: Callable[[], None], listen: Callable[[float], None]) -> None:
        self._board = board
        self._wake, self._listen = wake, listen
        self._asked = 0
        self._version = board.answer.version

    def ask(self, request: Request) -> None:
        # the version is the id: unique, also after a restart of either process
        self._asked = self._board.request.write(
            {
                "row": request.row,
                "first": request.first,
                "delay": request.delay,
                "horizon": request.horizon,
                "seed": request.seed,
                "deterministic": request.deterministic,
                "guided": request.prefix is not None,
                "prefix": np.nan if request.prefix is None else request.prefix,
            }
        )
        self._wake()

    def answer(self, *, wait: bool) -> Answer | None:
        while True:
            found = self._board.answer.read(newer_than=self._version)
            if found is not None:
                self._version, values = found
                if int(values["id"]) == self._asked:
                    return Answer(
                        id=self._asked,
                        actions=values["actions"],
                        policy_version=int(values["policy_version"]),
                        latency_ns=int(values["latency_ns"]),
                        proposal=values.get(PROPOSAL),
                        embedding=values.get(EMBEDDING),
                    )
            elif not wait:
                return None
            else:
                self._listen(0.1)


def next_request(board: Board, *, newer_than: int) -> tuple[int, Request] | None:
    """In the inference process: return the version and content of the newest request, if it is new."""
    found = board.request.read(newer_than=newer_than)
    if found is None:
        return None
    version, values = found
    return version, Request(
        id=version,
        row=int(values["row"]),
        first=int(values["first"]),
        delay=int(values["delay"]),
        horizon=int(values["horizon"]),
        seed=int(values["seed"]),
        deterministic=bool(values["deterministic"]),
        prefix=values["prefix"] if values["guided"] else None,
    )


def write_answer(board: Board, answer: Answer) -> None:
    fits = answer.actions.shape == board.layout.chunk
    board.answer.write(
        {
            "id": answer.id,
            "actions": answer.actions if fits else np.nan,  # the planner rejects NaN
            "policy_version": answer.policy_version,
            "latency_ns": answer.latency_ns,
            **(
                {PROPOSAL: np.nan if answer.proposal is None else answer.proposal}
                if board.layout.base_horizon
                else {}
            ),
            **(
                {EMBEDDING: np.nan if answer.embedding is None else answer.embedding}
                if board.layout.base_embedding
                else {}
            ),
        }
    )
