"""The `cluster` section: machines, arms, and where the roles of a run run.

Every machine has the same file. `machines` lists the resources that each of them offers after `dovetail cluster join
FILE`; `learner`, `labeler`, `weights` and `robots` list what the roles need.

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
from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

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
    """Where a role may run. By default, on any machine."""

    resources: Resources = Field(default_factory=dict)
    """Resources that the machine must offer: {training: 1}."""
    machine: str | None = None
    """Run only on this machine: its name in `machines`, its host name or its address."""
    num_cpus: float = Field(default=0.0, ge=0)
    """CPU cores to reserve; 0: none."""
    num_gpus: float = Field(default=0.0, ge=0)
    """GPUs to reserve. The role sees only these; 0: none."""


class RobotPlace(Place):
    """A named robot: where it runs, and how it differs from the run's `robot` section."""

    robot: dict[str, Any] = Field(default_factory=dict)
    """Settings that override the run's `robot` section; another `type` replaces the section."""
    task: dict[str, Any] = Field(default_factory=dict)
    """The same for the `task` section."""
    cameras: dict[str, Any] = Field(default_factory=dict)
    """The same for the `cameras` section, by name; null removes a camera of the run."""
    operator: dict[str, Any] = Field(default_factory=dict)
    """The same for the `operator` section."""


class Ports(Config):
    """TCP ports of a machine, fixed so that a firewall can open them."""

    head: Port = 7420
    """Port of the head, to which the other machines connect."""
    node: Port = 7421
    """Ray's node manager."""
    objects: Port = 7422
    """Ray's object manager."""
    agent: Port = 7423
    """Ray's agent; used on the machine itself only."""
    client: Port = 7424
    """Ray's client server on the head; not used, need not be opened."""
    workers: tuple[Port, Port] = (7430, 7529)
    """First and last port of the roles, one port each."""

    @field_validator("workers", mode="before")
    @classmethod
    def _pair(cls, workers: Any) -> Any:
        """Accept a list: a before-validator turns off JSON's leniency about tuples."""
        return tuple(workers) if isinstance(workers, list) else workers

    @model_validator(mode="after")
    def _apart(self) -> Self:
        single = (self.head, self.node, self.objects, self.agent, self.client)
        first, last = self.workers
        if len(set(single)) < len(single) or any(first <= port <= last for port in single):
            raise PydanticCustomError("ports", "two ports are the same")
        if last - first < 9:
            raise PydanticCustomError("ports", "workers should be a range of at least ten ports: first and last")
        return self


