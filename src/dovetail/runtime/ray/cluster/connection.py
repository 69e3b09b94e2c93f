"""Connect to the user's Ray cluster or start a local one, and choose the machine of each role."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray

from dovetail.config.cluster import LOOPBACK, ClusterConfig, Place
from dovetail.core.errors import FailureError, UsageError
from dovetail.runtime.ray.cluster.environment import environment_variables, ray_variables
from dovetail.runtime.ray.cluster.orphan_cleanup import temp_folder
from dovetail.runtime.ray.cluster.process_marks import MARK
from dovetail.runtime.ray.cluster.token import check_token, make_token, token_path
from dovetail.runtime.ray.patches import connect_to_head, job_config, node_ids, reread_environment, silent_driver

__all__ = [
    "NAMESPACE",
    "LocalNode",
    "check_access",
    "check_places",
    "connected",
    "machines",
    "role_options",
    "same_machine_options",
    "silent_stderr",
]

NAMESPACE = "dovetail"
_CHECK_S = 2.0
_PINNED = 0.001  # of the resource `node:ADDRESS`, of which every machine has 1
_REACH_S = 5.0


@contextlib.contextmanager
def connected(config: ClusterConfig, *, num_cpus: int | None = None) -> Iterator[None]:
    """Connect to the cluster of the config, or else to a new local one with `num_cpus`."""
    with contextlib.ExitStack() as stack:
        head_address = config.head_address
        local: dict[str, Any] = {}
        mark: dict[str, str | None] = {}
        token = token_path(config)
        if head_address is None:
            folder = stack.enter_context(temp_folder())
            mark[MARK] = str(folder)
            token = folder / "token"
            make_token(token)
            local = {
                "num_cpus": num_cpus,
                "resources": dict(config.labels()),  # one machine offers the labels of all roles
                "include_dashboard": False,
                "object_store_memory": config.object_store_mb << 20,
                "_temp_dir": str(folder / "ray"),  # Ray makes it readable for all users; its parent stays private
                "_node_ip_address": LOOPBACK,
            }
        stack.enter_context(
            environment_variables(
                ray_variables(config.detection, token=token, loopback=_is_loopback(head_address))
            )
        )
        reread_environment(loopback=_is_loopback(head_address))
        if head_address is not None:
            check_access(config)
            _check_member(head_address)
        stack.enter_context(silent_driver())
        stack.callback(ray.shutdown)  # also after a failed start
        try:
            # only Ray's processes and their children get the mark
            with environment_variables(mark), _keep_signal_handlers():
                ray.init(
                    address=head_address or "local",
                    namespace=NAMESPACE,
                    job_config=job_config(),
                    log_to_driver=False,
                    logging_level="ERROR",
                    **local,
                )
        except Exception as error:  # Ray also raises plain ones, for example if it did not start within 30 s
            what = (
                "start Ray on this machine"
                if head_address is None
                else f"connect to the cluster at {head_address}"
            )
            raise FailureError(f"cannot {what}: {' '.join(str(error).split())[:300]}") from error
        if head_address is None and any(node["NodeManagerAddress"] != LOOPBACK for node in ray.nodes()):
            raise FailureError(
                "the local Ray listens on the network: install the Ray version that Dovetail supports"
            )
        yield


@contextlib.contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Ray installs a SIGTERM handler that aborts the process after three seconds, but arms may need longer to stop."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:
                    signal.signal(number, handler)


def _is_loopback(head_address: str | None) -> bool:
    return head_address is None or head_address.startswith((f"{LOOPBACK}:", "localhost:"))


def check_access(config: ClusterConfig) -> None:
    """Check that the cluster exists and accepts our token. Fails at once, where Ray tries for a minute."""
    token, head_address = token_path(config), config.head_address
    assert head_address is not None
    check_token(token)
    host, _, port = head_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        reason = error.strerror or "no answer"
        hint = "run `dovetail cluster join FILE` on its head first, and check the firewall"
        raise UsageError(f"no cluster at {head_address} ({reason}): {hint}") from error
    with environment_variables(ray_variables(config.detection, token=token, loopback=_is_loopback(head_address))):
        reread_environment(loopback=_is_loopback(head_address))
        try:
            with silent_stderr():
                connect_to_head(head_address)
        except ray.exceptions.AuthenticationError as error:
            raise UsageError(
                f"the cluster at {head_address} refuses the token in {token}: copy the file from its head again"
            ) from error
        except ray.exceptions.RayError as error:
            raise UsageError(
                f"the server at {head_address} is not a Ray head: {' '.join(str(error).split())[:200]}"
            ) from error


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Ray's C++ code prints warnings to stderr. Our errors have one line."""
    sys.stderr.flush()
    original, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(null)


def _check_member(head_address: str) -> None:
    """A driver needs a node of the cluster on its own machine. Ray would wait for one for a minute."""
    in_cluster, on_this_machine = node_ids(head_address)
    if not in_cluster & on_this_machine:
        raise UsageError(
            f"this machine is not in the cluster at {head_address}: run `dovetail cluster join FILE` here first"
        )


def machines() -> list[Mapping[str, Any]]:
    """Ray's nodes that are alive."""
    return [node for node in ray.nodes() if node["Alive"]]


