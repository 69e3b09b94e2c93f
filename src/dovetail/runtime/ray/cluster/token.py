"""What everybody in a cluster must know. It lies in a file for its owner alone, and travels by other ways than this."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from dovetail.config.cluster import ClusterConfig
from dovetail.core.errors import UsageError

__all__ = ["check_token", "make_token", "token_path"]

_MIN_LENGTH = 32


def token_path(config: ClusterConfig) -> Path:
    """Where this machine keeps it: the same on each, unless the file says otherwise."""
    if config.token_file is not None:
        return config.token_file.expanduser().absolute()
    settings = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(settings) / "dovetail" / "cluster.token"


def check_token(path: Path) -> None:
    """Refuse one that is not there, is too short, or that others can read."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise UsageError(
            f"no token at {path}: copy that file from the head of the cluster, and chmod 600"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the token in {path}: {error}") from error
    if mode & 0o077:
        raise UsageError(f"others can read the token in {path}: chmod 600 it")
    if len(text) < _MIN_LENGTH:
        raise UsageError(f"the token in {path} is too short: {_MIN_LENGTH} characters or more")


def make_token(path: Path) -> bool:
    """A new one, unless there is one; whole from the first moment. Whether it is new."""
    if path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        try:
            os.link(temporary, path)  # unlike a rename, never over another's
        finally:
            temporary.unlink()
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"cannot make a token at {path} ({error.strerror}): set cluster.token_file") from error
    return True
