"""What a run folder may contain. It may come from an untrusted source."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.disk import check_folder
from dovetail.core.errors import RunFolderError, StoreError

__all__ = ["check_run_folder"]


def check_run_folder(path: Path) -> None:
    """Refuse a folder with links, pipes or devices in it. The log checks each episode, of which there may be many."""
    try:
        check_folder(path, skip=("episodes",))
    except StoreError as error:
        raise RunFolderError(str(error)) from error
