"""Who runs where, when everything runs at once: one typed section for a laptop and for a cluster.

One file is carried to every machine. `machines` says what each of them offers once it has joined (`dovetail cluster join
FILE`); the places of the roles say what they need.

    cluster:
      machines:
        desk: {head: true, host: lab-pc, address: 100.64.0.1, resources: {training: 1}}
        cell: {host: nuc-1, address: 100.64.0.2, resources: {inference: 1}}
      learner: {resources: {training: 1}}
      robots:
        left: {machine: cell, robot: {port: /dev/ttyUSB0}}
        right: {machine: cell, robot: {port: /dev/ttyUSB1}}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dovetail.config.model import Config
from dovetail.core.errors import did_you_mean

__all__ = ["LOOPBACK", "ClusterConfig", "Detection", "Machine", "Place", "Ports", "RobotPlace"]

LOOPBACK = "127.0.0.1"
_RESERVED = ("CPU", "GPU", "memory", "object_store_memory")

Amount = Annotated[float, Field(gt=0)]
Resources = dict[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")], Amount]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,23}$")]
Port = Annotated[int, Field(ge=1024, le=65535)]


class Place(Config):
    """Where a role may run. Nothing said: anywhere."""

    resources: Resources = Field(default_factory=dict)
    """What a machine must offer, by the labels that it joined with: {training: 1}."""
    machine: str | None = None
    """Only on this one: its name in `machines`, its host name or its address."""
    num_cpus: float = Field(default=0.0, ge=0)
    """Cores that are reserved for it; 0 reserves none."""
    num_gpus: float = Field(default=0.0, ge=0)
    """GPUs that are reserved for it, and that it sees; 0: none."""


class RobotPlace(Place):
    """A robot of its own name: where it is, and in what it differs from the run's."""

    robot: dict[str, Any] = Field(default_factory=dict)
    """Laid over the run's `robot` section; another `type` replaces it."""
    task: dict[str, Any] = Field(default_factory=dict)
    """The same for its `task`."""
    operator: dict[str, Any] = Field(default_factory=dict)
    """And for who may take over."""


class Ports(Config):
    """Where a machine listens: fixed, so that a firewall can be opened for them. Each is TCP."""

    head: Port = 7420
    """The head's alone: where the others find the cluster."""
    node: Port = 7421
    objects: Port = 7422
    agent: Port = 7423
    """Spoken to from the machine itself only."""
    client: Port = 7424
    """The head's alone; not used, and need not be opened."""
    workers: tuple[Port, Port] = (7430, 7529)
    """First and last of what the roles listen on, one each."""

    @field_validator("workers", mode="before")
    @classmethod
    def _pair(cls, workers: Any) -> Any:
        """A list is one too: JSON's own leave is lost where a validator has looked at the whole before."""
        return tuple(workers) if isinstance(workers, list) else workers

    @model_validator(mode="after")
    def _apart(self) -> Self:
        single = (self.head, self.node, self.objects, self.agent, self.client)
        first, last = self.workers
        if len(set(single)) < len(single) or any(first <= port <= last for port in single):
            raise PydanticCustomError("ports", "two of them are the same")
        if last - first < 9:
            raise PydanticCustomError("ports", "workers should be a range of ten or more, first and last")
        return self


class Machine(Config):
    """What a machine is, and what it offers to the roles."""

    head: bool = False
    """The one that the others join, and where the cluster's own books are kept."""
    host: str | None = Field(default=None, min_length=1)
    """Its host name, by which it knows that this is about itself; otherwise by its address, or by --as."""
    address: str = LOOPBACK
    """The address that the others reach it by, on any network, Tailscale's too. As it is, nobody does."""
    resources: Resources = Field(default_factory=dict)
    """Labels with amounts, as roles ask for them: {inference: 1}."""
    num_cpus: int | None = Field(default=None, ge=0)
    """Cores that roles may reserve; null: as many as it has."""
    num_gpus: int | None = Field(default=None, ge=0)
    """GPUs that roles may reserve; null: as many as it has."""
    ports: Ports = Ports()

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        try:
            address = ip_address(self.address)
        except ValueError:
            raise PydanticCustomError("address", "address should be an IP address, such as 100.64.0.1") from None
        if address.is_unspecified:
            raise PydanticCustomError("address", "address should be the one that the others reach it by")
        for name in self.resources:
            if name in _RESERVED:
                raise PydanticCustomError(
                    "resources", "'{name}' is told by num_cpus and num_gpus, or by nobody", {"name": name}
                )
        return self


class Detection(Config):
    """How soon a machine that does not answer counts as gone: about (failures + 1) times (period + timeout)."""

    period_s: float = Field(default=0.5, gt=0)
    timeout_s: float = Field(default=1.0, gt=0)
    failures: int = Field(default=3, ge=1)


