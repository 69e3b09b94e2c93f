"""The recorder process: reads what has happened from the board, and writes it to the spool."""

from __future__ import annotations

import shutil
import time
from typing import Any

from dovetail.actor.scribe import Scribe
from dovetail.core.types import EpisodeStart, Outcome
from dovetail.episodes.spool import Spool
from dovetail.processes.channel import Gone
from dovetail.robot_host.process_main import Role

__all__ = ["run"]

_LOOK_S = 0.05
_SETTLE_S = 0.3  # after which a control process that has lost its supervisor has stopped the arm


def run(role: Role) -> None:
    orders = role.orders
    spool = Spool(orders["spool"])
    scribe = Scribe(role.board, spool, keep=False)
    flush_steps = orders["flush_steps"]
    role.ready()
    try:
        while True:
            message = role.channel.receive(timeout_s=_LOOK_S)
            if message is not None:
                if "close" in message:
                    scribe.flush()  # of an episode that nobody will end
                    return
                role.channel.send(_obey(message, scribe))
            elif scribe.num_waiting > flush_steps:
                scribe.flush()
    except Gone:
        # whoever takes the run up again finds the episode without an end, up to here
        time.sleep(_SETTLE_S)
        scribe.flush()
        shutil.rmtree(orders["scratch"], ignore_errors=True)  # the supervisor cannot any more
    finally:
        spool.close()


def _obey(message: dict[str, Any], scribe: Scribe) -> dict[str, Any]:
    if "begin" in message:
        scribe.begin(EpisodeStart.from_json(message["begin"]), first=message["first"])
        return {"begun": True}
    end = message["end"]
    judgement = Outcome(end["judgement"]) if end["judgement"] else None
    scribe.end(outcome=Outcome(end["outcome"]), judgement=judgement, num_steps=end["num_steps"])
    return {"ended": True}
