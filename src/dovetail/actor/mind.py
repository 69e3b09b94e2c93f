"""Who thinks: asked about a row of the board, answers with a chunk, in this thread, in another, or in a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dovetail.actor.board import Board
from dovetail.core.contracts import Policy
from dovetail.core.types import ActContext, Array

__all__ = ["Answer", "LocalMind", "Mind", "Request", "SharedMind", "ThreadMind", "think"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Think about a row; `first` is where its history begins, `prefix` [H, A] what is committed from it on."""

    row: int
    first: int
    delay: int
    horizon: int
    seed: int
    deterministic: bool
    prefix: Array | None
    id: int = 0  # names it on a board, where the answer to another one may lie


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    id: int
    actions: Array  # [H, A]
    policy_version: int
    latency_ns: int


class Mind(Protocol):
    """At most one question at a time; a new one makes the answer to the last one void."""

    def ask(self, request: Request) -> None: ...

    def answer(self, *, wait: bool) -> Answer | None:
        """What it has come to, once; None if it still thinks. `wait` for it where time stands still meanwhile."""


def think(board: Board, policy: Policy, request: Request) -> Answer:
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
    )


class LocalMind:
    """Thinks when it is asked, and everybody waits: for simulated time."""

    def __init__(self, board: Board, policy: Policy) -> None:
        self._board, self._policy = board, policy
        self._answer: Answer | None = None

    def ask(self, request: Request) -> None:
        self._answer = think(self._board, self._policy, request)

    def answer(self, *, wait: bool) -> Answer | None:
        answer, self._answer = self._answer, None
        return answer


class ThreadMind:
    """Thinks in a thread of its own: for a real clock in one process. It still shares the interpreter with the tick."""

    def __init__(self, board: Board, policy: Policy) -> None:
        self._board, self._policy = board, policy
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="inference")
        self._thinking: Future[Answer] | None = None

    def ask(self, request: Request) -> None:
        if self._thinking is not None:
            self._thinking.cancel()  # void: if it has not begun, it need not
        self._thinking = self._pool.submit(think, self._board, self._policy, request)

    def answer(self, *, wait: bool) -> Answer | None:
        if self._thinking is None or not (wait or self._thinking.done()):
            return None
        thinking, self._thinking = self._thinking, None
        return thinking.result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class SharedMind:
    """Asks the inference process, through the board. `wake` rings its bell; `listen(timeout_s)` waits for ours, and
    raises if nobody will ring it any more."""

    def __init__(self, board: Board, *, wake: Callable[[], None], listen: Callable[[float], None]) -> None:
        self._board = board
        self._wake, self._listen = wake, listen
        self._asked = 0
        self._version = board.answer.version

    def ask(self, request: Request) -> None:
        # its version names it: never used twice, whoever asks and how often they are made anew
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
                    )
            elif not wait:
                return None
            else:
                self._listen(0.1)


def next_request(board: Board, *, newer_than: int) -> tuple[int, Request] | None:
    """The inference process's side: the newest question, if it is a new one, and its version."""
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


def give_answer(board: Board, answer: Answer) -> None:
    fits = answer.actions.shape == board.layout.chunk
    board.answer.write(
        {
            "id": answer.id,
            "actions": answer.actions if fits else np.nan,  # never spread over the others: not a chunk to act on
            "policy_version": answer.policy_version,
            "latency_ns": answer.latency_ns,
        }
    )