class ClusterConfig(Config):
    address: str | None = None
    """A Ray cluster that others have started, HOST:PORT. Null: the one whose head is in `machines`; where there are
    none, one on this machine alone, for this run alone."""
    machines: dict[Name, Machine] = Field(default_factory=dict)
    """What each machine offers, by a name of your choice. Null: there are none, and the run's own offers whatever its roles
    ask for."""
    token_file: Path | None = None
    """What everybody in the cluster must know; null: dovetail/cluster.token in the user's folder for settings."""
    num_robots: int = Field(default=1, ge=1, le=64)
    """Arms that practise the task, each as the `robot` section says, in simulation or found by their place."""
    robot: Place = Place()
    """Where those are."""
    robots: dict[Name, RobotPlace] = Field(default_factory=dict)
    """Or arms by name, each with a place and with what differs from the run's `robot`, `task` and `operator`."""
    min_robots: int | None = Field(default=None, ge=1, le=64)
    """Arms that must be there for a run to begin; the others are taken in when they come. Null: all of them."""
    robot_limit_s: float = Field(default=120.0, gt=0)
    """Seconds that an arm has to come up, and after which one that has left is not waited for."""
    learner: Place = Place()
    """The store and its replay are where the learner is: batches come from memory that both map."""
    labeler: Place = Place()
    num_labelers: int = Field(default=1, ge=1, le=64)
    weights: Place = Place()
    """Where versions of the policy are handed out from."""
    weights_precision: Literal["fp32", "bf16"] = "fp32"
    """What weights travel in: bf16 is half as much, and what acts is rounded to it."""
    label_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds that a labeler may take over one episode, its own start not counted, before it is ended and another asked."""
    max_behind_steps: int = Field(default=200, ge=0)
    """Steps of practice that simulated arms may be ahead of the learner's updates, all together: beyond, they wait. Real
    arms never wait; there the update-to-data ratio alone paces the learner."""
    cut_off: Literal["finish", "hold"] = "finish"
    """What a robot does that has lost the cluster: finish its episode, or hold where it is. It spools in any case."""
    store_mb: int = Field(default=200, ge=80)
    """Memory that Ray shares between the processes of one machine."""
    detection: Detection = Detection()

    @property
    def head(self) -> str | None:
        """The name of the machine that others join."""
        return next((name for name, machine in self.machines.items() if machine.head), None)

    @property
    def meeting(self) -> str | None:
        """HOST:PORT where the cluster is found; null: a run brings its own."""
        if self.head is None:
            return self.address
        machine = self.machines[self.head]
        host = f"[{machine.address}]" if ":" in machine.address else machine.address
        return f"{host}:{machine.ports.head}"

    def named_robots(self) -> Mapping[str, RobotPlace]:
        """Every arm by name, whether or not the file names it."""
        same = RobotPlace(**self.robot.model_dump())
        return self.robots or {f"robot-{number}": same for number in range(self.num_robots)}

    def labels(self) -> Mapping[str, float]:
        """Every label that a role asks for, and how much of it all of them need."""
        wanted: dict[str, float] = {}
        count = {"labeler": self.num_labelers, "robot": self.num_robots}
        for key, place in self.places():
            for label, amount in place.resources.items():
                wanted[label] = wanted.get(label, 0.0) + amount * count.get(key, 1)
        return wanted

    def places(self) -> Iterator[tuple[str, Place]]:
        """Every place that a role is given, by its key."""
        yield from (("learner", self.learner), ("labeler", self.labeler), ("weights", self.weights))
        if self.robots:
            yield from ((f"robots.{name}", place) for name, place in self.robots.items())
        else:
            yield "robot", self.robot

    @field_validator("machines", mode="before")
    @classmethod
    def _none(cls, machines: Any) -> Any:
        return {} if machines is None else machines

    @field_validator("address")
    @classmethod
    def _host_and_port(cls, address: str | None) -> str | None:
        if address is not None and not re.fullmatch(r"([^\s:\[\]]+|\[[0-9a-fA-F:]+\]):\d{1,5}", address):
            raise PydanticCustomError("address", "should be HOST:PORT")
        return address

    @model_validator(mode="after")
    def _one_cluster(self) -> Self:
        heads = [name for name, machine in self.machines.items() if machine.head]
        if len(heads) > 1:
            raise _wrong(f"machines {' and '.join(heads)} are heads: one is enough")
        if heads and self.address is not None:
            raise _wrong(f"machine '{heads[0]}' is the head: leave out address")
        if self.machines and not heads and self.address is None:
            raise _wrong("one of machines should say head: true, or address where the cluster is")
        for name, machine in self.machines.items():
            if ip_address(machine.address) == ip_address(LOOPBACK) and (len(self.machines) > 1 or not heads):
                raise _wrong(f"machines.{name}.address is {machine.address}: no other machine reaches it")
        if self.robots and (self.num_robots > 1 or self.robot != Place()):
            raise _wrong("either robots by name, or num_robots and robot for equal ones")
        return self

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        """Every role finds a machine that could take it, as far as the file tells."""
        if not self.machines or self.address is not None:  # others' machines may offer what is missing here
            return self
        for key, place in self.places():
            could = [
                machine
                for name, machine in self.machines.items()
                if place.machine in (None, name, machine.host, machine.address)
            ]
            if not could:
                hint = did_you_mean(str(place.machine), self.machines)
                raise _wrong(f"{key}.machine is '{place.machine}', none of machines.{hint}")
            for label, amount in place.resources.items():
                most = max(machine.resources.get(label, 0.0) for machine in could)
                if amount > most:
                    where = place.machine or "the best of machines"
                    raise _wrong(f"{key} needs {amount:g} of '{label}', and {where} offers {most:g}")
        return self


def _wrong(problem: str) -> PydanticCustomError:
    return PydanticCustomError("cluster", "{problem}", {"problem": problem})
