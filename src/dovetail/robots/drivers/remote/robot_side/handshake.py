"""The handshake: both sides check the protocol version and that the other has the token, which is never sent.

    server: hello    protocol, nonce
    client: hello    protocol, nonce, role, proof that it has the token
    server: proof    its own proof                          or: error, then it closes the connection
    server: welcome  the robot's spec, the session          from here on, frames have tags

A proof is an HMAC of both nonces and the role. The key of the tags also follows from token and nonces.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from .wire import PROTOCOL, Link, Message, WireError

__all__ = [
    "MIN_TOKEN",
    "ROLES",
    "WrongToken",
    "answer_client",
    "check_token",
    "greet_server",
    "make_token",
    "read_token",
]

ROLES = ("robot", "stop")
"""`robot` observes, and controls from its first command on. `stop` only stops."""
MIN_TOKEN, MAX_TOKEN = 16, 4096
_MAX_HELLO = 1024
_NONCE = re.compile("[0-9a-f]{64}")


class WrongToken(ValueError):
    """A token or its file cannot be used."""


def read_token(path: Path) -> bytes:
    """The token of a file that only its owner can read."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read(MAX_TOKEN + 1).strip()
    except OSError as error:
        raise WrongToken(f"cannot read token file {path}: {error.strerror}") from error
    if mode & 0o077:
        raise WrongToken(f"token file {path} can be read by other users (mode {mode:o}). Run chmod 600 {path}")
    return check_token(token, f"token file {path}")


def make_token(path: Path) -> bytes:
    """The token of a file, which is created if it is missing."""
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with open(os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32) + "\n")
            with contextlib.suppress(FileExistsError):  # another process was faster: use its token
                os.link(str(temporary), str(path))
            temporary.unlink()
        except OSError as error:
            raise WrongToken(f"cannot create a token in {path.parent}: {error.strerror}") from error
    return read_token(path)


def check_token(token: bytes, where: str) -> bytes:
    if not MIN_TOKEN <= len(token) <= MAX_TOKEN:
        raise WrongToken(f"{where} has {len(token)} characters, but a token has {MIN_TOKEN} to {MAX_TOKEN}")
    return token


def answer_client(link: Link, token: bytes, deadline_s: float) -> str:
    """The server's side. Return the client's role. The server sends the welcome next."""
    nonce = secrets.token_hex(32)
    link.send(Message("hello", {"protocol": PROTOCOL, "nonce": nonce}), deadline_s)
    hello = _expect(link.receive(deadline_s, 0, _MAX_HELLO), "hello")
    try:
        _check_protocol(hello)
        role, client_nonce = hello.text("role", 20), _nonce(hello)
        if role not in ROLES:
            raise WireError("unknown role")
        if not _is_proof(hello, _proof(token, f"client {role}", nonce, client_nonce)):
            raise WireError("wrong token. Copy the token file of the robot's computer to this machine")
    except WireError as error:
        link.send(Message("error", {"message": str(error)}), deadline_s)
        raise
    link.send(Message("proof", {"proof": _proof(token, f"server {role}", client_nonce, nonce)}), deadline_s)
    link.use_key(_session_key(token, nonce, client_nonce))
    return role


def greet_server(link: Link, token: bytes, role: str, deadline_s: float) -> Message:
    """The client's side. Return the welcome."""
    hello = _expect(link.receive(deadline_s, 0, _MAX_HELLO), "hello")
    _check_protocol(hello)
    nonce, own_nonce = _nonce(hello), secrets.token_hex(32)
    proof = _proof(token, f"client {role}", nonce, own_nonce)
    fields = {"protocol": PROTOCOL, "nonce": own_nonce, "role": role, "proof": proof}
    link.send(Message("hello", fields), deadline_s)
    answer = _expect(link.receive(deadline_s, 0, _MAX_HELLO), "proof")
    if not _is_proof(answer, _proof(token, f"server {role}", own_nonce, nonce)):
        raise WireError("it does not have the token, so it is another server. Check the address")
    link.use_key(_session_key(token, nonce, own_nonce))
    return _expect(link.receive(deadline_s, 0), "welcome")


def _expect(message: Message, kind: str) -> Message:
    if message.kind == "error":
        raise WireError(message.text("message"))
    if message.kind != kind:
        raise WireError(f"expected message '{kind}', got {message.kind[:20]!r}")
    return message


def _check_protocol(hello: Message) -> None:
    protocol = hello.fields.get("protocol")
    if protocol != PROTOCOL:
        raise WireError(
            f"one side has robot protocol {PROTOCOL}, the other {str(protocol)[:20]!r}. "
            "Write the server file again with `dovetail robot server-file` and copy it to the robot's computer"
        )


def _nonce(hello: Message) -> str:
    nonce = hello.fields.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise WireError("hello without a nonce")
    return nonce


def _proof(token: bytes, author: str, challenge: str, own: str) -> str:
    """The author is part of the proof, so that a proof cannot be sent back to it."""
    return hmac.new(token, f"dovetail robot {PROTOCOL} {author} {challenge} {own}".encode(), "sha256").hexdigest()


def _session_key(token: bytes, server_nonce: str, client_nonce: str) -> bytes:
    text = f"dovetail robot {PROTOCOL} key {server_nonce} {client_nonce}".encode()
    return hmac.new(token, text, hashlib.sha256).digest()


def _is_proof(message: Message, expected: str) -> bool:
    proof = message.fields.get("proof")
    return isinstance(proof, str) and hmac.compare_digest(proof.encode(errors="replace"), expected.encode())
