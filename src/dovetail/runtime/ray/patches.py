"""Everything that Dovetail uses or replaces of Ray's private modules. Written for Ray 2.60; other files use the public API.

`tests/runtime/ray/test_patches.py` fails when Ray changes one of these. Then check each function here against the new Ray
and update `RAY_VERSION`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from ray import _raylet
from ray._private import ray_constants, services, state, worker
from ray.job_config import JobConfig

__all__ = [
    "RAY_VERSION",
    "connect_to_head",
    "job_config",
    "node_ids",
    "num_restarts",
    "reread_environment",
    "silent_driver",
]

RAY_VERSION = "2.60"


def reread_environment(*, loopback: bool) -> None:
    """Ray reads its environment variables once, at import. Read them again, because we set them after that.

    With `ENABLE_RAY_CLUSTER` Ray replaces 127.0.0.1 by the machine's network address, so a local Ray must not have it.
    """
    ray_constants.ENABLE_RAY_CLUSTER = not loopback
    _raylet.Config.initialize("")
    _raylet.AuthenticationTokenLoader.instance().reset_cache()


class _JobWithoutCurrentFolder(JobConfig):  # type: ignore[misc]  # Ray has no types
    """Ray puts the driver's current folder first in the search path of all workers, unless the job has a working folder.
    That folder may come from elsewhere: its `av.py` would replace the installed one."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True


def job_config() -> JobConfig:
    """Let workers search where this process does: in the folder of its script, but not in the current folder."""
    script = os.path.realpath(sys.argv[0])  # "-c" and the like are no files
    folder = os.path.dirname(script) if os.path.isfile(script) else None
    return _JobWithoutCurrentFolder(_py_driver_sys_path=[folder] if folder in sys.path else [])


@contextlib.contextmanager
def silent_driver() -> Iterator[None]:
    """Ray prints the end of each actor into the terminal, in the middle of our own output. The supervisor reports it."""
    original = worker.print_to_stdstream
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = original


def connect_to_head(address: str) -> Any:
    """A client of the head's control service. The public API has no check that fails at once with a reason."""
    return _raylet.GcsClient(address=address)


def node_ids(address: str) -> tuple[set[str], set[str]]:
    """Ids of the cluster's nodes, and of the nodes on this machine: `ray.init` waits a minute if these do not overlap."""
    return {node_id.hex() for node_id in connect_to_head(address).get_all_node_info()}, set(
        services.find_node_ids()
    )


def num_restarts(handle: Any) -> int:
    """How often Ray has restarted an actor. The public state API needs the dashboard, which we do not start."""
    return int(state.actors(handle._actor_id.hex()).get("NumRestarts", 0))
