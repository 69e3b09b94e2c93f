"""The handshake between a robot and a policy server: both check the protocol version and that the other has the token.

    server: hello    protocol, nonce
    robot:  hello    protocol, nonce, proof that it has the token
    server: welcome  its own proof, the policy's spec        or: error, then it closes the connection

The token itself is never sent: each side proves that it has it by an HMAC of both nonces. Later messages are neither
encrypted nor signed, so use a tunnel on a shared network (ssh -L, WireGuard).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.wire import Message, WireError, checked_int

__all__ = [
    "MIN_TOKEN",
    "PROTOCOL",
    "check_token",
    "client_handshake",
    "make_token",
    "read_token",
    "server_handshake",
]

PROTOCOL = 1
MIN_TOKEN = 16
_NONCE = re.compile("[0-9a-f]{64}")


# ---- the token


def read_token(path: Path) -> bytes:
    """The token of a file that only its owner can read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"cannot read token file {path}: {error.strerror}") from error
    if mode & 0o077:
        raise UsageError(f"token file {path} can be read by other users (mode {mode:o}). Run chmod 600 {path}")
    return check_token(token, where=f"token file {path}")


def make_token(path: Path) -> Path:
    """Create a token if the file is missing. It appears complete, and only its owner can read it."""
    if path.exists():
        return path
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        with contextlib.suppress(FileExistsError):  # another process was faster: use its token
            os.link(temporary, path)
        temporary.unlink()
    except OSError as error:
        raise UsageError(f"cannot create a token in {path.parent} ({error.strerror}): use --token-file") from error
    return path


def check_token(token: bytes, *, where: str) -> bytes:
    if len(token) < MIN_TOKEN:
        raise UsageError(f"{where} has {len(token)} characters, but a token needs at least {MIN_TOKEN}")
    return token


# ---- hello and welcome


def server_handshake(connection: Connection, token: bytes, spec: PolicySpec, *, deadline_s: float) -> None:
    """The server's side. Raise WireError, after sending it to the robot, if the robot is refused."""
    own_nonce = secrets.token_hex(32)
    connection.send(
        Message(kind="hello", fields={"protocol": PROTOCOL, "nonce": own_nonce}), deadline_s=deadline_s
    )
    hello = connection.receive(deadline_s=deadline_s, max_body=0).expect("hello")
    try:
        _check_protocol(hello)
        nonce = _nonce(hello)
        if not _is_proven(hello, _proof(token, "robot", own_nonce, nonce)):
            raise WireError(
                "wrong token. Copy the token file, which the server prints at its start, to this machine"
            )
    except WireError as error:
        connection.send(Message(kind="error", fields={"message": str(error)}), deadline_s=deadline_s)
        raise
    fields = {"proof": _proof(token, "server", nonce, own_nonce), "spec": _spec_to_json(spec)}
    connection.send(Message(kind="welcome", fields=fields), deadline_s=deadline_s)


def client_handshake(connection: Connection, token: bytes, *, deadline_s: float) -> PolicySpec:
    """The robot's side. Return the spec of the server's policy."""
    hello = connection.receive(deadline_s=deadline_s, max_body=0).expect("hello")
    _check_protocol(hello)
    nonce, own_nonce = _nonce(hello), secrets.token_hex(32)
    fields = {"protocol": PROTOCOL, "nonce": own_nonce, "proof": _proof(token, "robot", nonce, own_nonce)}
    connection.send(Message(kind="hello", fields=fields), deadline_s=deadline_s)
    welcome = connection.receive(deadline_s=deadline_s, max_body=0).expect("welcome")
    if not _is_proven(welcome, _proof(token, "server", own_nonce, nonce)):
        raise WireError("it does not have the token, so it is another server. Check policy.address")
    return _spec_from_json(welcome.fields.get("spec"))


def _check_protocol(hello: Message) -> None:
    protocol = hello.fields.get("protocol")
    if protocol != PROTOCOL:
        raise WireError(
            f"one side has protocol {PROTOCOL}, the other {repr(protocol)[:20]}. Install the same Dovetail version on both"
        )


def _nonce(hello: Message) -> str:
    nonce = hello.fields.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise WireError("hello without a nonce")
    return nonce


def _proof(token: bytes, role: str, challenge: str, own: str) -> str:
    """The role is part of the proof, so that a proof cannot be sent back to its author."""
    text = f"dovetail {PROTOCOL} {role} {challenge} {own}".encode()
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def _is_proven(message: Message, expected: str) -> bool:
    proof = str(message.fields.get("proof")).encode(errors="replace")
    return hmac.compare_digest(proof, expected.encode())  # takes the same time for every wrong proof


# ---- specs


def _spec_to_json(spec: PolicySpec) -> dict[str, Any]:
    arrays = {key: _array_to_json(array) for key, array in spec.observation.items()}
    return {**spec.to_json(), "observation": arrays, "action": _array_to_json(spec.action)}


def _spec_from_json(data: Any) -> PolicySpec:
    try:
        spec = PolicySpec.from_json(data)
        checked_int(spec.horizon, low=1)
        for num in spec.history.values():
            checked_int(num, low=1)
        return replace(
            spec,
            name=str(spec.name),
            observation={key: _array_from_json(array) for key, array in data["observation"].items()},
            action=_array_from_json(data["action"]),
            guidable=bool(spec.guidable),
            prompted=bool(spec.prompted),
        )
    except (KeyError, TypeError, ValueError, AttributeError, SpecMismatch) as error:
        raise WireError("the welcome message has no valid policy spec") from error


def _array_to_json(spec: ArraySpec) -> dict[str, Any]:
    def plain(limits: tuple[float, ...]) -> list[float | str]:
        return [float(x) if math.isfinite(x) else str(x) for x in limits]  # JSON has no infinity

    return {**spec.to_json(), "low": plain(spec.low), "high": plain(spec.high)}


def _array_from_json(data: Mapping[str, Any]) -> ArraySpec:
    limits = {side: [float(x) for x in data[side]] for side in ("low", "high")}
    return ArraySpec.from_json({**data, **limits, "shape": [checked_int(n, low=0) for n in data["shape"]]})
