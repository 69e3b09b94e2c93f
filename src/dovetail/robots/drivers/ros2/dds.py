"""DDS topics with serialized messages: bytes in, bytes out.

    with DdsNode(DdsConfig(domain_id=7), codec) as node:
        state = node.subscribe("/joint_states", "sensor_msgs/msg/JointState", QosConfig())
        target = node.publish("/target_joints", "sensor_msgs/msg/JointState", QosConfig())
        node.start()                                # receives on a thread
        node.wait(lambda: state.newest is not None, timeout_s=1.0)
        target.write(payload)

ROS topic `/a/b` is DDS topic `rt/a/b`; type `pkg/msg/Name` is `pkg::msg::dds_::Name_`. Cyclone DDS needs the structure of
each type to announce it. Its own (de)serializer in Python is slow for images, so the classes here pass bytes through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from dovetail.core.errors import RobotError, UsageError, one_line
from dovetail.robots.drivers.ros2.idl_types import idl_class, new_sample
from dovetail.robots.drivers.ros2.messages import Codec
from dovetail.robots.drivers.ros2.settings import DdsConfig, QosConfig

__all__ = ["DdsNode", "Publication", "Sample", "Subscription"]

_WAIT_NS = 100_000_000  # the receiving thread looks for its end so often
_BLOCK_MS = 20  # a reliable writer with a full queue waits at most so long
_LISTENER = b"dovetail listener"
_MAX_PARTICIPANTS = 60  # per machine and domain, for discovery without multicast


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One received message."""

    payload: bytes
    arrived_ns: int  # monotonic
    number: int  # of the messages of its topic, from 1


class Subscription:
    """The newest message of a topic, and who publishes it."""

    def __init__(self, topic: str, type_name: str, reader: Any) -> None:
        self.topic, self.type_name = topic, type_name
        self._reader = reader
        self.newest: Sample | None = None
        self.has_two_publishers = False  # that take turns
        self._publishers: list[int] = []  # in the order of their first message

    @property
    def num_publishers(self) -> int:
        return int(self._reader.get_subscription_matched_status().current_count)

    @property
    def has_incompatible_qos(self) -> bool:
        """Whether there is a publisher whose quality of service does not fit."""
        return bool(self._reader.get_requested_incompatible_qos_status().total_count)

    def forget_publishers(self) -> None:
        self.has_two_publishers, self._publishers = False, []

    def take(self) -> bool:
        """Take what has arrived, and keep the newest. True if there was a message."""
        found = False
        for sample in self._reader.take(N=64):
            if not sample.sample_info.valid_data:
                continue  # a publisher has gone
            self._note_publisher(sample.sample_info.publication_handle)
            number = 1 if self.newest is None else self.newest.number + 1
            self.newest = Sample(payload=sample.payload, arrived_ns=time.monotonic_ns(), number=number)
            found = True
        return found

    def _note_publisher(self, handle: int) -> None:
        if self._publishers and self._publishers[-1] == handle:
            return
        if handle in self._publishers:
            self.has_two_publishers = True  # a restarted publisher is new, and the old one is silent
            self._publishers.remove(handle)
        self._publishers = [*self._publishers[-7:], handle]


