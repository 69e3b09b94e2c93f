"""How a robot's machine and a policy server begin: versions that match, and a token that both know.

    server: hello    protocol, nonce
    robot:  hello    protocol, nonce, proof that it knows the token
    server: welcome  its own proof, the policy's spec        or: error, and it hangs up

The token itself never crosses the wire: each side proves that it knows it by an HMAC of both nonces. What follows is
neither encrypted nor signed, so a network that others are on wants a tunnel around it (ssh -L, WireGuard).
"""

from __future__ import annotations

import hashlib
import hmac
import math
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

__all__ = ["MIN_TOKEN", "PROTOCOL", "check_token", "client_handshake", "read_token", "server_handshake"]

PROTOCOL = 1
MIN_TOKEN = 16
_NONCE = re.compile("[0-9a-f]{64}")


# ---- the token


def read_token(path: Path) -> bytes:
    """A token from its file, which nobody but its owner may read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"cannot read token file {path}: {error.strerror}") from error
    if mode & 0o077:
        raise UsageError(f"token file {path} can be read by others (mode {mode:o}): chmod 600 {path}")
    return check_token(token, where=f"token file {path}")


def check_token(token: bytes, *, where: str) -> bytes:
    if len(token) < MIN_TOKEN:
        raise UsageError(f"{where} holds {len(token)} characters: a token has at least {MIN_TOKEN}")
    return token


# ---- hello: versions that match, and a token that both sides know


def server_handshake(connection: Connection, token: bytes, spec: PolicySpec, *, deadline_s: float) -> None:
    """The server's side. Raises WireError, after telling the other, for whoever should not be here."""
    mine = secrets.token_hex(32)
    connection.send(Message(kind="hello", fields={"protocol": PROTOCOL, "nonce": mine}), deadline_s=deadline_s)
    hello = connection.receive(deadline_s=deadline_s, max_body=0).expect("hello")
    try:
        _check_protocol(hello)
        theirs = _nonce(hello)
        if not _is_proven(hello, _proof(token, "robot", mine, theirs)):
            raise WireError(
                "wrong token: copy the token file, which the server names when it starts, to this machine"
            )
    except WireError as error:
        connection.send(Message(kind="error", fields={"message": str(error)}), deadline_s=deadline_s)
        raise
    fields = {"proof": _proof(token, "server", theirs, mine), "spec": _spec_to_json(spec)}
    connection.send(Message(kind="welcome", fields=fields), deadline_s=deadline_s)


def client_handshake(connection: Connection, token: bytes, *, deadline_s: float) -> PolicySpec:
    """The robot's side: what the policy there needs to see, and what it gives."""
    hello = connection.receive(deadline_s=deadline_s, max_body=0).expect("hello")
    _check_protocol(hello)
    theirs, mine = _nonce(hello), secrets.token_hex(32)
    fields = {"protocol": PROTOCOL, "nonce": mine, "proof": _proof(token, "robot", theirs, mine)}
    connection.send(Message(kind="hello", fields=fields), deadline_s=deadline_s)
    welcome = connection.receive(deadline_s=deadline_s, max_body=0).expect("welcome")
    if not _is_proven(welcome, _proof(token, "server", mine, theirs)):
        raise WireError("does not know the token itself: it is not the server it should be")
    return _spec_from_json(welcome.fields.get("spec"))


def _check_protocol(hello: Message) -> None:
    theirs = hello.fields.get("protocol")
    if theirs != PROTOCOL:
        raise WireError(
            f"one side speaks protocol {PROTOCOL}, the other {repr(theirs)[:20]}: install the same Dovetail on both"
        )


def _nonce(hello: Message) -> str:
    nonce = hello.fields.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise WireError("said hello without a nonce")
    return nonce


def _proof(token: bytes, role: str, challenge: str, own: str) -> str:
    """Of having the token. The role is part of it, so that nobody can send our own proof back to us."""
    said = f"dovetail {PROTOCOL} {role} {challenge} {own}".encode()
    return hmac.new(token, said, hashlib.sha256).hexdigest()


def _is_proven(message: Message, expected: str) -> bool:
    said = str(message.fields.get("proof")).encode(errors="replace")
    return hmac.compare_digest(said, expected.encode())  # in the same time, wherever they differ


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
        raise WireError("does not say what its policy needs to see") from error


def _array_to_json(spec: ArraySpec) -> dict[str, Any]:
    def plain(limits: tuple[float, ...]) -> list[float | str]:
        return [float(x) if math.isfinite(x) else str(x) for x in limits]  # JSON knows no infinity

    return {**spec.to_json(), "low": plain(spec.low), "high": plain(spec.high)}


def _array_from_json(data: Mapping[str, Any]) -> ArraySpec:
    limits = {side: [float(x) for x in data[side]] for side in ("low", "high")}
    return ArraySpec.from_json({**data, **limits, "shape": [checked_int(n, low=0) for n in data["shape"]]})
