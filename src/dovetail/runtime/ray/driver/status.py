"""A cluster as it is seen from one of its machines: who is there, who is missing, and what its runs say of themselves.

A run tells through its notice board, an actor `dovetail:RUN`: facts of its own, and `roles`, a mapping for each with its
name, its health and whatever else it reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray

from dovetail import __version__
from dovetail.config.cluster import ClusterConfig
from dovetail.runtime.ray.cluster.connection import NAMESPACE, connected

__all__ = ["BOARD", "cluster_status"]

BOARD = "dovetail:"  # and the name of the run
_ANSWER_S = 5.0
_OWN = ("node:", "memory", "object_store_memory")  # what Ray counts for itself


def cluster_status(config: ClusterConfig) -> dict[str, Any]:
    """Machines that are there, those of the file that are not, and runs; asked through this machine."""
    with connected(config):
        there = [_machine(node) for node in ray.nodes()]
        runs = [_report(entry["name"]) for entry in _boards()]
    alive = {machine["address"] for machine in there if machine["alive"]}
    there = [machine for machine in there if machine["alive"] or machine["address"] not in alive]  # back since
    missing = [
        {"name": name, "address": machine.address, "resources": machine.resources}
        for name, machine in config.machines.items()
        if machine.address not in alive
    ]
    return {"meeting": config.meeting, "machines": there, "missing": missing, "runs": runs}


def _machine(node: Mapping[str, Any]) -> dict[str, Any]:
    labels, resources = node.get("Labels", {}), node.get("Resources", {})
    version = labels.get("dovetail/version")
    return {
        "name": labels.get("dovetail/machine"),
        "host": node["NodeManagerHostname"],
        "address": node["NodeManagerAddress"],
        "alive": node["Alive"],
        "head": "node:__internal_head__" in resources,
        "resources": {name: amount for name, amount in sorted(resources.items()) if not name.startswith(_OWN)},
        "version": version,
        "same_version": version in (None, __version__),
    }


def _boards() -> list[Mapping[str, Any]]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [one for one in named if one["namespace"] == NAMESPACE and one["name"].startswith(BOARD)]


def _report(name: str) -> dict[str, Any]:
    run = {"run": name.removeprefix(BOARD)}
    try:
        board = ray.get_actor(name, namespace=NAMESPACE)
        return {**run, **ray.get(board.report.remote(), timeout=_ANSWER_S)}
    except (ValueError, ray.exceptions.RayError) as error:  # it has ended by now, or is busy dying
        return {**run, "problem": f"does not answer: {type(error).__name__}"}
