"""A Ray to run on: the user's, or one of our own for as long as a run lasts; and where in it each role goes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dovetail.config.cluster import ClusterConfig, Place
from dovetail.core.errors import UsageError

__all__ = ["connected", "placed"]

# A machine that died is noticed after about four seconds instead of a minute.
_QUICK = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
_QUIET = {
    "RAY_worker_niceness": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_usage_stats_enabled": "0",
}


@contextlib.contextmanager
def connected(config: ClusterConfig, *, num_cpus: int) -> Iterator[None]:
    """Ray, while this lasts."""
    for name, value in {**_QUICK, **_QUIET}.items():
        os.environ.setdefault(name, value)
    with contextlib.ExitStack() as ends:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "dovetail"}
        if config.address is None:
            # sockets lie under it, and their paths must be short
            scratch = ends.enter_context(tempfile.TemporaryDirectory(prefix="dvt-", ignore_cleanup_errors=True))
            settings |= {
                "num_cpus": num_cpus,
                "include_dashboard": False,
                "object_store_memory": config.store_mb << 20,
                "_temp_dir": scratch,
                "_node_ip_address": "127.0.0.1",
            }
        try:
            ray.init(address=config.address or "local", **settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            what = f"the cluster at {config.address}" if config.address else "a Ray on this machine"
            raise UsageError(f"cannot reach {what}: {' '.join(str(error).split())}") from error
        ends.callback(ray.shutdown)
        yield


def placed(place: Place, *, role: str) -> Mapping[str, Any]:
    """Ray's options for a role; refused where no machine could ever take it, with what is missing."""
    options: dict[str, Any] = {"num_cpus": place.num_cpus, "num_gpus": place.num_gpus}
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if place.node is not None:
        nodes = [node for node in nodes if place.node in (node["NodeManagerAddress"], node["NodeManagerHostname"])]
        if not nodes:
            there = ", ".join(sorted(node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]))
            raise UsageError(f"cluster.{role}.node is '{place.node}', but there are: {there}")
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(nodes[0]["NodeID"], soft=False)
    wanted = {**place.resources, "CPU": place.num_cpus, "GPU": place.num_gpus}
    for name, amount in wanted.items():
        most = max((node["Resources"].get(name, 0.0) for node in nodes), default=0.0)
        if amount > most:
            raise UsageError(
                f"cluster.{role} needs {amount:g} of '{name}' on one machine, but the most there is is {most:g}"
            )
    if place.resources:
        options["resources"] = dict(place.resources)
    return options
