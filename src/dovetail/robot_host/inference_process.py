"""The inference process: computes an action chunk on request, and loads new weights between two requests."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.actor.board import Board
from dovetail.actor.inference import Answer, ChunkOrHold, Request, next_request, no_chunk, write_answer
from dovetail.config.policy_server import LearningServerConfig
from dovetail.config.schema import PluginSection
from dovetail.core.contracts import Policy
from dovetail.core.errors import PolicyError, StoreError
from dovetail.core.specs import RobotSpec
from dovetail.processes.wakeup import WakeupReader, WakeupWriter, wait_for
from dovetail.robot_host.following_policy import FollowingPolicy
from dovetail.robot_host.process_main import ProcessContext
from dovetail.runs.assembly.policy_components import build_acting_policy
from dovetail.weights.store import DiskWeightStore

__all__ = ["run"]

_PAUSE_S = 0.2  # after a failure


def run(context: ProcessContext) -> None:
    settings, channel, board = context.settings, context.channel, context.board
    section, robot = PluginSection.parse("policy", settings["policy"]), RobotSpec.from_json(settings["robot"])

    def make() -> Policy:
        components = Path(settings["components"]) if settings["components"] else None
        server = LearningServerConfig.from_mapping(settings["server"]) if settings["server"] else None
        return build_acting_policy(
            section,
            robot=robot,
            seed=settings["seed"],
            components=components,
            server=server,
            run_id=settings["run_id"],
            simulated=settings["simulated"],
        )

    store = DiskWeightStore(settings["follow"]) if settings["follow"] else None
    requests = WakeupReader(context.descriptors["request"])
    answers = WakeupWriter(context.descriptors["answer"])
    problems: list[str] = []
    with FollowingPolicy(make, store=store, on_problem=problems.append) as policy:
        policy.following = False  # until an episode of online learning begins
        chunks = ChunkOrHold(board, policy, on_problem=problems.append)
        version = board.request.version
        context.report_ready()
        while True:
            wait_for(requests.fileno(), channel.fileno())
            if not requests.drain():
                return  # the control process has ended
            request = next_request(board, newer_than=version)
            if request is not None:
                version, question = request
                write_answer(board, _compute(board, chunks, question, problems))
                answers.wake()
            elif (message := channel.receive(timeout_s=0.0)) is not None:
                if "close" in message:
                    return
                channel.send(_handle(message, policy, chunks, problems))


def _compute(board: Board, chunks: ChunkOrHold, request: Request, problems: list[str]) -> Answer:
    """The action chunk; NaN, on which the control loop does not act, if the policy fails or its server is gone."""
    try:
        return chunks.compute(request)
    except PolicyError as error:
        problems.append(str(error))
        time.sleep(_PAUSE_S)
        return no_chunk(board, request, version=0)


def _handle(
    message: dict[str, Any], policy: FollowingPolicy, chunks: ChunkOrHold, problems: list[str]
) -> dict[str, Any]:
    if "load" in message:
        store = DiskWeightStore(message["folder"])
        snapshot = replace(store.load(message["load"]), version=message["version"])
        try:
            policy.load(snapshot)
        except StoreError as error:
            return {"refused": str(error)}
        return {"loaded": snapshot.version}
    if "reset" in message:
        policy.following = message["follow"]
        chunks.reset()
    newest = problems[-1] if problems else None
    problems.clear()
    return {"problem": newest, "telemetry": policy.telemetry()}
