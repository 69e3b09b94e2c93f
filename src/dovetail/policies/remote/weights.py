"""Weights in messages: a robot names its run and the version that the run has trained, and sends what the server lacks."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.core.disk import sha256
from dovetail.core.errors import UsageError
from dovetail.core.tensor_files import tensor_blocks
from dovetail.core.types import Array, WeightSnapshot
from dovetail.policies.remote.wire import MAX_ARRAYS, MAX_BODY, Message, checked_int

__all__ = [
    "IncomingWeights",
    "component_hash",
    "component_hashes",
    "new_run_id",
    "read_run",
    "read_use",
    "use_message",
    "weight_messages",
]

_PART_BYTES = 1 << 26
_HASH = re.compile("[0-9a-f]{64}")
_RUN_ID = re.compile("[0-9a-f]{32}")
_MAX_COMPONENTS = 256
_MAX_NUM_ARRAYS = 1 << 17


def component_hash(arrays: Mapping[str, Array]) -> str:
    """As in the folder of a run's weights."""
    return sha256(tensor_blocks(arrays))


def component_hashes(components: Mapping[str, Mapping[str, Array]]) -> dict[str, str]:
    return {name: component_hash(arrays) for name, arrays in components.items()}


def new_run_id() -> str:
    """Tells a run from all others: version 9 of one run is not version 9 of another."""
    return secrets.token_hex(16)


def use_message(snapshot: WeightSnapshot, *, run: str) -> Message:
    known = {name: value for name, value in snapshot.hashes.items() if _HASH.fullmatch(value)}  # others on Ray
    hashes = {name: known.get(name) or component_hash(arrays) for name, arrays in snapshot.components.items()}
    return Message(kind="use", fields={"run": run, "version": snapshot.version, "hashes": hashes})


def read_run(message: Message) -> str | None:
    """The run whose weights the request asks for; None: any. Raise UsageError if it is not an id."""
    run = message.fields.get("run")
    if run is not None and not (isinstance(run, str) and _RUN_ID.fullmatch(run)):
        raise UsageError("the request has an invalid id of its run")
    return run


def read_use(message: Message) -> tuple[int, dict[str, str]]:
    """The version and the sha256 of each component. Raise UsageError if the request is not valid."""
    hashes = message.fields.get("hashes")
    if not (
        isinstance(hashes, dict)
        and 0 < len(hashes) <= _MAX_COMPONENTS
        and all(isinstance(value, str) and _HASH.fullmatch(value) for value in hashes.values())
    ):
        raise UsageError("the request should name the sha256 of each component")
    try:
        return checked_int(message.fields.get("version"), low=0, high=2**63 - 1), hashes
    except ValueError as error:
        raise UsageError(f"the request has an invalid version: {error}") from error


def weight_messages(snapshot: WeightSnapshot) -> Iterator[Message]:
    """The weights in parts of at most 64 MB, or one array if it is larger."""
    for component, arrays in snapshot.components.items():
        part: dict[str, Array] = {}
        for name, array in arrays.items():
            if array.nbytes > MAX_BODY:
                raise UsageError(
                    f"weights {component}/{name} have {array.nbytes >> 20} MB, but at most {MAX_BODY >> 20} MB can be sent. "
                    "Let the server follow the run's folder on a shared disk"
                )
            full = sum(value.nbytes for value in part.values()) + array.nbytes > _PART_BYTES
            if part and (full or len(part) == MAX_ARRAYS):
                yield _part(component, part)
                part = {}
            part[name] = array
        yield _part(component, part)


def _part(component: str, arrays: Mapping[str, Array]) -> Message:
    return Message(kind="weights", fields={"component": component}, arrays=dict(arrays))


class IncomingWeights:
    """The weights that one client sends. Nothing is kept beyond `max_bytes`."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        self._components: dict[str, dict[str, Array]] = {}
        self._num_bytes = self._num_arrays = 0

    def add(self, message: Message) -> None:
        component: Any = message.fields.get("component")
        if not isinstance(component, str) or len(component) > 200:
            raise UsageError("the message should name a component")
        self._num_bytes += sum(array.nbytes for array in message.arrays.values())
        self._num_arrays += len(message.arrays)
        self._components.setdefault(component, {}).update(message.arrays)
        if (
            self._num_bytes > self._max_bytes
            or len(self._components) > _MAX_COMPONENTS
            or self._num_arrays > _MAX_NUM_ARRAYS
        ):
            self.clear()
            raise UsageError(f"the weights are larger than the policy of this server ({self._max_bytes >> 20} MB)")

    def take(self, version: int, hashes: Mapping[str, str]) -> WeightSnapshot | None:
        """The complete weights; None if nothing has arrived. Raise UsageError if they are not those of the hashes."""
        components = self._components
        self.clear()
        if not components:
            return None
        if component_hashes(components) != hashes:
            raise UsageError(f"the weights of version {version} did not arrive complete")
        return WeightSnapshot(version=version, components=components, hashes=dict(hashes))