class Machine(Config):
    """A machine of the cluster, and the resources that it offers."""

    head: bool = False
    """Whether this is the head, which the other machines join."""
    host: str | None = Field(default=None, min_length=1)
    """Host name, to recognize the machine on which a command runs; else its address, or --as."""
    address: str = LOOPBACK
    """IP address under which the other machines reach it, also on Tailscale. The default is not reachable."""
    resources: Resources = Field(default_factory=dict)
    """Resources that it offers to roles: {inference: 1}."""
    num_cpus: int | None = Field(default=None, ge=0)
    """CPU cores that roles may reserve; null: all."""
    num_gpus: int | None = Field(default=None, ge=0)
    """GPUs that roles may reserve; null: all."""
    ports: Ports = Ports()
    """TCP ports, for a firewall."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        try:
            address = ip_address(self.address)
        except ValueError:
            raise PydanticCustomError("address", "address should be an IP address, such as 100.64.0.1") from None
        if address.is_unspecified:
            raise PydanticCustomError("address", "address should be one that the other machines can reach")
        for name in self.resources:
            if name in _RESERVED:
                raise PydanticCustomError(
                    "resources", "'{name}' is reserved by Ray: use num_cpus and num_gpus", {"name": name}
                )
        return self


class Detection(Config):
    """When a machine that does not answer counts as gone: after about (failures + 1) * (period_s + timeout_s)."""

    period_s: float = Field(default=0.5, gt=0)
    """Seconds between two checks."""
    timeout_s: float = Field(default=1.0, gt=0)
    """Seconds until a check fails."""
    failures: int = Field(default=3, ge=1)
    """Failed checks in a row until the machine counts as gone."""


class ClusterConfig(Config):
    """Machines, arms and roles, with runtime: ray."""

    BASIC: ClassVar[Collection[str]] = ("num_robots",)
    RENAMED: ClassVar[Mapping[str, str]] = {
        "robot_limit_s": "robot_timeout_s",
        "max_behind_steps": "max_steps_ahead",
        "cut_off": "on_disconnect",
        "store_mb": "object_store_mb",
    }

    address: str | None = None
    """HOST:PORT of a running Ray cluster. Null: the cluster of `machines`, or a temporary one on this machine."""
    machines: dict[Name, Machine] = Field(default_factory=dict)
    """The machines of the cluster, by names of your choice. Empty: only this machine."""
    token_file: Path | None = None
    """File with the secret token of the cluster; null: dovetail/cluster.token in the user's settings folder."""
    num_robots: int = Field(default=1, ge=1, le=64)
    """Number of equal arms, each with the `robot` section's settings."""
    robot: Place = Place()
    """Where these arms run."""
    robots: dict[Name, RobotPlace] = Field(default_factory=dict)
    """Arms by name, instead of `num_robots`: each with its place and its differences from the `robot`, `task` and so on."""
    min_robots: int | None = Field(default=None, ge=1, le=64)
    """Arms that must be ready before a run starts; the others may join later. Null: all."""
    robot_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds to wait for an arm that does not start or does not return."""
    learner: Place = Place()
    """Where the learner runs, with the episode store and the replay buffer."""
    labeler: Place = Place()
    """Where the labelers run."""
    num_labelers: int = Field(default=1, ge=1, le=64)
    """Number of labeler processes."""
    weights: Place = Place()
    """Where the server of the policy's weights runs."""
    weights_precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the weights that arms receive: bf16 halves the traffic and rounds the acting policy."""
    label_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds for one episode, after which a labeler process is killed and the episode given to another."""
    max_steps_ahead: int = Field(default=200, ge=0)
    """Online steps that all simulated arms together may be ahead of the learner before they wait. Real arms never wait."""
    on_disconnect: Literal["finish", "hold"] | None = None
    """When an arm loses the connection: finish its episode, or end it and stand still. It stores its steps locally in both
    cases. Null: hold on the real clock, finish in simulation."""
    stop_link_timeout_s: float = Field(default=0.7, gt=0.0)
    """Seconds without the driver's relay of STOP after which a real arm on another machine counts as disconnected."""
    object_store_mb: int = Field(default=200, ge=80)
    """Size of Ray's shared memory on each machine, in MB."""
    detection: Detection = Detection()
    """How lost machines are detected."""

    @property
    def head(self) -> str | None:
        """The name of the machine that others join."""
        return next((name for name, machine in self.machines.items() if machine.head), None)

    @property
    def head_address(self) -> str | None:
        """HOST:PORT of the cluster. None: a run starts its own."""
        if self.head is None:
            return self.address
        machine = self.machines[self.head]
        host = f"[{machine.address}]" if ":" in machine.address else machine.address
        return f"{host}:{machine.ports.head}"

    def named_robots(self) -> Mapping[str, RobotPlace]:
        """Every arm by name; unnamed arms are robot-0, robot-1, ..."""
        same = RobotPlace(**self.robot.model_dump())
        return self.robots or {f"robot-{number}": same for number in range(self.num_robots)}

    def labels(self) -> Mapping[str, float]:
        """Every resource that roles need, with the sum of their amounts."""
        wanted: dict[str, float] = {}
        count = {"labeler": self.num_labelers, "robot": self.num_robots}
        for key, place in self.places():
            for label, amount in place.resources.items():
                wanted[label] = wanted.get(label, 0.0) + amount * count.get(key, 1)
        return wanted

    def places(self) -> Iterator[tuple[str, Place]]:
        """The place of every role, by its key."""
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
            raise _wrong(f"machines {' and '.join(heads)} are heads: there must be only one")
        if heads and self.address is not None:
            raise _wrong(f"machine '{heads[0]}' is the head: remove address")
        if self.machines and not heads and self.address is None:
            raise _wrong("set head: true for one of machines, or set address")
        for name, machine in self.machines.items():
            if ip_address(machine.address) == ip_address(LOOPBACK) and (len(self.machines) > 1 or not heads):
                raise _wrong(f"machines.{name}.address is {machine.address}: no other machine reaches it")
        if self.robots and (self.num_robots > 1 or self.robot != Place()):
            raise _wrong("use either robots (arms by name), or num_robots and robot (equal arms)")
        return self

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        """Check that every role fits on one of the machines in the file."""
        if not self.machines or self.address is not None:  # a running cluster may have other machines
            return self
        for key, place in self.places():
            could = [
                machine
                for name, machine in self.machines.items()
                if place.machine in (None, name, machine.host, machine.address)
            ]
            if not could:
                hint = did_you_mean(str(place.machine), self.machines)
                raise _wrong(f"{key}.machine is '{place.machine}', which is not in machines.{hint}")
            for label, amount in place.resources.items():
                most = max(machine.resources.get(label, 0.0) for machine in could)
                if amount > most:
                    where = place.machine or "the largest machine"
                    raise _wrong(f"{key} needs {amount:g} of '{label}', but {where} offers {most:g}")
        return self


def _wrong(problem: str) -> PydanticCustomError:
    return PydanticCustomError("cluster", "{problem}", {"problem": problem})
