"""The inference process: thinks when it is asked, and takes new weights between two thoughts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.actor.board import Board
from dovetail.actor.mind import Answer, Request, give_answer, next_request, think
from dovetail.config.schema import PluginSection
from dovetail.core.contracts import Policy
from dovetail.core.errors import PolicyError, StoreError
from dovetail.core.specs import RobotSpec
from dovetail.processes.wakeup import Ear, Ringer, wait_for
from dovetail.robot_host.following_policy import FollowingPolicy
from dovetail.robot_host.process_main import Role
from dovetail.runs.assembly.policy_parts import build_policy
from dovetail.weights.store import DiskWeightStore

__all__ = ["run"]

_PAUSE_S = 0.2  # after a failure: a policy on another machine may come back


def run(role: Role) -> None:
    orders, channel, board = role.orders, role.channel, role.board
    section, robot = PluginSection.parse("policy", orders["policy"]), RobotSpec.from_json(orders["robot"])

    def make() -> Policy:
        parts = Path(orders["parts"]) if orders["parts"] else None
        return build_policy(section, robot=robot, seed=orders["seed"], parts=parts)

    store = DiskWeightStore(orders["follow"]) if orders["follow"] else None
    asked, answer = Ear(role.descriptors["ask"]), Ringer(role.descriptors["answer"])
    problems: list[str] = []
    with FollowingPolicy(make, store=store, complain=problems.append) as policy:
        policy.following = False  # until an episode says otherwise
        servant = _Servant(policy, problems)
        version = board.request.version
        role.ready()
        while True:
            wait_for(asked.fileno(), channel.fileno())
            if not asked.hears():
                return  # control has died: there is nobody to think for
            request = next_request(board, newer_than=version)
            if request is not None:
                version, question = request
                give_answer(board, servant.think(board, question))
                answer.ring()
            elif (message := channel.receive(timeout_s=0.0)) is not None:
                if "close" in message:
                    return
                channel.send(servant.obey(message))


class _Servant:
    def __init__(self, policy: FollowingPolicy, problems: list[str]) -> None:
        self._policy, self._problems = policy, problems

    def think(self, board: Board, question: Request) -> Answer:
        """The answer; or one that nobody will act on, where a policy on another machine cannot be reached."""
        try:
            return think(board, self._policy, question)
        except PolicyError as error:
            self._problems.append(str(error))
            time.sleep(_PAUSE_S)
            nothing = np.full(board.layout.chunk, np.nan, np.float32)
            return Answer(id=question.id, actions=nothing, policy_version=0, latency_ns=0)

    def obey(self, message: dict[str, Any]) -> dict[str, Any]:
        if "load" in message:
            store = DiskWeightStore(message["folder"])
            snapshot = replace(store.load(message["load"]), version=message["version"])
            try:
                self._policy.load(snapshot)
            except StoreError as error:
                return {"refused": str(error)}
            return {"loaded": snapshot.version}
        if "reset" in message:
            self._policy.following = message["follow"]
            self._policy.reset()
        last = self._problems[-1] if self._problems else None
        self._problems.clear()
        return {"problem": last, "telemetry": self._policy.report()}
