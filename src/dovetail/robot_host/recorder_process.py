"""The recorder process: reads the steps from the board and writes them to the spool."""

from __future__ import annotations

import shutil
import time
from typing import Any

from dovetail.actor.episode_writer import EpisodeWriter
from dovetail.core.types import EpisodeStart, Outcome
from dovetail.episodes.spool import Spool
from dovetail.processes.channel import ChannelClosed
from dovetail.robot_host.process_main import ProcessContext

__all__ = ["run"]

_POLL_S = 0.05
_SETTLE_S = 0.3  # a control process without a supervisor has stopped the arm after this time


def run(context: ProcessContext) -> None:
    settings, channel = context.settings, context.channel
    spool = Spool(settings["spool"])
    writer = EpisodeWriter(context.board, spool, keep=False)
    context.report_ready()
    try:
        while True:
            message = channel.receive(timeout_s=_POLL_S)
            if message is not None:
                if "close" in message:
                    writer.flush()
                    return
                channel.send(_handle(message, writer))
            elif writer.num_unwritten_steps > settings["flush_steps"]:
                writer.flush()
    except ChannelClosed:
        # a resumed run finds the episode without an end, but with all steps until now
        time.sleep(_SETTLE_S)
        writer.flush()
        shutil.rmtree(settings["temp_folder"], ignore_errors=True)  # the supervisor has ended without doing so
    finally:
        spool.close()


def _handle(message: dict[str, Any], writer: EpisodeWriter) -> dict[str, Any]:
    if "begin" in message:
        writer.begin(EpisodeStart.from_json(message["begin"]), first=message["first"])
        return {"begun": True}
    end = message["end"]
    judgement = Outcome(end["judgement"]) if end["judgement"] else None
    writer.end(
        outcome=Outcome(end["outcome"]),
        judgement=judgement,
        num_steps=end["num_steps"],
        reset_s=end["reset_s"],
        has_success=end["has_success"],
    )
    return {"ended": True}
