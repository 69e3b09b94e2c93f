"""The other ranks of a data-parallel learner as Ray actors. They run the loop of `runtime.ranks`.

The learner starts them on its own machine, because each rank maps the replay, and they end with it. If a rank ends, the
learner ends too, and Ray restarts it from its checkpoint with new ranks.
"""

from __future__ import annotations

import contextlib
import os
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
from dovetail.processes.temp_folder import LockedTempFolder
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ranks import LeadAlgorithm, follow, lead_ranks, rank_settings
from dovetail.runtime.ray.cluster.connection import machines
from dovetail.runtime.ray.roles.role import Role

__all__ = ["RankLost", "RankRole", "RayRanks"]

_POLL_S = 0.1
_REPLY_S = 5.0
_ERROR_FILE = "error-"  # in the temporary folder, with the rank's number: the error that ended a rank


class RankLost(FailureError):
    """A rank was killed. This learner cannot continue, but a restarted one can."""


class RankRole(Role):
    """One of the other ranks. Every call returns at once; a thread handles the messages in their order."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._messages: SimpleQueue[tuple[Mapping[str, Any], Mapping[str, Array]]] = SimpleQueue()
        self._ready = False

    def follow(self, settings: Mapping[str, Any]) -> None:
        self._messages.put((settings, {}))
        error_file = Path(settings["rendezvous"]).with_name(f"{_ERROR_FILE}{settings['rank']}")
        threading.Thread(target=self._work, args=(error_file,), name="following", daemon=True).start()

    def handle(self, message: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self._messages.put((message, arrays))

    def report(self) -> dict[str, Any]:
        return {**self.about(), "ready": self._ready}

    # ---- the connection to rank 0, see RankChannel

    def receive(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        return self._messages.get()

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self._ready = self._ready or "ready" in message

    def _work(self, error_file: Path) -> None:
        try:
            with self.working("following"):
                follow(self)
        except Exception as error:  # a thread border: the other ranks wait until this process has ended
            with contextlib.suppress(OSError):
                error_file.write_text(one_line(error))
            os._exit(1)


class RayRanks:
    """The other ranks, as the learner sees them. See `runtime.ranks.Group`."""

    def __init__(self, folder: RunFolder, *, robot: RobotSpec, replayed: RobotSpec) -> None:
        self.size = folder.config.learner.ranks
        self._config, self._temp_folder = folder.config, LockedTempFolder("dovetail-ranks-")
        self._settings = rank_settings(
            folder.path,
            size=self.size,
            robot=robot,
            replay=folder.replay,
            replayed=replayed,
            rendezvous=self._temp_folder.path / "store",
        )
        self._settings["sees_its_own"] = self._config.cluster.learner.num_gpus > 0  # otherwise each sees all GPUs
        self._ranks: dict[int, Any] = {}

    def start(self) -> None:
        options = _same_machine_options(self._config)
        made: Any = ray.remote(RankRole)
        for rank in range(1, self.size):
            self._ranks[rank] = made.options(**options, max_restarts=0).remote(f"rank-{rank}")
            self._ranks[rank].follow.remote({**self._settings, "rank": rank})

    def lead(self, algorithm: Algorithm) -> LeadAlgorithm:
        """Wait until all ranks are ready, then connect to them."""
        while not all(report["ready"] for report in self.reports()):
            time.sleep(_POLL_S)
        return lead_ranks(self, algorithm, self._config, self._settings)

    def reports(self) -> list[dict[str, Any]]:
        """The state of each rank. Raises RankLost if one has ended."""
        try:
            return list(ray.get([rank.report.remote() for rank in self._ranks.values()]))
        except RayActorError as error:
            raise self._exit_reason() or RankLost("a learning rank has died") from error

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        shared = ray.put(dict(arrays or {})) if arrays else {}
        for rank in self._ranks.values():
            rank.handle.remote(message, shared)

    def failure(self, error: FailureError) -> FailureError:
        return self._exit_reason() or error

    def close(self) -> None:
        for rank in self._ranks.values():
            ray.kill(rank)
        if dist.is_initialized():
            dist.destroy_process_group()
        self._temp_folder.close()

    def _exit_reason(self) -> FailureError | None:
        """Exit reason of the first rank that has ended; None while all are alive."""
        for number, rank in self._ranks.items():
            try:
                ray.get(rank.report.remote(), timeout=_REPLY_S)
            except GetTimeoutError:
                continue
            except RayActorError:
                with contextlib.suppress(OSError):
                    reason = (self._temp_folder.path / f"{_ERROR_FILE}{number}").read_text()
                    return FailureError(f"learning rank {number} has died: {reason}")
                return RankLost(f"learning rank {number} was killed")
        return None


def _same_machine_options(config: RunConfig) -> dict[str, Any]:
    """The learner's machine, with the same resources as the learner."""
    place, size = config.cluster.learner, config.learner.ranks
    here = ray.util.get_node_ip_address()
    (node,) = [node for node in machines() if node["NodeManagerAddress"] == here][:1]
    for name, amount in (("GPU", place.num_gpus), ("CPU", place.num_cpus)):
        offered = node["Resources"].get(name, 0.0)
        if size * amount > offered:
            raise UsageError(
                f"learner.ranks={size} with {amount:g} of '{name}' each needs {size * amount:g}, but the learner's machine "
                f"offers {offered:g}: set fewer ranks"
            )
    pinned = {f"node:{here}": 0.001}
    return {"num_cpus": place.num_cpus, "num_gpus": place.num_gpus, "resources": pinned}
