"""The inference process: thinks when it is asked, and takes new weights between two thoughts."""

from __future__ import annotations

import select
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dovetail.actor.mind import give_answer, next_request, think
from dovetail.config.schema import PluginSection
from dovetail.core.contracts import Policy
from dovetail.core.specs import RobotSpec
from dovetail.runtime._bell import Ear, Ringer
from dovetail.runtime.roles import Role
from dovetail.runtime.swap import Swapper
from dovetail.weights.store import DiskWeightStore

__all__ = ["run"]


def run(role: Role) -> None:
    torch.set_num_threads(1)
    orders, channel, board = role.orders, role.channel, role.board
    section, robot = PluginSection.parse("policy", orders["policy"]), RobotSpec.from_json(orders["robot"])

    def make() -> Policy:
        policy: Policy = section.build(robot=robot, seed=orders["seed"])
        return policy

    follow = DiskWeightStore(orders["follow"]) if orders["follow"] else None
    swapper = Swapper(make, follow=follow)
    asked, answer = Ear(role.descriptors["ask"]), Ringer(role.descriptors["answer"])
    inbox = DiskWeightStore(Path(orders["inbox"]))
    version = board.request.version
    role.ready()
    try:
        while True:
            select.select([asked.fileno(), channel.fileno()], [], [])
            if not asked.hears():
                return  # control has died: there is nobody to think for
            request = next_request(board, newer_than=version)
            if request is not None:
                version, question = request
                give_answer(board, think(board, swapper.policy(), question))
                answer.ring()
            elif channel_message := channel.receive(timeout_s=0.0):
                if "close" in channel_message:
                    return
                channel.send(_obey(channel_message, swapper, inbox))
    finally:
        swapper.close()


def _obey(message: dict[str, Any], swapper: Swapper, inbox: DiskWeightStore) -> dict[str, Any]:
    if "load" in message:
        snapshot = replace(inbox.load(message["load"]), version=message["version"])
        swapper.load(snapshot)
        return {"loaded": snapshot.version}
    swapper.policy().reset()
    return {"reset": True}
