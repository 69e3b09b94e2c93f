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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.wire import DTYPES, MAX_BODY, Message, WireError, checked_int

__all__ = [
    "MIN_TOKEN",
    "PROTOCOL",
    "check_token",
    "client_handshake",
    "make_token",
    "read_api_key",
    "read_token",
    "same_spec",
    "server_handshake",
]

PROTOCOL = 1
MIN_TOKEN = 16
MAX_TOKEN = 4096
_MAX_NAME = 200
_NONCE = re.compile("[0-9a-f]{64}")
_API_KEY = re.compile(rb"[!-~]{1,4096}")


# ---- the token


def read_token(path: Path) -> bytes:
    """The token of a file that only its owner can read."""
    return check_token(_read_secret(path, what="token"), where=f"token file {path}")


def read_api_key(path: Path) -> str:
    """The key of another system's server, which may be short, from a file that only its owner can read."""
    key = _read_secret(path, what="key")
    if not _API_KEY.fullmatch(key):
        raise UsageError(
            f"key file {path} should contain one line of 1 to {MAX_TOKEN} ASCII characters without spaces"
        )
    return key.decode("ascii")


def _read_secret(path: Path, *, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(MAX_TOKEN + 1).strip()
    except OSError as error:
        raise UsageError(f"cannot read {what} file {path}: {error.strerror}") from error
    if mode & 0o077:
        raise UsageError(f"{what} file {path} can be read by other users (mode {mode:o}). Run chmod 600 {path}")
    return secret


def make_token(path: Path) -> Path:
    """Create a token if the file is missing. It appears complete, and only its owner can read it."""
    if path.exists():
        return path
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
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
    if len(token) > MAX_TOKEN:
        raise UsageError(f"{where} has more than {MAX_TOKEN} characters. Is it the right file?")
    return token


# ---- hello and welcome


def server_handshake(
    connection: Connection,
    token: bytes,
    spec: PolicySpec,
    *,
    deadline_s: float,
    admit: Callable[[], None] = lambda: None,
) -> None:
    """The server's side. Raise WireError, after sending it to the robot, if the robot is refused.

    `admit` is called once the robot has proven that it has the token. It may refuse the robot with a WireError.
    """
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
        admit()
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
        other = repr(protocol)[:20] if isinstance(protocol, (int, str)) else "an unknown one"
        raise WireError(
            f"one side has protocol {PROTOCOL}, the other {other}. Install the same Dovetail version on both"
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
    proof = message.fields.get("proof")
    if not isinstance(proof, str):
        return False
    # takes the same time for every wrong proof
    return hmac.compare_digest(proof.encode(errors="replace"), expected.encode())


# ---- specs


def same_spec(one: PolicySpec, other: PolicySpec) -> bool:
    """Whether both are equal in all that the handshake sends."""
    return _spec_to_json(one) == _spec_to_json(other)


def _spec_to_json(spec: PolicySpec) -> dict[str, Any]:
    arrays = {key: _array_to_json(array) for key, array in spec.observation.items()}
    return {**spec.to_json(), "observation": arrays, "action": _array_to_json(spec.action)}


def _spec_from_json(data: Any) -> PolicySpec:
    """Raise WireError unless the spec is valid and one row of its observations and one chunk fit into a message."""
    try:
        observation = {_name(key): _array_from_json(array) for key, array in data["observation"].items()}
        history = {_name(key): checked_int(num, low=1) for key, num in data["history"].items()}
        action, horizon = _array_from_json(data["action"]), checked_int(data["horizon"], low=1)
        sizes = [history.get(key, 1) * _num_bytes(array) for key, array in observation.items()]
        if sum(sizes) > MAX_BODY or horizon * _num_bytes(action) > MAX_BODY:
            raise ValueError("arrays are too large")
        checked = {
            "name": _name(data["name"]),
            "observation": {key: array.to_json() for key, array in observation.items()},
            "action": action.to_json(),
            "action_kind": _name(data["action_kind"]),
            "horizon": horizon,
            "history": history,
            "guidable": bool(data["guidable"]),
            "prompted": bool(data["prompted"]),
        }
        return PolicySpec.from_json({**data, **checked})
    except (
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        RecursionError,
        SpecMismatch,
    ) as error:
        raise WireError("the welcome message has no valid policy spec") from error


def _array_to_json(spec: ArraySpec) -> dict[str, Any]:
    def plain(limits: tuple[float, ...]) -> list[float | str]:
        return [float(x) if math.isfinite(x) else str(x) for x in limits]  # JSON has no infinity

    return {**spec.to_json(), "low": plain(spec.low), "high": plain(spec.high)}


def _array_from_json(data: Mapping[str, Any]) -> ArraySpec:
    limits = {side: [float(x) for x in data[side]] for side in ("low", "high")}
    shape, names = [checked_int(n, low=0) for n in data["shape"]], [_name(name) for name in data["names"]]
    if data["dtype"] not in DTYPES.keys() - {"bfloat16"} or len(shape) > 8:  # no sensor or arm has bfloat16
        raise ValueError("unknown dtype, or too many dimensions")
    scaling = data.get("scaling", "averaged")
    return ArraySpec.from_json(
        {"shape": shape, "dtype": data["dtype"], "names": names, "scaling": scaling, **limits}
    )


def _num_bytes(spec: ArraySpec) -> int:
    return math.prod(spec.shape) * DTYPES[spec.dtype].itemsize


def _name(value: Any) -> str:
    """A name from the other machine. It is printed and stored."""
    if not isinstance(value, str) or len(value) > _MAX_NAME or not value.isprintable():
        raise ValueError("not a name")
    return value