class LocalNode:
    """Ray's node on this machine. After its end a driver is disconnected, even if the node keeper starts another one."""

    def __init__(self) -> None:
        self._id = ray.get_runtime_context().get_node_id()
        self._checked_s = time.monotonic()
        self.is_dead = False

    def check(self) -> None:
        """Raises FailureError if the node has ended. May be called often."""
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_S:
            return
        self._checked_s = now_s
        self.is_dead = self._id not in {node["NodeID"] for node in machines()}
        if self.is_dead:
            raise FailureError(
                "Ray's node on this machine has died, with all its roles. Continue with `dovetail run --resume RUN`"
            )


def role_options(place: Place, *, role: str, config: ClusterConfig, pinned: bool = False) -> dict[str, Any]:
    """Ray's options for a role. Raises UsageError if no machine could ever run it.

    `role` is the place's key in the cluster section. `pinned` fixes the machine, so that other roles can run on the same
    one; this machine is preferred, because it has the run's folder. A machine is identified by its address, because Ray's
    node id changes when it leaves and joins again.
    """
    nodes = _candidates(place, role=role, config=config)
    resources = dict(place.resources)
    if pinned or place.machine is not None:
        here = ray.get_runtime_context().get_node_id()
        node = next((node for node in nodes if node["NodeID"] == here), nodes[0])
        resources[f"node:{node['NodeManagerAddress']}"] = _PINNED
    return {"num_cpus": place.num_cpus, "num_gpus": place.num_gpus, "resources": resources}


def same_machine_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for a role on the machine of a pinned role, without own resources."""
    pins = {name: amount for name, amount in options["resources"].items() if name.startswith("node:")}
    return {"num_cpus": 0, "num_gpus": 0, "resources": pins}


def check_places(config: ClusterConfig) -> None:
    """Check that all roles fit into the cluster at the same time. Ray would wait forever for one that does not."""
    robots = [(f"robots.{name}", place) for name, place in config.named_robots().items()]
    roles = [("learner", config.learner), ("weights", config.weights), *robots]
    roles += [("labeler", config.labeler)] * config.num_labelers
    free = {node["NodeID"]: dict(node["Resources"]) for node in machines()}
    for role, place in sorted(
        roles, key=lambda one: one[1].machine is None
    ):  # first those that need a certain machine
        try:
            nodes = _candidates(place, role=role, config=config)
        except UsageError:
            if role.startswith("robots.") and config.min_robots is not None:
                continue  # it may come later, or not at all: see ArmStartup
            raise
        chosen = next(
            (free[node["NodeID"]] for node in nodes if not _lacking(_required(place), [free[node["NodeID"]]])),
            None,
        )
        if chosen is None:
            lacking = _lacking(_required(place), [free[node["NodeID"]] for node in nodes])
            what = f"'{lacking[0]}'" if lacking else "resources on one machine"
            raise UsageError(f"no free {what} for cluster.{role}: other roles use it. Offer more, or request less")
        for name, amount in _required(place).items():
            chosen[name] = chosen.get(name, 0.0) - amount


def _candidates(place: Place, *, role: str, config: ClusterConfig) -> list[Mapping[str, Any]]:
    """Machines that could run the role if they ran no other."""
    nodes = machines()
    if place.machine is not None:
        known = config.machines.get(place.machine)
        address = known.address if known else place.machine
        nodes = [node for node in nodes if address in (node["NodeManagerAddress"], node["NodeManagerHostname"])]
        if not nodes:
            what = f"machine '{place.machine}' of cluster.{role} is not in the cluster"
            hint = (
                f": run `dovetail cluster join FILE --as {place.machine}` on it"
                if known
                else f". Machines in the cluster: {_names()}"
            )
            raise UsageError(what + hint)
    able = [node for node in nodes if not _lacking(_required(place), [node["Resources"]])]
    if not able:
        lacking = _lacking(_required(place), [node["Resources"] for node in nodes])
        where = f"machine '{place.machine}'" if place.machine else "the largest machine"
        if not lacking:
            raise UsageError(
                f"cluster.{role} needs {', '.join(_required(place))} on one machine, but no machine has all of them"
            )
        name, most = lacking
        amount = _required(place)[name]
        raise UsageError(
            f"cluster.{role} needs {amount:g} of '{name}', but {where} offers {most:g}{_join_hint(config, name)}"
        )
    return able


def _required(place: Place) -> dict[str, float]:
    required = {**place.resources, "CPU": place.num_cpus, "GPU": place.num_gpus}
    return {name: amount for name, amount in required.items() if amount}


def _lacking(required: Mapping[str, float], offers: Sequence[Mapping[str, float]]) -> tuple[str, float] | None:
    """The first resource that no offer has enough of, and the largest offer of it."""
    for name, amount in required.items():
        most = max((offer.get(name, 0.0) for offer in offers), default=0.0)
        if amount > most:
            return name, most
    return None


def _names() -> str:
    return ", ".join(
        sorted(f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in machines())
    )


def _join_hint(config: ClusterConfig, resource: str) -> str:
    """Which machines with this resource have not joined."""
    joined = {node["NodeManagerAddress"] for node in machines()}
    absent = [
        name
        for name, machine in config.machines.items()
        if resource in machine.resources and machine.address not in joined
    ]
    return f": run `dovetail cluster join FILE --as {absent[0]}` on {' or '.join(absent)}" if absent else ""
