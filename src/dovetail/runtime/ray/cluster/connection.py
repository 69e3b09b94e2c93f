"""A Ray to run on: the user's, or one of our own for as long as a run lasts; and where in it each role goes."""

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
from ray import _raylet
from ray._private import ray_constants, services, worker

from dovetail.config.cluster import LOOPBACK, ClusterConfig, Place
from dovetail.core.errors import FailureError, UsageError
from dovetail.runtime.ray.cluster import temp_folders as scratch
from dovetail.runtime.ray.cluster.environment import scoped, settings
from dovetail.runtime.ray.cluster.process_marks import MARK
from dovetail.runtime.ray.cluster.token import check_token, make_token, token_path

__all__ = [
    "NAMESPACE",
    "OwnNode",
    "beside",
    "check_admitted",
    "check_places",
    "connected",
    "machines",
    "placed",
    "speechless",
]

NAMESPACE = "dovetail"
_NODE_S = 2.0
_PINNED = 0.001  # of the one `node:ADDRESS` that every machine offers of itself
_REACH_S = 5.0


@contextlib.contextmanager
def connected(config: ClusterConfig, *, num_cpus: int | None = None) -> Iterator[None]:
    """Ray, while this lasts: the cluster that the config names, or one of our own. `num_cpus` is for the latter."""
    with contextlib.ExitStack() as ends:
        meeting = config.meeting
        own: dict[str, Any] = {}
        mark: dict[str, str | None] = {}
        token = token_path(config)
        if meeting is None:
            folder = ends.enter_context(scratch.folder())
            mark[MARK] = str(folder)
            token = folder / "token"
            make_token(token)
            own = {
                "num_cpus": num_cpus,
                "resources": dict(config.labels()),  # it is every machine that the roles ask for
                "include_dashboard": False,
                "object_store_memory": config.store_mb << 20,
                "_temp_dir": str(folder / "ray"),  # which Ray opens to everybody; the one above stays ours
                "_node_ip_address": LOOPBACK,
            }
        ends.enter_context(scoped(settings(config.detection, token=token, loopback=_is_loopback(meeting))))
        _read_environment(loopback=_is_loopback(meeting))
        if meeting is not None:
            check_admitted(config)
            _check_member(meeting)
        # it would write of deaths into the middle of a person's screen; who supervises the roles tells of them
        ends.callback(setattr, worker, "print_to_stdstream", worker.print_to_stdstream)
        worker.print_to_stdstream = lambda *_, **__: None
        ends.callback(ray.shutdown)  # also of what came up by half
        try:
            # the mark is on Ray's processes and their children, and on nothing else that we start
            with scoped(mark), _signals_as_before():
                ray.init(
                    address=meeting or "local",
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    logging_level="ERROR",
                    **own,
                )
        except (
            Exception
        ) as error:  # Ray raises plain ones too: of a machine so busy that it does not come up within 30 s
            what = "start a Ray on this machine" if meeting is None else f"enter the cluster at {meeting}"
            raise FailureError(f"cannot {what}: {' '.join(str(error).split())[:300]}") from error
        if meeting is None and any(node["NodeManagerAddress"] != LOOPBACK for node in ray.nodes()):
            raise FailureError("a Ray of our own would listen on the network: this version of Ray is not known")
        yield


@contextlib.contextmanager
def _signals_as_before() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and aborts a process that has not ended three seconds after it: arms may need longer."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:
                    signal.signal(number, handler)


def _is_loopback(meeting: str | None) -> bool:
    return meeting is None or meeting.startswith((f"{LOOPBACK}:", "localhost:"))


def _read_environment(*, loopback: bool) -> None:
    """Ray read all this when it was imported, whoever did that; so it is told to look again."""
    ray_constants.ENABLE_RAY_CLUSTER = not loopback
    _raylet.Config.initialize("")
    _raylet.AuthenticationTokenLoader.instance().reset_cache()


def check_admitted(config: ClusterConfig) -> None:
    """There is a cluster, and it knows our token: at once, while Ray would try for a minute, and in one line."""
    token, meeting = token_path(config), config.meeting
    assert meeting is not None
    check_token(token)
    host, _, port = meeting.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        why = error.strerror or "no answer"
        how = "run `dovetail cluster join FILE` on its head first, and look at the firewall between"
        raise UsageError(f"no cluster at {meeting} ({why}): {how}") from error
    with scoped(settings(config.detection, token=token, loopback=_is_loopback(meeting))):
        _read_environment(loopback=_is_loopback(meeting))
        try:
            with speechless():
                _raylet.GcsClient(address=meeting)
        except ray.exceptions.AuthenticationError as error:
            raise UsageError(
                f"the cluster at {meeting} does not know the token in {token}: copy the file from its head again"
            ) from error
        except ray.exceptions.RayError as error:
            raise UsageError(
                f"what answers at {meeting} is no Ray: {' '.join(str(error).split())[:200]}"
            ) from error