class Publication:
    """Writes messages of one topic."""

    def __init__(self, topic: str, type_name: str, writer: Any, *, reliable: bool) -> None:
        self.topic, self.type_name = topic, type_name
        self._writer, self._reliable = writer, reliable
        self._is_listener: dict[int, bool] = {}  # by subscriber

    def subscribers(self) -> frozenset[int]:
        """Handles of the subscribers that obey the messages: all but our own listeners."""
        found = self._writer.get_matched_subscriptions()
        for handle in found:
            if handle not in self._is_listener:
                self._look_at(handle)
        return frozenset(handle for handle in found if not self._is_listener.get(handle, True))

    @property
    def num_subscribers(self) -> int:
        return len(self.subscribers())

    def _look_at(self, handle: int) -> None:
        from cyclonedds.qos import Policy

        endpoint = self._writer.get_matched_subscription_data(handle)
        if endpoint is not None:  # else it has just come or gone
            qos = endpoint.qos
            self._is_listener[handle] = Policy.Userdata in qos and bytes(qos[Policy.Userdata].data) == _LISTENER

    @property
    def has_incompatible_qos(self) -> bool:
        return bool(self._writer.get_offered_incompatible_qos_status().total_count)

    def write(self, payload: bytes) -> None:
        """Raises RobotError if DDS refuses the message."""
        from cyclonedds.core import DDSException

        try:
            self._writer.write(new_sample(self._writer.data_type, payload))
        except DDSException as error:
            raise RobotError(f"cannot publish on {self.topic}: {one_line(error)}") from error

    def wait_for_acknowledgement(self, timeout_s: float) -> bool:
        """Whether the machines of all subscribers have the messages. True at once for `best_effort`, which has no answer."""
        if not self._reliable:
            return True
        try:
            return bool(self._writer.wait_for_acks(round(timeout_s * 1e9)))
        except AttributeError:  # cyclonedds 11.0.1 looks for its time-out code in a wrong class
            return False


class DdsNode:
    """A DDS participant with a thread that receives."""

    def __init__(self, config: DdsConfig, codec: Codec) -> None:
        """Opens the network."""
        try:
            from cyclonedds.core import DDSException
            from cyclonedds.domain import DomainParticipant
        except ImportError as error:
            raise UsageError("ROS 2 needs rosbags and cyclonedds: pip install 'dovetail[ros2]'") from error
        self._codec = codec
        self._domain = _DomainUse(config)
        try:
            self._participant: Any = DomainParticipant(config.domain_id)
        except DDSException as error:
            self._domain.close()
            raise RobotError(f"cannot join DDS domain {config.domain_id}: {one_line(error)}") from error
        self._subscriptions: list[Subscription] = []
        self._publications: list[Publication] = []
        self._conditions: list[Any] = []
        self._changed = threading.Condition()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: str | None = None  # why the thread has ended

    def subscribe(self, topic: str, type_name: str, qos: QosConfig, *, listens_only: bool = False) -> Subscription:
        """`listens_only`: to the commands for another machine. It does not count as a subscriber that obeys."""
        from cyclonedds.core import InstanceState, ReadCondition, SampleState, ViewState
        from cyclonedds.sub import DataReader

        assert self._thread is None, "subscribe before start()"
        reader: Any = DataReader(
            self._participant, self._topic(topic, type_name), _qos(qos, mark=_LISTENER if listens_only else b"")
        )
        mask = SampleState.Any | ViewState.Any | InstanceState.Any
        self._conditions.append(ReadCondition(reader, mask))
        subscription = Subscription(topic, type_name, reader)
        self._subscriptions.append(subscription)
        return subscription

    def publish(self, topic: str, type_name: str, qos: QosConfig) -> Publication:
        from cyclonedds.pub import DataWriter

        writer = DataWriter(self._participant, self._topic(topic, type_name), _qos(qos))
        publication = Publication(topic, type_name, writer, reliable=qos.reliability == "reliable")
        self._publications.append(publication)
        return publication

    def start(self) -> None:
        self._thread = threading.Thread(target=self._receive, name="dds", daemon=True)
        self._thread.start()

    def wait(self, is_done: Callable[[], bool], *, timeout_s: float) -> bool:
        """Wait until `is_done()`, which is asked after each message. Raises RobotError if the thread has ended."""
        with self._changed:
            done = self._changed.wait_for(lambda: self.failure is not None or is_done(), timeout_s)
        self.check()
        return done

    def check(self) -> None:
        if self.failure is not None:
            raise RobotError(f"DDS no longer receives: {self.failure}")

    def close(self) -> None:
        self._is_closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)
        # Cyclone DDS deletes an entity with its last reference: first the readers, then the participant
        self._conditions.clear()
        for subscription in self._subscriptions:
            subscription._reader = _Closed(subscription.topic)
        for publication in self._publications:
            publication._writer = _Closed(publication.topic)
        self._participant = None
        self._domain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _topic(self, topic: str, type_name: str) -> Any:
        from cyclonedds.topic import Topic

        return Topic(self._participant, f"rt{topic}", idl_class(type_name, self._codec))

    def _receive(self) -> None:
        from cyclonedds.core import WaitSet

        try:
            waitset = WaitSet(self._participant)
            for condition in self._conditions:
                waitset.attach(condition)
            while not self._is_closing.is_set():
                if not waitset.wait(_WAIT_NS):
                    continue
                found = [subscription.take() for subscription in self._subscriptions]
                if any(found):
                    with self._changed:
                        self._changed.notify_all()
        except Exception as error:  # the border of the thread: callers see it in `check`
            self.failure = one_line(error)
            with self._changed:
                self._changed.notify_all()


