"""Published weights on disk: versions are small manifests, components are files named by their content.

    weights/
      v00000007.json                 component -> sha256, and a checksum of itself
      components/<sha256>.safetensors  shared by every version that holds the same weights
      pin.json                       the version everybody is held at, if any
      .tmp/                          what is being written

Readers take no lock and keep their own cursor; publishers, in any process, take turns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from dovetail.core.disk import (
    MissingError,
    dump_json,
    fsync_folder,
    load_json,
    read_file,
    sha256,
    write_file,
    writer,
)
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Array, WeightSnapshot

__all__ = ["DiskWeightStore"]

SCHEMA = 1
_VERSION = re.compile(r"v(\d{8,})\.json")


class DiskWeightStore:
    """Versions count up from 1, also across restarts. The newest `keep` stay, and the pinned one."""

    def __init__(self, folder: Path | str, *, keep: int = 5) -> None:
        if keep < 1:
            raise UsageError(f"keep is {keep}: at least the newest version has to stay")
        self._folder = Path(folder)
        self._components = self._folder / "components"
        self._keep = keep
        self._intact: set[str] = set()  # components this process has written or read whole
        self._cache: dict[str, Mapping[str, Array]] = {}  # of the snapshot read last, by hash

    def publish(self, components: Mapping[str, Mapping[str, Array]], *, version: int | None = None) -> int:
        """Make a version durable, then visible at once; what did not change is not written again. Its number is the next
        one, or a higher one that the caller gives it, who has counted versions that were never written here."""
        if not components:
            raise UsageError("there are no weights to publish")
        blobs = {name: _serialise(name, arrays) for name, arrays in components.items()}
        with writer(self._folder) as temporary:
            hashes = {name: self._store(blob, temporary) for name, blob in blobs.items()}
            newest = max(self.versions(), default=0)
            version = newest + 1 if version is None else version
            if version <= newest:
                raise UsageError(f"cannot publish version {version}: there is {newest} already")
            manifest = {"schema": SCHEMA, "version": version, "components": hashes}
            self._replace(self._path(version), dump_json(manifest, indent=1), temporary)
            self._prune()
        return version

    def latest(self, *, newer_than: int = 0) -> WeightSnapshot | None:
        """The newest version, or none if the caller, who keeps count, has it already.

        While a version is pinned it is the only one: whoever holds another, older or newer, is given it.
        """
        while True:
            pinned = self.pinned()
            version = pinned if pinned is not None else max(self.versions(), default=0)
            if version == newer_than or (pinned is None and version < newer_than) or version == 0:
                return None
            try:
                return self.load(version)
            except StoreError:
                # Pruned while we read? Then there is a newer one to take. Otherwise it is really damaged.
                if self._path(version).exists():
                    raise
                if pinned is not None and self.pinned() == pinned:
                    raise

    def load(self, version: int) -> WeightSnapshot:
        """One version, every file verified. Arrays are read-only: versions share what did not change."""
        hashes = self.hashes(version)
        components = {name: self._cache.get(digest) or self._read(digest) for name, digest in hashes.items()}
        self._cache = {hashes[name]: arrays for name, arrays in components.items()}
        return WeightSnapshot(version=version, components=components, hashes=hashes)

    def pin(self, version: int | None) -> None:
        """Serve this version to everybody, in every process and after a restart, until unpinned with None."""
        with writer(self._folder) as temporary:
            path = self._folder / "pin.json"
            if version is None:
                path.unlink(missing_ok=True)
                fsync_folder(self._folder)
                self._prune()
                return
            if version not in self.versions():
                raise UsageError(f"cannot pin version {version}: {self._valid()}")
            self._replace(path, dump_json({"version": version}), temporary)

    def versions(self) -> list[int]:
        """The versions that can be loaded, oldest first."""
        if not self._folder.is_dir():
            return []
        found = (_VERSION.fullmatch(name) for name in os.listdir(self._folder))
        return sorted(int(name[1]) for name in found if name)

    def _path(self, version: int) -> Path:
        return self._folder / f"v{version:08d}.json"

    def _valid(self) -> str:
        versions = self.versions()
        return f"there are {', '.join(map(str, versions))}" if versions else "nothing was published yet"

    def pinned(self) -> int | None:
        """The version everybody is held at, if any."""
        path = self._folder / "pin.json"
        try:
            return int(load_json(read_file(path), name=str(path))["version"])
        except MissingError:
            return None

    def hashes(self, version: int) -> dict[str, str]:
        """What a version is made of: the sha256 of each component."""
        path = self._path(version)
        try:
            data = load_json(read_file(path), name=str(path), indent=1)
        except MissingError as error:
            raise MissingError(f"{path} is missing: {self._valid()}") from error
        if data["schema"] != SCHEMA or data["version"] != version:
            found = f"version {data['version']}, schema {data['schema']}"
            raise StoreError(f"{path} holds {found}; expected version {version}, schema {SCHEMA}")
        hashes: dict[str, str] = data["components"]
        return hashes

    def _blob(self, digest: str) -> Path:
        return self._components / f"{digest}.safetensors"

    def _read(self, digest: str) -> Mapping[str, Array]:
        data = read_file(self._blob(digest), checksum=digest)
        arrays: dict[str, Array] = safetensors.numpy.load(data)
        for array in arrays.values():
            array.flags.writeable = False
        self._intact.add(digest)
        return arrays

    def _store(self, blob: bytes, temporary: Path) -> str:
        """Have a component on disk, whole. One that is there is trusted only once it has been looked at."""
        digest = sha256(blob)
        path = self._blob(digest)
        if path.exists():
            if digest in self._intact:
                return digest
            if sha256(path.read_bytes()) == digest:
                self._intact.add(digest)
                return digest
        self._components.mkdir(exist_ok=True)
        self._replace(path, blob, temporary)
        self._intact.add(digest)
        return digest

    def _replace(self, path: Path, data: bytes, temporary: Path) -> None:
        staged = temporary / path.name
        write_file(staged, data)
        os.replace(staged, path)
        fsync_folder(path.parent)

    def _prune(self) -> None:
        """Drop old versions, manifest first, so that what is listed can be loaded; then what nobody names."""
        kept = {*self.versions()[-self._keep :], self.pinned()}
        for version in self.versions():
            if version not in kept:
                self._path(version).unlink()
        named: set[str] = set()
        for version in self.versions():
            try:
                named.update(self.hashes(version).values())
            except StoreError:
                return  # a damaged manifest must not stop the learner: keep all it may name
        for path in self._components.iterdir() if self._components.is_dir() else ():
            if path.suffix == ".safetensors" and path.stem not in named:
                path.unlink()
                self._intact.discard(path.stem)


def _serialise(component: str, arrays: Mapping[str, Array]) -> bytes:
    plain: dict[str, Array] = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise UsageError(f"weights '{component}/{name}' are {array.dtype}: only plain numbers are published")
        # safetensors writes the memory as it lies: a transposed array would silently come back scrambled
        plain[name] = np.array(array, order="C", copy=True)
    try:
        return safetensors.numpy.save(plain)
    except safetensors.SafetensorError as error:
        raise UsageError(f"cannot publish weights '{component}': {error}") from error