@contextlib.contextmanager
def speechless() -> Iterator[None]:
    """Ray's own warnings go to stderr from below Python; we say in one line what is wrong."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _check_member(meeting: str) -> None:
    """A driver works through a node on its own machine. Ray would wait for one for a minute."""
    there = {node_id.hex() for node_id in _raylet.GcsClient(address=meeting).get_all_node_info()}
    if not there & set(services.find_node_ids()):
        raise UsageError(
            f"this machine is not in the cluster at {meeting}: run `dovetail cluster join FILE` here first"
        )


def machines() -> list[Mapping[str, Any]]:
    """Machines that are there now, as Ray knows them."""
    return [node for node in ray.nodes() if node["Alive"]]


class OwnNode:
    """Ray's node on this machine: without it a driver reaches nobody, also when its keeper has started another."""

    def __init__(self) -> None:
        self._id = ray.get_runtime_context().get_node_id()
        self._looked_s = time.monotonic()
        self.is_dead = False

    def check(self) -> None:
        """As often as you like. Raises FailureError when it has died."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _NODE_S:
            return
        self._looked_s = now_s
        self.is_dead = self._id not in {node["NodeID"] for node in machines()}
        if self.is_dead:
            raise FailureError(
                "Ray's node on this machine has died, and all that ran on it: `dovetail run --resume RUN` goes on"
            )


def placed(place: Place, *, role: str, config: ClusterConfig, pinned: bool = False) -> dict[str, Any]:
    """Ray's options for a role; refused where no machine could ever take it, with what is missing.

    `role` is the place's key in the cluster section. `pinned`: it stays on the machine where it is now, since others will be
    `beside` it; ours, if it may be, for the run's folder is there. A machine is known by its address, not by Ray's number of
    it: who leaves and comes back is the same.
    """
    nodes = _candidates(place, role=role, config=config)
    resources = dict(place.resources)
    if pinned or place.machine is not None:
        here = ray.get_runtime_context().get_node_id()
        node = next((node for node in nodes if node["NodeID"] == here), nodes[0])
        resources[f"node:{node['NodeManagerAddress']}"] = _PINNED
    return {"num_cpus": place.num_cpus, "num_gpus": place.num_gpus, "resources": resources}


def beside(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for a role on the machine of a pinned one, which takes nothing from it."""
    pins = {name: amount for name, amount in options["resources"].items() if name.startswith("node:")}
    return {"num_cpus": 0, "num_gpus": 0, "resources": pins}


def check_places(config: ClusterConfig) -> None:
    """All roles find room at once, not only each for itself: who found none would wait for it without an end."""
    robots = [(f"robots.{name}", place) for name, place in config.named_robots().items()]
    roles = [("learner", config.learner), ("weights", config.weights), *robots]
    roles += [("labeler", config.labeler)] * config.num_labelers
    free = {node["NodeID"]: dict(node["Resources"]) for node in machines()}
    for role, place in sorted(roles, key=lambda one: one[1].machine is None):  # the choosy ones first
        try:
            nodes = _candidates(place, role=role, config=config)
        except UsageError:
            if role.startswith("robots.") and config.min_robots is not None:
                continue  # it may come later, or not at all: see ArmStartup
            raise
        room = next(
            (free[node["NodeID"]] for node in nodes if not _lacking(_wanted(place), [free[node["NodeID"]]])), None
        )
        if room is None:
            lacking = _lacking(_wanted(place), [free[node["NodeID"]] for node in nodes])
            what = f"'{lacking[0]}'" if lacking else "all that it needs on one machine"
            raise UsageError(
                f"cluster.{role} finds no room: others have taken {what}; offer more, or ask for less"
            )
        for name, amount in _wanted(place).items():
            room[name] = room.get(name, 0.0) - amount


def _candidates(place: Place, *, role: str, config: ClusterConfig) -> list[Mapping[str, Any]]:
    """Machines that could take a role, if they had nothing else to do."""
    nodes = machines()
    if place.machine is not None:
        known = config.machines.get(place.machine)
        address = known.address if known else place.machine
        nodes = [node for node in nodes if address in (node["NodeManagerAddress"], node["NodeManagerHostname"])]
        if not nodes:
            what = f"machine '{place.machine}' of cluster.{role} is not there"
            how = (
                f": run `dovetail cluster join FILE --as {place.machine}` on it"
                if known
                else f"; there are {_names()}"
            )
            raise UsageError(what + how)
    able = [node for node in nodes if not _lacking(_wanted(place), [node["Resources"]])]
    if not able:
        lacking = _lacking(_wanted(place), [node["Resources"] for node in nodes])
        where = f"machine '{place.machine}'" if place.machine else "the best of the machines"
        if not lacking:
            raise UsageError(
                f"cluster.{role} needs {', '.join(_wanted(place))} on one machine, and none has all of it"
            )
        name, most = lacking
        amount = _wanted(place)[name]
        raise UsageError(
            f"cluster.{role} needs {amount:g} of '{name}', and {where} offers {most:g}{_offered(config, name)}"
        )
    return able


def _wanted(place: Place) -> dict[str, float]:
    wanted = {**place.resources, "CPU": place.num_cpus, "GPU": place.num_gpus}
    return {name: amount for name, amount in wanted.items() if amount}


def _lacking(wanted: Mapping[str, float], offers: Sequence[Mapping[str, float]]) -> tuple[str, float] | None:
    """The first of what is wanted that none of them has enough of, and the most there is."""
    for name, amount in wanted.items():
        most = max((offer.get(name, 0.0) for offer in offers), default=0.0)
        if amount > most:
            return name, most
    return None


def _names() -> str:
    return ", ".join(
        sorted(f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in machines())
    )


def _offered(config: ClusterConfig, resource: str) -> str:
    """Who would offer it, if it joined."""
    there = {node["NodeManagerAddress"] for node in machines()}
    absent = [
        name
        for name, machine in config.machines.items()
        if resource in machine.resources and machine.address not in there
    ]
    return f": run `dovetail cluster join FILE --as {absent[0]}` on {' or '.join(absent)}" if absent else ""