class _Closed:
    """Stands for the reader or writer of a closed node."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __getattr__(self, name: str) -> Any:
        raise RobotError(f"the connection to {self._topic} is closed")


class _DomainUse:
    """The network settings of a domain belong to the whole process: the first user makes them, others must agree."""

    _lock = threading.Lock()
    _used: dict[int, tuple[DdsConfig, int, Any]] = {}  # noqa: RUF012  config, number of users, the domain

    def __init__(self, config: DdsConfig) -> None:
        from cyclonedds.core import DDSException
        from cyclonedds.domain import Domain

        self._id: int | None = config.domain_id
        with self._lock:
            used, num_users, domain = self._used.get(config.domain_id, (config, 0, None))
            if used != config:
                raise UsageError(
                    f"DDS domain {config.domain_id} has two network settings in one process: {_text(used)} and "
                    f"{_text(config)}. Set the same `dds` for the robot and its cameras"
                )
            if num_users == 0 and (xml := _xml(config)) is not None:
                try:
                    domain = Domain(config.domain_id, xml)
                except DDSException as error:
                    raise RobotError(
                        f"cannot open DDS domain {config.domain_id} with {_text(config)}: {one_line(error)}"
                    ) from error
            self._used[config.domain_id] = (config, num_users + 1, domain)

    def close(self) -> None:
        with self._lock:
            if self._id is None:
                return
            config, num_users, domain = self._used.pop(self._id)
            if num_users > 1:
                self._used[self._id] = (config, num_users - 1, domain)
            self._id = None
            del domain


def _text(config: DdsConfig) -> str:
    return f"interface {config.interface}, peers {list(config.peers)}, multicast {config.multicast}"


def _xml(config: DdsConfig) -> str | None:
    """Cyclone DDS' settings. None: its own choice and CYCLONEDDS_URI."""
    if config.interface is None and not config.peers and config.multicast:
        return None
    interface = ""
    if config.interface is not None:
        kind = "address" if config.interface.replace(".", "").isdigit() else "name"
        multicast = "" if config.multicast else ' multicast="false"'
        interface = f'<Interfaces><NetworkInterface {kind}="{config.interface}"{multicast}/></Interfaces>'
    peers = "".join(f'<Peer address="{peer}"/>' for peer in config.peers)
    return (
        f'<CycloneDDS><Domain id="{config.domain_id}">'
        f"<General>{interface}<AllowMulticast>{str(config.multicast).lower()}</AllowMulticast></General>"
        f"<Discovery><ParticipantIndex>auto</ParticipantIndex>"
        f"<MaxAutoParticipantIndex>{_MAX_PARTICIPANTS}</MaxAutoParticipantIndex><Peers>{peers}</Peers></Discovery>"
        "</Domain></CycloneDDS>"
    )


def _qos(config: QosConfig, *, mark: bytes = b"") -> Any:
    from cyclonedds.qos import Policy, Qos
    from cyclonedds.util import duration

    reliable = config.reliability == "reliable"
    marks = [Policy.Userdata(mark)] if mark else []
    return Qos(
        *marks,
        Policy.Reliability.Reliable(duration(milliseconds=_BLOCK_MS))
        if reliable
        else Policy.Reliability.BestEffort,
        Policy.Durability.TransientLocal if config.durability == "transient_local" else Policy.Durability.Volatile,
        Policy.History.KeepLast(config.depth),
    )
