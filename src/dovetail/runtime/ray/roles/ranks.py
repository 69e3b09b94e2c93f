"""The ranks that learn with the learner, as actors of Ray's: see `runtime.ranks`, whose loop they run.

The learner starts them beside itself, for each has its own view of the replay, which only the store's machine can map, and
they end with it. One that dies takes the learner along: it is started anew from its checkpoint, with a group of its own.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ray
import torch.distributed as dist
from ray.exceptions import GetTimeoutError, RayActorError

from dovetail.config.schema import RunConfig
from dovetail.core.contracts import Algorithm
from dovetail.core.errors import FailureError, UsageError, one_line
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ranks import LeadAlgorithm, follow, lead_ranks, rank_orders
from dovetail.runtime.ray.cluster.connection import machines
from dovetail.runtime.ray.roles.role import Role

__all__ = ["RankLost", "RankRole", "RayRanks"]

_LOOK_S = 0.1
_ANSWER_S = 5.0
_WORDS = "words-"  # at the meeting place: what a rank died of, by its number


class RankLost(FailureError):
    """A rank was killed: whoever learned with it cannot go on, and somebody started anew can."""


class RankRole(Role):
    """One of the others. All it is asked is answered at once, in the order in which it was asked."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._told: SimpleQueue[tuple[Mapping[str, Any], Mapping[str, Array]]] = SimpleQueue()
        self._ready = False

    def follow(self, orders: Mapping[str, Any]) -> None:
        self._told.put((orders, {}))
        words = Path(orders["meeting"]).with_name(f"{_WORDS}{orders['rank']}")
        threading.Thread(target=self._work, args=(words,), name="following", daemon=True).start()

    def tell(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self._told.put((facts, arrays))

    def report(self) -> dict[str, Any]:
        return {**self.about(), "ready": self._ready}

    # ---- the line to rank 0

    def receive(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        return self._told.get()

    def send(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self._ready = self._ready or "ready" in facts

    def _work(self, words: Path) -> None:
        try:
            with self.working("following"):
                follow(self)
        except Exception as error:  # a thread's border: the others hang until this process is gone
            with contextlib.suppress(OSError):
                words.write_text(one_line(error))
            os._exit(1)


class RayRanks:
    """The others, as the learner has them: `start` them, `lead` them, `close` them. See `runtime.ranks.Group`."""

    def __init__(self, folder: RunFolder, *, robot: RobotSpec, replayed: RobotSpec) -> None:
        self.size = folder.config.learner.ranks
        self._config, self._meeting = folder.config, tempfile.TemporaryDirectory(prefix="dovetail-ranks-")
        self._orders = rank_orders(
            folder.path,
            size=self.size,
            robot=robot,
            replay=folder.replay,
            replayed=replayed,
            meeting=Path(self._meeting.name) / "store",
        )
        self._orders["sees_its_own"] = self._config.cluster.learner.num_gpus > 0  # else each sees all of them
        self._ranks: dict[int, Any] = {}

    def start(self) -> None:
        options = _beside_us(self._config)
        made: Any = ray.remote(RankRole)
        for rank in range(1, self.size):
            self._ranks[rank] = made.options(**options, max_restarts=0).remote(f"rank-{rank}")
            self._ranks[rank].follow.remote({**self._orders, "rank": rank})

    def lead(self, algorithm: Algorithm) -> LeadAlgorithm:
        """Wait until all are there, and go on as one."""
        while not all(report["ready"] for report in self.reports()):
            time.sleep(_LOOK_S)
        return lead_ranks(self, algorithm, self._config, self._orders)

    def reports(self) -> list[dict[str, Any]]:
        """How they are. Raises RankLost where one is no more."""
        try:
            return list(ray.get([rank.report.remote() for rank in self._ranks.values()]))
        except RayActorError as error:
            raise self._obituary() or RankLost("a learning rank has died") from error

    def tell(self, facts: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        kept = ray.put(dict(arrays or {})) if arrays else {}
        for rank in self._ranks.values():
            rank.tell.remote(facts, kept)

    def lost(self, error: FailureError) -> FailureError:
        return self._obituary() or error

    def close(self) -> None:
        for rank in self._ranks.values():
            ray.kill(rank)
        if dist.is_initialized():
            dist.destroy_process_group()
        self._meeting.cleanup()

    def _obituary(self) -> FailureError | None:
        """What the first one that died said, or that it was killed; None while all live."""
        for number, rank in self._ranks.items():
            try:
                ray.get(rank.report.remote(), timeout=_ANSWER_S)
            except GetTimeoutError:
                continue
            except RayActorError:
                with contextlib.suppress(OSError):
                    words = Path(self._meeting.name, f"{_WORDS}{number}").read_text()
                    return FailureError(f"learning rank {number} has died: {words}")
                return RankLost(f"learning rank {number} was killed")
        return None


def _beside_us(config: RunConfig) -> dict[str, Any]:
    """On the learner's own machine, with as much of it as the learner has."""
    place, size = config.cluster.learner, config.learner.ranks
    here = ray.util.get_node_ip_address()
    (node,) = [node for node in machines() if node["NodeManagerAddress"] == here][:1]
    for name, amount in (("GPU", place.num_gpus), ("CPU", place.num_cpus)):
        offered = node["Resources"].get(name, 0.0)
        if size * amount > offered:
            raise UsageError(
                f"learner.ranks={size} with {amount:g} of '{name}' each need {size * amount:g}, and the learner's machine "
                f"offers {offered:g}: set fewer"
            )
    pinned = {f"node:{here}": 0.001}
    return {"num_cpus": place.num_cpus, "num_gpus": place.num_gpus, "resources": pinned}
