"""Published weights on disk. A version is a small manifest; components are files named by their sha256.

    weights/
      v00000007.json                   component -> sha256, with a checksum
      components/<sha256>.safetensors  shared by all versions with the same weights
      pin.json                         the pinned version, if any
      kept.json                        versions that are never pruned, if any
      .tmp/                            files that are being written

Readers take no lock. A file lock serializes publishers of all processes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from dovetail.core.disk import (
    MAX_JSON_BYTES,
    Data,
    MissingError,
    dump_json,
    fsync_folder,
    load_json,
    read_file,
    sha256,
    sha256_file,
    write_file,
    writer,
)
from dovetail.core.errors import StoreError, UsageError, shown
from dovetail.core.tensor_files import read_tensors, tensor_blocks
from dovetail.core.types import Array, WeightSnapshot

__all__ = ["DiskWeightStore"]

SCHEMA = 1
_VERSION = re.compile(r"v([0-9]{8,18})\.json")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class DiskWeightStore:
    """Versions count up from 1, also across restarts. The newest `keep` versions, the pinned one and those of
    `keep_versions` are kept."""

    def __init__(self, folder: Path | str, *, keep: int = 5) -> None:
        if keep < 1:
            raise UsageError(f"keep should be at least 1, got {keep}")
        self._folder = Path(folder)
        self._components = self._folder / "components"
        self._keep = keep
        self._verified: set[str] = set()  # hashes of components that this process has written or read
        self._cache: dict[str, Mapping[str, Array]] = {}  # the components of the last snapshot, by hash

    def publish(self, components: Mapping[str, Mapping[str, Array]], *, version: int | None = None) -> int:
        """Write a new version and return its number. It becomes visible at once, after it is durable. Components that did
        not change are not written again. `version` may skip numbers that were published elsewhere."""
        if not components:
            raise UsageError("cannot publish weights without components")
        files = {name: tensor_blocks(arrays, prefix=f"{name}/") for name, arrays in components.items()}
        with writer(self._folder) as temporary:
            newest = max(self.versions(), default=0)
            version = newest + 1 if version is None else version
            if version <= newest:
                raise UsageError(f"cannot publish version {version}: version {newest} exists already")
            self._write(version, files, temporary)
            with contextlib.suppress(OSError, StoreError):  # the version is published; the next call prunes
                self._prune()
        return version

    def _write(self, version: int, files: Mapping[str, Data], temporary: Path) -> None:
        hashes = {name: self._store(file, temporary) for name, file in files.items()}
        manifest = {"schema": SCHEMA, "version": version, "components": hashes}
        self._replace(self._path(version), dump_json(manifest, indent=1), temporary)

    def latest(self, *, newer_than: int = 0) -> WeightSnapshot | None:
        """The newest version, or None if it is not newer than `newer_than`.

        If a version is pinned, return it to all callers that hold another one, older or newer.
        """
        while True:
            pinned = self.pinned()
            version = pinned if pinned is not None else max(self.versions(), default=0)
            if version == newer_than or (pinned is None and version < newer_than) or version == 0:
                return None
            try:
                return self.load(version)
            except StoreError:
                # if it was pruned during the read, there is a newer one; otherwise it is damaged
                if self._path(version).exists():
                    raise
                if pinned is not None and self.pinned() == pinned:
                    raise

    def load(self, version: int) -> WeightSnapshot:
        """Load one version and verify its files. The arrays are read-only, because versions share them."""
        hashes = self.hashes(version)
        components = {name: self._cache.get(digest) or self._read(digest) for name, digest in hashes.items()}
        self._cache = {hashes[name]: arrays for name, arrays in components.items()}
        return WeightSnapshot(version=version, components=components, hashes=hashes)

    def pin(self, version: int | None) -> None:
        """Pin a version for all readers, in all processes and after restarts. None: unpin."""
        with writer(self._folder) as temporary:
            path = self._folder / "pin.json"
            if version is None:
                path.unlink(missing_ok=True)
                fsync_folder(self._folder)
                with contextlib.suppress(OSError, StoreError):
                    self._prune()
                return
            if version not in self.versions():
                raise UsageError(f"cannot pin version {version}: {self._valid()}")
            self._replace(path, dump_json({"version": version}), temporary)
            with contextlib.suppress(OSError, StoreError):
                self._prune()

    def keep_versions(self, versions: Collection[int]) -> None:
        """Never prune these versions, in all processes and after restarts, until another call names others."""
        with writer(self._folder) as temporary:
            data = dump_json({"versions": sorted(int(version) for version in versions)})
            self._replace(self._folder / "kept.json", data, temporary)

    def serve_only(self, snapshot: WeightSnapshot) -> None:
        """Make a version that was published elsewhere the one that all readers get, even if it is older than others here."""
        if snapshot.version not in self.versions():
            files = {name: tensor_blocks(part, prefix=f"{name}/") for name, part in snapshot.components.items()}
            with writer(self._folder) as temporary:
                self._write(snapshot.version, files, temporary)
        self.pin(snapshot.version)

    def versions(self) -> list[int]:
        """The available versions, oldest first."""
        if not self._folder.is_dir():
            return []
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            raise StoreError(f"cannot read {self._folder}: {error.strerror}") from error
        found = (_VERSION.fullmatch(name) for name in names)
        return sorted(int(name[1]) for name in found if name)

    def _path(self, version: int) -> Path:
        return self._folder / f"v{version:08d}.json"

    def _valid(self) -> str:
        versions = self.versions()
        return f"available: {', '.join(map(str, versions))}" if versions else "no version was published yet"

    def pinned(self) -> int | None:
        """The pinned version, if any."""
        path = self._folder / "pin.json"
        try:
            version = load_json(read_file(path, max_bytes=1000), name=str(path))["version"]
        except MissingError:
            return None
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path} is not valid: {error}") from error
        if type(version) is not int or not 0 < version < 2**63:
            raise StoreError(
                f"{path} is not valid: its version is {shown(version)}, expected a whole number above 0"
            )
        return version

    def hashes(self, version: int) -> dict[str, str]:
        """The sha256 of each component of a version."""
        path = self._path(version)
        try:
            data = load_json(read_file(path, max_bytes=MAX_JSON_BYTES), name=str(path), indent=1)
        except MissingError as error:
            raise MissingError(f"{path} is missing: {self._valid()}") from error
        if data.get("schema") != SCHEMA or data.get("version") != version:
            found = f"version {shown(data.get('version'))}, schema {shown(data.get('schema'))}"
            raise StoreError(f"{path} has {found}, expected version {version}, schema {SCHEMA}")
        hashes: dict[str, str] = data.get("components", {})
        valid = isinstance(hashes, dict) and all(
            isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in hashes.values()
        )
        if not valid:
            raise StoreError(f"{path} is not valid: its components should be named by their sha256")
        return hashes

    def _blob(self, digest: str) -> Path:
        return self._components / f"{digest}.safetensors"

    def _read(self, digest: str) -> Mapping[str, Array]:
        arrays = read_tensors(self._blob(digest), checksum=digest)
        for array in arrays.values():
            array.flags.writeable = False
        self._verified.add(digest)
        return arrays

    def _store(self, file: Data, temporary: Path) -> str:
        """Write a component unless it exists. The first time, an existing file is verified."""
        digest = sha256(file)
        path = self._blob(digest)
        if path.exists():
            if digest in self._verified:
                return digest
            if sha256_file(path) == digest:
                fsync_folder(self._components)  # a failure or a kill may have prevented it
                self._verified.add(digest)
                return digest
        self._components.mkdir(exist_ok=True)
        self._replace(path, file, temporary)
        self._verified.add(digest)
        return digest

    def _replace(self, path: Path, data: Data, temporary: Path) -> None:
        staged = temporary / path.name
        write_file(staged, data)
        os.replace(staged, path)
        fsync_folder(path.parent)

    def _kept(self) -> list[int]:
        path = self._folder / "kept.json"
        try:
            return [int(version) for version in load_json(read_file(path), name=str(path))["versions"]]
        except MissingError:
            return []
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path} is not valid: {error}") from error

    def _prune(self) -> None:
        """Remove old manifests, then the components that no manifest refers to."""
        kept = {*self.versions()[-self._keep :], self.pinned(), *self._kept()}
        removed = [version for version in self.versions() if version not in kept]
        for version in removed:
            self._path(version).unlink()
        if removed:
            fsync_folder(self._folder)  # before the components: after a power cut, no manifest lacks one
        used: set[str] = set()
        for version in self.versions():
            try:
                used.update(self.hashes(version).values())
            except StoreError:
                return  # keep everything that a damaged manifest may refer to; the learner continues
        for path in self._components.iterdir() if self._components.is_dir() else ():
            if path.suffix == ".safetensors" and path.stem not in used:
                path.unlink()
                self._verified.discard(path.stem)
