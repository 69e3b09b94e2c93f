"""Settings of a policy server: for policy `remote`, and for a run whose policy computes on another machine."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from pydantic import Field, field_validator

from dovetail.config.model import Config

__all__ = ["LearningServerConfig", "PolicyServerConfig", "check_address"]


def check_address(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError("should be host:port, such as gpu-box:7411")
    return address


class PolicyServerConfig(Config):
    """Where a policy server listens."""

    BASIC: ClassVar[Collection[str]] = ("address", "token_file")

    address: str
    """Address of the server: host:port, or [host]:port for IPv6."""
    token_file: str | None = None
    """File with the server's token, readable only by its owner. The token itself is not a setting, because runs store
    their settings."""
    token_env: str = "DOVETAIL_TOKEN"
    """Environment variable with the token, used without token_file."""
    connect_timeout_s: float = Field(default=5.0, gt=0.0)
    """Maximum time to connect, in seconds. A reconnection during an episode delays a chunk by up to this time."""
    timeout_s: float = Field(default=2.0, gt=0.0)
    """Maximum time for a chunk, in seconds: network and inference."""

    _check_address = field_validator("address")(check_address)


class LearningServerConfig(PolicyServerConfig):
    """The server that computes the policy which a run trains."""

    weights_timeout_s: float = Field(default=60.0, gt=0.0)
    """Maximum time to send new weights to the server, in seconds."""
    wait_s: float = Field(default=120.0, ge=0.0)
    """How long simulated time waits for a server that is gone, in seconds. On the real clock the arm holds meanwhile."""
