"""Add files to a dataset atomically: a kill at any moment leaves a valid dataset.

New files are written and fsynced in `.export/staged`. Renaming that folder to `.export/ready` commits them. Then they
move to their places, `meta/info.json` last. Readers use the totals in info.json, so they see the old dataset until that
last move. After a kill the next export moves the files that were `ready` and deletes those that were only staged.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import av
import pyarrow as pa

from dovetail.core.disk import check_folder, fsync_folder, make_folder
from dovetail.core.errors import StoreError, UsageError, one_line

__all__ = ["SCRATCH", "Staging", "exclusive"]

SCRATCH = ".export"
_LAST = Path("meta/info.json")


class Staging:
    """Folder for the files of one part of an export, until `commit` moves them into the dataset."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._staged = folder / SCRATCH / "staged"
        self._ready = folder / SCRATCH / "ready"

    def recover(self) -> None:
        if self._ready.is_dir():
            self._move()
        shutil.rmtree(self._staged, ignore_errors=True)

    def path(self, name: str) -> Path:
        """Return where to write the file that will be `name` in the dataset."""
        path = self._staged / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def commit(self) -> None:
        for folder, _, names in os.walk(self._staged, topdown=False):
            for name in names:
                _fsync(Path(folder, name))
            fsync_folder(Path(folder))
        os.rename(self._staged, self._ready)
        fsync_folder(self._ready.parent)
        fsync_folder(
            self.folder
        )  # the name of the folder of `ready`: nothing may be moved that cannot be found again
        self._move()

    def close(self) -> None:
        """Delete uncommitted files. Committed files that could not be moved stay for the next export."""
        shutil.rmtree(self._staged, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._ready.parent.rmdir()
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # succeeds only if nothing was exported

    def _move(self) -> None:
        names = sorted(path.relative_to(self._ready) for path in self._ready.rglob("*") if path.is_file())
        # frames and videos before the episodes that refer to them, episodes before the totals that count them
        names.sort(
            key=lambda name: (name == _LAST, name.parts[0] == "meta", name.parts[:2] == ("meta", "episodes"))
        )
        folders = {(self.folder / name).parent for name in names}
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        _fsync_folders(
            folders, self.folder
        )  # before a file is moved: it would be lost with a folder that has no name yet
        touched: set[Path] = set()
        for name in names:
            target = self.folder / name
            if name == _LAST:
                _fsync_folders(touched, self.folder)
                touched = set()
            os.replace(self._ready / name, target)
            touched.add(target.parent)
        _fsync_folders(touched, self.folder)
        shutil.rmtree(self._ready)


def _fsync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _fsync_folders(folders: set[Path], root: Path) -> None:
    """Fsync folders and their parents, because a folder's name is stored in its parent."""
    above = {parent for folder in folders for parent in folder.parents if parent.is_relative_to(root)}
    for folder in sorted(folders | above, reverse=True):
        fsync_folder(folder)


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[Staging]:
    """Lock a dataset's folder for one export and finish the commit of a killed export.

    The folder itself is locked, so no lock file can be uploaded with the dataset. The kernel releases the lock when the
    process ends.
    """
    try:
        make_folder(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another export is writing to {folder}. Wait until it has ended.") from error
        check_folder(folder)  # no file is moved through a link
        staging = Staging(folder)
        staging.recover()
        try:
            yield staging
        finally:
            staging.close()
    except (OSError, av.FFmpegError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise StoreError(f"cannot write to {folder}: {reason}") from error
    finally:
        os.close(descriptor)
