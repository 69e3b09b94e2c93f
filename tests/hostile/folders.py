"""Tools that make hostile folders: an honest run, and changes whose checksums are right."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.config import _yaml
from dovetail.config import load as loading
from dovetail.core.disk import dump_json, load_json, sha256
from dovetail.episodes.log import EpisodeLog
from support.lerobot_episodes import make_lerobot_episode

__all__ = [
    "CASES",
    "Case",
    "Place",
    "add_camera_episode",
    "add_case",
    "edit_json",
    "honest_run",
    "set_config",
    "sign",
]

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "run-0.6.tar.gz"
CODE = 'import os\nopen(os.path.join(os.environ["HOSTILE_OUTSIDE"], "code-ran"), "a").write(__name__)\n'
READERS = ("ls", "verify", "show", "export", "console")  # the first two in `make test-all`
BUILDERS = ("eval", "serve", "report")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hostile folder is made, and a folder next to it that must not be touched."""

    run: Path
    outside: Path

    @property
    def secret(self) -> Path:
        return self.outside / "secret.json"

    @property
    def secret_folder(self) -> Path:
        return self.outside / "folder"

    def episode(self, number: int = 0) -> Path:
        return sorted(path for path in (self.run / "episodes").iterdir() if path.name[0] != ".")[number]

    def journal(self) -> Path:
        return next((self.run / "spool").glob("*.journal"))

    def component(self) -> Path:
        return sorted((self.run / "weights" / "components").iterdir())[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    build: Callable[[Place], None]
    commands: tuple[str, ...]
    is_dataset: bool = False
    in_run: bool = False  # the run is the current folder, as after `cd downloaded`
    refusal: str = ""  # what the error of every command says that reads the config
    level: str = "extended"  # default: `make test`; extended: `make test-all`; slow: `make test-slow`


CASES: dict[str, Case] = {}


def add_case(name: str, build: Callable[[Place], None], *commands: str, **other: Any) -> None:
    assert name not in CASES, name
    CASES[name] = Case(name=name, build=build, commands=commands or READERS, **other)


def level_of(case: Case) -> str:
    """Every third of the extended cases runs in `make test-all`: more would take minutes. All run in `make test-slow`."""
    extended = [other.name for other in CASES.values() if other.level == "extended"]
    return "slow" if case.level == "extended" and extended.index(case.name) % 3 else case.level


def honest_run(parent: Path) -> Path:
    """A run of 0.6 with demonstrations, weights, a checkpoint and an interrupted episode. It was made elsewhere."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(parent, filter="data")
    return (parent / "run-0.6").rename(parent / "run")


def add_camera_episode(run: Path) -> Path:
    episode = make_lerobot_episode(1)
    EpisodeLog(run / "episodes").commit(episode)
    return run / "episodes" / episode.id


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any], *, indent: int | None) -> None:
    """Change a file that has a checksum inside, and make the checksum right again."""
    body = load_json(path.read_bytes(), name=str(path), indent=indent)
    changed = change(body)
    path.write_bytes(dump_json(body if changed is None else changed, indent=indent))


def sign(text: str) -> bytes:
    """JSON as given, with a right checksum at its end: for texts that no encoder would make."""
    assert text.endswith("}")
    return (text[:-1] + f', "checksum": "{sha256(text.encode())}"}}').encode()


def set_config(run: Path, change: Callable[[dict[str, Any]], Any]) -> str:
    """Change the stored config, and make its hash right again. Return the hash."""
    data: dict[str, Any] = _yaml.parse((run / "config.yaml").read_text(), name="config").plain()
    change(data)
    found = loading._hash(data)
    (run / "config.yaml").write_text(f"# hash: {found}\n{_yaml.dump(data)}")
    return found


def put(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def replace(path: Path, make: Callable[[Path], object]) -> None:
    """Put something else in the place of a file or folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rename(path.with_name(f"{path.name}-before"))
        for leftover in (path.with_name(f"{path.name}-before"),):
            _remove(leftover)
    elif path.exists():
        path.unlink()
    make(path)


def _remove(folder: Path) -> None:
    for root, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(os.path.join(root, name))
        for name in folders:
            os.rmdir(os.path.join(root, name))
    folder.rmdir()


def nested(depth: int = 100_000) -> str:
    return "[" * depth + "]" * depth


def folder_bytes(folder: Path) -> int:
    """Size on disk: holes of sparse files do not count."""
    return sum(
        os.lstat(os.path.join(root, name)).st_blocks * 512 for root, _, names in os.walk(folder) for name in names
    )


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def to_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data)
