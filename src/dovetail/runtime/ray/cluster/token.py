"""The secret token that all machines of a cluster share: a file that only its owner can read, copied by the user."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from dovetail.config.cluster import ClusterConfig
from dovetail.core.errors import UsageError

__all__ = ["check_token", "make_token", "token_path"]

_MIN_LENGTH = 32


def token_path(config: ClusterConfig) -> Path:
    """The token's file on this machine."""
    if config.token_file is not None:
        return config.token_file.expanduser().absolute()
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "dovetail" / "cluster.token"


def check_token(path: Path) -> None:
    """Refuse a token that is missing, too short, or readable for other users."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise UsageError(
            f"no token at {path}: copy this file from the head of the cluster, and run chmod 600 on it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the token in {path}: {error}") from error
    if mode & 0o077:
        raise UsageError(f"other users can read the token in {path}: run chmod 600 on it")
    if len(text) < _MIN_LENGTH:
        raise UsageError(f"the token in {path} is too short: it needs {_MIN_LENGTH} characters")


def make_token(path: Path) -> bool:
    """Create a token if there is none. Returns whether it is new. The file appears complete."""
    if path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        try:
            os.link(temporary, path)  # unlike a rename, does not replace an existing file
        finally:
            temporary.unlink()
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"cannot create a token at {path} ({error.strerror}): set cluster.token_file") from error
    return True
