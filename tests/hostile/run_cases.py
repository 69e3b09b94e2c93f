"""Hostile run folders."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.core.disk import dump_json, sha256
from dovetail.episodes import _journal, _order
from hostile.folders import (
    BUILDERS,
    CODE,
    READERS,
    Place,
    add_camera_episode,
    add_case,
    edit_json,
    nested,
    put,
    replace,
    set_config,
    sign,
)
from hostile.watch import forbidden

ALL = (*READERS, *BUILDERS)

# ---- links, pipes and devices

FILES: dict[str, Callable[[Place], Path]] = {
    "config": lambda p: p.run / "config.yaml",
    "events": lambda p: p.run / "events.jsonl",
    "progress": lambda p: p.run / "progress.json",
    "lock": lambda p: p.run / ".lock",
    "live": lambda p: p.run / "live.json",
    "stop": lambda p: p.run / "stop.json",
    "console-lock": lambda p: p.run / ".console.lock",
    "token": lambda p: p.run / "serve.token",
    "mark": lambda p: p.run / ".trusted",
    "evaluation": lambda p: p.run / "evaluations" / "after.json",
    "labels": lambda p: p.run / "labels" / "labels.jsonl",
    "committed": lambda p: p.run / "labels" / "committed.json",
    "labels-lock": lambda p: p.run / "labels" / ".lock",
    "manifest": lambda p: p.episode() / "manifest.json",
    "steps": lambda p: p.episode() / "steps.parquet",
    "last": lambda p: p.episode() / "last.parquet",
    "order": lambda p: p.run / "episodes" / ".order",
    "episodes-lock": lambda p: p.run / "episodes" / ".lock",
    "journal": lambda p: p.journal(),
    "deployment": lambda p: p.run / "deployment.json",
    "weights-version": lambda p: p.run / "weights" / "v00000005.json",
    "weights-component": lambda p: p.component(),
    "weights-pin": lambda p: p.run / "weights" / "pin.json",
    "checkpoint": lambda p: p.run / "checkpoints" / "last" / "manifest.json",
    "checkpoint-state": lambda p: next((p.run / "checkpoints" / "last").glob("state-*")),
    "replay-layout": lambda p: p.run / "replay" / "layout.json",
    "replay-rows": lambda p: p.run / "replay" / "rows-human.bin",
}
FOLDERS: dict[str, Callable[[Place], Path]] = {
    "episodes": lambda p: p.run / "episodes",
    "episode": lambda p: p.episode(),
    "episodes-tmp": lambda p: p.run / "episodes" / ".tmp",
    "labels": lambda p: p.run / "labels",
    "labels-tmp": lambda p: p.run / "labels" / ".tmp",
    "labels-queue": lambda p: p.run / "labels" / "queue",
    "weights": lambda p: p.run / "weights",
    "weights-tmp": lambda p: p.run / "weights" / ".tmp",
    "components": lambda p: p.run / "weights" / "components",
    "checkpoints": lambda p: p.run / "checkpoints",
    "checkpoint": lambda p: p.run / "checkpoints" / "best",
    "spool": lambda p: p.run / "spool",
    "replay": lambda p: p.run / "replay",
    "parts": lambda p: p.run / "parts",
    "dataset": lambda p: p.run / "lerobot",
    "videos": lambda p: p.run / "videos",
    "logs": lambda p: p.run / "logs",
}


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as file, contextlib.chdir(path.parent):  # the path of a socket is short
        file.bind(path.name)


TARGETS: dict[str, Callable[[Place, Path], object]] = {
    "outside": lambda p, path: path.symlink_to(p.secret),
    "dev-zero": lambda p, path: path.symlink_to("/dev/zero"),
    "pipe": lambda p, path: os.mkfifo(path),
    "loop": lambda p, path: path.symlink_to(path.name),
    "dangling": lambda p, path: path.symlink_to(p.outside / "not-there"),
    "folder": lambda p, path: path.mkdir(),
    "socket": lambda p, path: _socket(path),
}
FOLDER_TARGETS: dict[str, Callable[[Place, Path], object]] = {
    "outside": lambda p, path: path.symlink_to(p.secret_folder),
    "root": lambda p, path: path.symlink_to("/"),
    "pipe": lambda p, path: os.mkfifo(path),
    "parent": lambda p, path: path.symlink_to(".."),
}


def _link(find: Callable[[Place], Path], target: Callable[[Place, Path], object]) -> Callable[[Place], None]:
    return lambda place: replace(find(place), lambda path: target(place, path))


for number, (where, find) in enumerate(FILES.items()):
    for turn, (what, target) in enumerate(TARGETS.items()):
        level = "extended" if turn in (number % 3, 3 + number % 4) else "slow"
        commands = ALL if turn == 0 else READERS
        if where == "order" and what == "outside":
            level = "default"
        add_case(f"{where}-is-{what}", _link(find, target), *commands, level=level)
for number, (where, find) in enumerate(FOLDERS.items()):
    for turn, (what, target) in enumerate(FOLDER_TARGETS.items()):
        level = "extended" if turn in (0, 1 + number % 3) else "slow"
        if where in ("episodes-tmp", "episode") and what == "outside":
            level = "default"
        commands = ("ls", "rm", *READERS) if where.startswith("episode") else READERS
        add_case(f"folder-{where}-is-{what}", _link(find, target), *commands, level=level)


def _hard_link(find: Callable[[Place], Path]) -> Callable[[Place], None]:
    """The outside file has the honest content, so that a command gets as far as writing to it."""

    def build(place: Place) -> None:
        path = find(place)
        kept = place.outside / f"linked-{path.name}"
        kept.write_bytes(path.read_bytes() if path.exists() else b"")
        path.unlink(missing_ok=True)
        os.link(kept, path)

    return build


for where in (
    "events",
    "labels",
    "order",
    "lock",
    "labels-lock",
    "episodes-lock",
    "committed",
    "progress",
    "journal",
):
    add_case(
        f"{where}-is-a-hard-link",
        _hard_link(FILES[where]),
        "rm",
        "repair",
        "ls",
        "verify",
        "eval",
        "export",
        level="default" if where == "events" else "extended",
    )
add_case("replay-rows-is-a-hard-link", _hard_link(FILES["replay-rows"]), "resume", "ls")


# ---- code

EVIL = "evil_plugin:Robot"


def _config(change: Callable[[dict[str, Any]], Any], *, code: bool = True) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        set_config(place.run, change)
        if code:
            put(place.run / "evil_plugin.py", CODE + "class Robot: ...\nTask = Policy = Labeler = Robot\n")

    return build


def _section(key: str, value: Any) -> Callable[[Place], None]:
    return _config(lambda config: config.update({key: value}))


NAMED: dict[str, Callable[[Place], None]] = {
    "robot": _section("robot", {"type": EVIL}),
    "robot-short": _section("robot", EVIL),
    "robot-with-spaces": _section("robot", {"type": " evil_plugin : Robot "}),
    "task": _section("task", {"type": "evil_plugin:Task"}),
    "policy": _section("policy", {"type": "evil_plugin:Policy"}),
    "model-of-a-policy": _section("policy", {"type": "vla", "model_class": "evil_plugin:Policy"}),
    "labeler": _section("labels", [{"type": "evil_plugin:Labeler"}]),
    "operator": _section("operator", {"type": "evil_plugin:Robot"}),
    "inner-operator": _section("operator", {"type": "pedal", "operator": {"type": EVIL}}),
    "actor": _section("actor", {"type": EVIL}),
    "algorithm": _section("algorithm", {"type": EVIL}),
    "replay": _section("replay", {"type": EVIL}),
    "popen": _section("robot", {"type": "subprocess:Popen", "args": ["touch", "../code-ran"]}),
    "robot-of-a-cluster": _section("cluster", {"robots": {"left": {"robot": {"type": EVIL}}}}),
    "gym-module": _section("robot", {"type": "gym", "id": "evil_plugin:Env-v0"}),
    "gym-arguments": _section(
        "robot", {"type": "gym", "id": "CartPole-v1", "kwargs": {"xml_file": "/etc/passwd"}}
    ),
    "chat-server": _section("labels", [{"type": "vlm", "server": {"url": "http://192.0.2.1/v1"}}]),
    "secret-variable": _section("labels", [{"type": "vlm", "server": {"key_env": "HOME"}}]),
    "remote-policy": _section("policy", {"type": "remote", "address": "192.0.2.1:7400"}),
    "wandb": _config(lambda config: config["run"].update(wandb="evil")),
    "machines": _section("cluster", {"machines": {"desk": {"head": True, "address": "192.0.2.1"}}}),
    "entry-point": _section("robot", {"type": "installed_robot"}),
    "encoder-file": _config(
        lambda config: config["policy"].update(encoder={"type": "frozen", "file": "/dev/zero"}), code=False
    ),
    "encoder-file-in-parent": _config(
        lambda config: config["policy"].update(encoder={"type": "frozen", "file": "../../etc/passwd"}), code=False
    ),
    "checkpoint": _config(
        lambda config: config["policy"].update(components={"actor": {"checkpoint": "/dev/zero"}}), code=False
    ),
    "classifier": _section("labels", [{"type": "classifier", "folder": "/dev"}]),
    "model-folder": _section("labels", [{"type": "vlm", "model_folder": "/usr/share"}]),
    "device": _section("operator", {"type": "gamepad", "path": "/dev/input/event0"}),
}
for what, build in NAMED.items():
    commands = ("eval", "verify", "ls", "export", "serve", "report", "console", "resume", "video", "relabel", "rm")
    commands = (*commands, "receive", "watch", "distill")
    add_case(
        f"config-names-{what}",
        build,
        *commands,
        level="default" if what == "robot" else "extended",
        in_run=True,
        refusal="was not made by you on this machine or was copied, and its config names",
    )


# ---- the copy of a base policy


def _residual(
    base: dict[str, Any], copy: Callable[[], bytes] | None = None, **other: Any
) -> Callable[[Place], None]:
    """A run whose policy corrects a base; `copy` is the section of the base that the run has copied."""

    def change(config: dict[str, Any]) -> None:
        config.update(policy={"type": "residual", "base": base, **other}, algorithm={"type": "residual"})

    def build(place: Place) -> None:
        _config(change)(place)
        if copy is not None:
            put(place.run / "parts" / "base" / "policy.json", copy())

    return build


def _copied(section: dict[str, Any], *, run: str = "") -> Callable[[Place], None]:
    return _residual({"run": run}, lambda: dump_json(section, indent=1))


LARGE = {"type": "gaussian_mlp", "hidden": [60_000, 60_000]}
for what, build in {
    "names-code": _copied({"type": "evil_plugin:Policy"}),
    "of-this-run-names-code": _copied({"type": "evil_plugin:Policy"}, run="."),
    "names-a-server": _residual(
        {"run": ""}, lambda: dump_json({"type": "remote", "address": forbidden().address}, indent=1)
    ),
    "names-a-file": _copied({"type": "flow", "components": {"actor": {"checkpoint": "/dev/zero"}}}),
}.items():
    add_case(
        f"copied-base-{what}",
        build,
        *("eval", "serve", "receive", "watch", "distill", "resume", "report", "ls", "verify", "export"),
        level="default" if what == "names-code" else "extended",
        in_run=True,
        refusal="was not made by you on this machine or was copied, and its config names",
    )
for what, build in {
    "deep": _residual({"run": ""}, lambda: sign('{"type": ' + nested() + "}")),
    "number": _copied({"type": 5}),
    "unknown": _copied({"type": "nothing"}),
    "misfit": _copied({"type": "flow", "horizon": "many"}),
    "large": _copied(LARGE),
    "of-a-base": _copied({"type": "residual", "base": {"type": "flow"}}),
}.items():
    add_case(f"copied-base-{what}", build, "eval", "serve", "ls", in_run=True)
add_case("base-is-this-run", _residual({"run": "."}), "eval", "serve", in_run=True)
add_case("base-large-network", _residual(LARGE), "eval", "serve", level="default")
add_case("base-misfit", _residual({"type": "flow", "horizon": []}), "eval", "serve")
add_case("residual-long-proposal", _residual({"type": "flow"}, horizon=10**9), "eval", "serve")


def _mark(place: Place) -> None:
    NAMED["robot"](place)
    put(place.run / ".trusted", sha256(b"guess") + "\n")


add_case("config-with-a-guessed-mark", _mark, "eval", "resume", in_run=True, refusal="was not made by you")

# ---- the deployed policy


def _deployment(place: Place, **fields: Any) -> None:
    inside = {"weights": str(place.run), "expected_rate": 0.5}
    state = {"deployed": inside, "earlier": [], "candidate": None, "outcomes": [], **fields}
    put(place.run / "deployment.json", dump_json(state, indent=2))


def _named_weights(place: Place, weights: Any) -> None:
    _deployment(place, deployed={"weights": weights, "expected_rate": None})


for what, build in {
    "outside": lambda p: _named_weights(p, str(p.secret_folder)),
    "by-name": lambda p: _named_weights(p, "first-try"),
    "in-parent": lambda p: _named_weights(p, f"{p.run}/../outside/folder"),
    "number": lambda p: _named_weights(p, 5),
    "escape": lambda p: _named_weights(p, f"{p.run}/\x1b[31m[bold]"),
    "markup": lambda p: _named_weights(p, f"{p.run}/[/bold]"),
    "rate-text": lambda p: _deployment(p, deployed={"weights": str(p.run), "expected_rate": "x"}),
    "earlier-outside": lambda p: _deployment(p, earlier=[{"weights": "/", "expected_rate": None}]),
    "outcomes": lambda p: _deployment(p, outcomes=[[]]),
    "deep": lambda p: put(p.run / "deployment.json", sign('{"deployed": ' + nested() + "}")),
    "large": lambda p: put(p.run / "deployment.json", b'{"x": "' + b"x" * 20_000_000),
}.items():
    level = "default" if what == "outside" else "extended"
    add_case(f"deployment-{what}", build, "watch", "deployed", "console", level=level)

# ---- texts of the config


def _text(make: Callable[[], str]) -> Callable[[Place], None]:
    return lambda place: put(place.run / "config.yaml", "# hash: 000000000000\n" + make())


aliases = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(12)
)
TEXTS: dict[str, Callable[[], str]] = {
    "aliases": lambda: aliases,
    "python-tag": lambda: "robot: !!python/object/apply:os.system ['touch ../code-ran']\n",
    "deep": lambda: "robot: " + nested(5000),
    "deep-mapping": lambda: "".join(" " * n + "a:\n" for n in range(3000)),
    "large": lambda: "robot: [" + "0," * 3_000_000 + "]",
    "many-small": lambda: "\n".join(f"k{n}: 1" for n in range(20_000)),
    "binary": lambda: "\0\1\2\x1b[31m",
    "empty": lambda: "",
    "list": lambda: "- 1\n- 2",
    "huge-number": lambda: f"run: {{seed: {'9' * 4000}}}",
    "infinity": lambda: "run: {seed: .inf}",
}
for what, text in TEXTS.items():
    add_case(f"config-text-{what}", _text(text), "verify", "eval", "ls", "report", "console", in_run=True)
add_case("config-large-network", _config(lambda c: c["policy"].update(hidden=[60_000, 60_000])), "eval", "serve")
add_case("config-many-layers", _config(lambda c: c["policy"].update(hidden=[4096] * 64)), "eval", "serve")
add_case(
    "config-long-history", _config(lambda c: c["policy"].update(history={"ee_twist": 10**9})), "eval", "serve"
)
add_case("config-hash-missing", lambda p: put(p.run / "config.yaml", "robot: sim\n"), "ls", "eval", "verify")

# ---- manifests with a right checksum


def _manifest(change: Callable[[dict[str, Any]], Any], *, camera: bool = False) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        folder = add_camera_episode(place.run) if camera else place.episode()
        edit_json(folder / "manifest.json", change, indent=1)

    return build


def _fields(**fields: Any) -> Callable[[Place], None]:
    return _manifest(lambda manifest: manifest.update(fields))


def _file_name(name: str) -> Callable[[Place], None]:
    return _manifest(lambda m: m["files"].update({name: m["files"]["steps.parquet"]}))


def _camera(**fields: Any) -> Callable[[Place], None]:
    return _manifest(lambda m: m["cameras"]["camera/front"].update(fields), camera=True)


def _robot(**fields: Any) -> Callable[[Place], None]:
    return _manifest(lambda manifest: manifest["robot"].update(fields))


def _shape(shape: Any, dtype: Any = "float32") -> dict[str, Any]:
    return {"shape": shape, "dtype": dtype, "names": [], "low": [], "high": []}


MANIFESTS: dict[str, Callable[[Place], None]] = {
    "id-list": _fields(id=["x"]),
    "id-path": _fields(id="../../outside"),
    "task-number": _fields(task=7),
    "prompt-escape": _fields(prompt="\x1b]0;owned\x07\x1b[31m\r\nerror: fake"),
    "prompt-long": _fields(prompt="x" * 3_000_000),
    "operator-markup": _fields(operator="[bold red]x[/]"),
    "outcome-unknown": _fields(outcome="won"),
    "purpose-list": _fields(purpose=[]),
    "judgement-number": _fields(judgement=3),
    "steps-negative": _fields(num_steps=-1),
    "steps-huge": _fields(num_steps=10**30),
    "steps-wrong": _fields(num_steps=99_999_999),
    "steps-text": _fields(num_steps="many"),
    "started-huge": _fields(started_unix_ns=10**40),
    "seed-text": _fields(seed="x"),
    "versions-nested": _fields(policy_versions=[[1], {"a": 1}]),
    "schema-list": _fields(schema=[2]),
    "files-list": _fields(files=[]),
    "files-parent": _file_name("../../../outside/secret.json"),
    "files-absolute": _file_name("/etc/passwd"),
    "files-zero-byte": _file_name("steps\0.parquet"),
    "files-newline": _file_name("a\nerror: fake"),
    "files-long": _file_name("x" * 5000),
    "files-unicode": _file_name("\u202egnp.exe"),
    "files-hash-number": _manifest(lambda m: m["files"]["steps.parquet"].update(sha256=5)),
    "columns-list": _fields(columns=["a"]),
    "cameras-list": _fields(cameras=[1]),
    "camera-file-outside": _camera(file="../../../outside/secret.json"),
    "camera-huge-shape": _camera(shape=[60_000, 60_000, 3]),
    "camera-negative-shape": _camera(shape=[-1, 48, 3]),
    "camera-many-frames": _camera(num_frames=10**9),
    "camera-codec": _camera(codec="rawvideo"),
    "camera-dtype": _camera(dtype="object"),
    "robot-list": _fields(robot=[]),
    "robot-huge-observation": _robot(observation={"x": _shape([10**9])}),
    "robot-negative-observation": _robot(observation={"x": _shape([-5])}),
    "robot-object": _robot(observation={"x": _shape([1], "O")}),
    "robot-wide-type": _robot(observation={"x": _shape([1], "V1000000000")}),
    "robot-hz-zero": _robot(control_hz=0),
    "robot-hz-nan": _robot(control_hz=float("nan")),
    "robot-hz-text": _robot(control_hz="fast"),
    "robot-name-escape": _robot(name="\x1b[2Jpanda"),
    "robot-camera-huge": _robot(observation={"x": _shape([60_000, 60_000, 3], "uint8")}),
}
for what, build in MANIFESTS.items():
    level = "default" if what == "files-parent" else "extended"
    add_case(f"manifest-{what}", build, "ls", "verify", "show", "export", "console", "load", level=level)


def _raw_manifest(make: Callable[[], bytes]) -> Callable[[Place], None]:
    return lambda place: put(place.episode() / "manifest.json", make())


RAW: dict[str, Callable[[], bytes]] = {
    "deep": lambda: sign('{"schema": 2, "x": ' + nested() + "}"),
    "large": lambda: sign('{"schema": 2, "x": [' + "[]," * 4_000_000 + "0]}"),
    "no-object": lambda: b"[1, 2]",
    "empty": lambda: b"",
    "long-number": lambda: sign('{"schema": ' + "9" * 100_000 + "}"),
    "not-utf8": lambda: b"\xff\xfe{",
}
for what, make in RAW.items():
    add_case(f"manifest-text-{what}", _raw_manifest(make))

# ---- tables


def _table(make: Callable[[], bytes], name: str = "steps.parquet") -> Callable[[Place], None]:
    def build(place: Place) -> None:
        folder, data = place.episode(), make()
        put(folder / name, data)
        facts = {"sha256": sha256(data), "num_bytes": len(data)}
        edit_json(folder / "manifest.json", lambda m: m["files"].update({name: facts}), indent=1)

    return build


def parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def _ours(name: str, array: pa.Array, shape: Any, dtype: str) -> pa.Table:
    row = json.dumps({"dtype": dtype, "shape": shape}).encode()
    return pa.table([array], schema=pa.schema([pa.field(name, array.type, metadata={b"dovetail.row": row})]))


def lying_footer(data: bytes, true: int, lie: int) -> bytes:
    """Change a number in the metadata, where Thrift stores it as a zigzag varint of the same length."""

    def varint(value: int) -> bytes:
        value, out = value << 1, b""
        while value >= 128:
            out, value = out + bytes([value & 127 | 128]), value >> 7
        return out + bytes([value])

    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8].replace(varint(true), varint(lie).ljust(len(varint(true)), b"\0"))
    return data[: -8 - size] + footer + data[-8:]


@functools.cache
def zeros(**options: Any) -> bytes:
    """480 MB of zeros in a small file."""
    return parquet(_ours("time_ns", pa.array(np.zeros(60_000_000, np.float64)), [], "float64"), **options)


TABLES: dict[str, Callable[[], bytes]] = {
    "compression-bomb": lambda: zeros(compression="zstd", use_dictionary=False),
    "repetition-bomb": lambda: zeros(),
    "lying-bomb": lambda: lying_footer(zeros(), 60_000_000, 30),
    "huge-shape": lambda: parquet(_ours("time_ns", pa.array([1.0]), [10**9, 10**3], "float64")),
    "negative-shape": lambda: parquet(_ours("time_ns", pa.array([1.0]), [-1, -1], "float64")),
    "object-type": lambda: parquet(_ours("time_ns", pa.array([1.0]), [], "object")),
    "text-shape": lambda: parquet(_ours("time_ns", pa.array([1.0]), "abc", "float64")),
    "nested-note": lambda: parquet(
        pa.table({"a": [1]}).replace_schema_metadata({b"dovetail.note": b'{"a": ' + nested().encode() + b"}"})
    ),
    "text-bomb": lambda: parquet(pa.table({"time_ns": pa.array(["x" * 1_000_000] * 2000)})),
    "strings": lambda: parquet(pa.table({"time_ns": ["a"]})),
    "nulls": lambda: parquet(_ours("time_ns", pa.array([None, 1.0]), [], "float64")),
    "empty-file": lambda: b"",
    "magic-only": lambda: b"PAR1" + b"\0" * 100 + b"\xff\xff\xff\x7fPAR1",
    "no-columns": lambda: parquet(pa.table({})),
    "huge-footer": lambda: (
        b"PAR1" + b"\x19\xfc\xff\xff\x07" + b"\0" * 1000 + (1005).to_bytes(4, "little") + b"PAR1"
    ),
}
for what, make in TABLES.items():
    level = "default" if what == "compression-bomb" else "extended"
    add_case(f"table-{what}", _table(make), "verify", "load", "show", "export", level=level)
for what in ("compression-bomb", "huge-shape"):
    add_case(f"last-table-{what}", _table(TABLES[what], "last.parquet"), "verify", "export", "load")


def _random_table(place: Place) -> None:
    """Every 40th byte of the metadata changed: Arrow's own reader of metadata would end the process."""
    path = place.episode() / "steps.parquet"
    data = bytearray(path.read_bytes())
    for index in range(len(data) - 3000, len(data) - 8, 40):
        data[index] ^= 0x55
    _table(lambda: bytes(data))(place)


add_case("table-damaged-metadata", _random_table, "show", "verify", "export", "load")

# ---- videos


def _video(data: bytes, **camera: Any) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        folder = add_camera_episode(place.run)
        name = next(folder.glob("frames-camera*")).name
        put(folder / name, data)
        facts = {"sha256": sha256(data), "num_bytes": len(data)}

        def change(manifest: dict[str, Any]) -> None:
            manifest["files"][name] = facts
            manifest["cameras"]["camera/front"].update(camera)

        edit_json(folder / "manifest.json", change, indent=1)

    return build


def black_video(width: int, height: int, num_frames: int, *, codec: str = "ffv1", form: str = "matroska") -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height = width, height
        stream.pix_fmt = "gray" if codec == "ffv1" else "yuv420p"
        frame = av.VideoFrame(width, height, stream.pix_fmt)
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        for number in range(num_frames):
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:{}\n#EXT-X-ENDLIST\n"
VIDEOS: dict[str, Callable[[Place], None]] = {
    "huge-frames": lambda p: _video(black_video(8_000, 8_000, 2))(p),
    "many-frames": lambda p: _video(black_video(64, 48, 3000))(p),
    "other-size": lambda p: _video(black_video(640, 480, 7))(p),
    "playlist": lambda p: _video(playlist.format(p.secret).encode())(p),
    "concat-script": lambda p: _video(f"ffconcat version 1.0\nfile {p.secret}\n".encode())(p),
    "subtitles": lambda p: _video(b"1\n00:00:00,000 --> 00:00:01,000\nhello\n")(p),
    "empty": lambda p: _video(b"")(p),
    "noise": lambda p: _video(np.random.default_rng(0).bytes(100_000))(p),
}
for what, build in VIDEOS.items():
    level = "default" if what == "playlist" else "extended"
    add_case(f"video-{what}", build, "verify", "load", "ls", level=level)

# ---- order, labels, events, small files


def _append(find: Callable[[Place], Path], make: Callable[[], bytes]) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        path = find(place)
        put(path, (path.read_bytes() if path.exists() else b"") + make())

    return build


def label(**fields: Any) -> bytes:
    body = {
        "episode_id": "x",
        "labeler": "human",
        "version": "1",
        "priority": 100,
        "success": True,
        "confidence": 1.0,
        "num_steps": 1,
        "rewards": "AACAPw==",
        "discounts": "AACAPw==",
        "added_unix_ns": 1,
    }
    return dump_json({**body, **fields}) + b"\n"


LABELS: dict[str, Callable[[], bytes]] = {
    "deep": lambda: sign('{"episode_id": "x", "labeler": "a", "version": "b", "x": ' + nested() + "}") + b"\n",
    "priority-text": lambda: label(priority="high"),
    "id-list": lambda: label(episode_id=["a"]),
    "confidence-nan": lambda: label(confidence=float("nan")),
    "rewards-no-base64": lambda: label(rewards="@@@"),
    "rewards-odd": lambda: label(rewards="AAA="),
    "success-text": lambda: label(success="yes"),
    "added-huge": lambda: label(added_unix_ns=10**40),
    "labeler-escape": lambda: label(labeler="\x1b[31mhuman", why="\x1b]0;x\x07"),
    "not-an-object": lambda: sign('{"a": 1}') + b"\n",
    "no-newline-large": lambda: b"x" * 20_000_000,
}
for what, make in LABELS.items():
    add_case(
        f"label-{what}", _append(FILES["labels"], make), "ls", "show", "verify", "repair", "export", "console"
    )
add_case(
    "label-of-an-episode-with-escape",
    lambda p: _append(
        FILES["labels"], lambda: label(episode_id=p.episode().name, labeler="\x1b[31m", why="\x1b]0;x\x07")
    )(p),
    "show",
    "ls",
)
EVENTS: dict[str, Callable[[], bytes]] = {
    "deep": lambda: b'{"event": "episode", "x": ' + nested().encode() + b"}\n",
    "one-long-line": lambda: b'{"event": "episode", "x": "' + b"x" * 20_000_000 + b'"}\n',
    "other-types": lambda: (
        b'{"event": "episode", "time": "now", "steps": []}\n{"event": ["episode"]}\n[]\n{"event": "evaluated"}\n'
    ),
    "huge-numbers": lambda: b'{"event": "episode", "time": 1e999, "num_steps": ' + b"9" * 5000 + b"}\n",
}
for what, make in EVENTS.items():
    add_case(f"events-{what}", _append(FILES["events"], make), "report", "console", "ls", "eval")
SMALL: dict[str, Callable[[], bytes]] = {
    "deep": lambda: sign('{"x": ' + nested() + "}"),
    "list": lambda: b"[]",
    "empty-object": lambda: dump_json({}, indent=2),
    "large": lambda: b'{"x": "' + b"x" * 20_000_000,
}
for what, find in {
    "progress": FILES["progress"],
    "evaluation": FILES["evaluation"],
    "pin": FILES["weights-pin"],
    "weights": FILES["weights-version"],
    "checkpoint": FILES["checkpoint"],
    "committed": FILES["committed"],
    "layout": FILES["replay-layout"],
}.items():
    for kind, make in SMALL.items():
        level = "extended" if kind in ("deep", "empty-object") else "slow"
        commands = ("verify", "report", "eval", "console") if kind == "deep" else ("verify", "report", "console")
        add_case(f"{what}-{kind}", lambda p, f=find, m=make: put(f(p), m()), *commands, level=level)
ORDERS: dict[str, Callable[[], bytes]] = {
    "many": lambda: b"".join(_order.line(number, f"e{number}") for number in range(5_000)),
    "huge-number": lambda: _order.line(10**4000, "e"),
    "path": lambda: _order.line(1, "../../outside"),
    "one-line": lambda: b"+ " * 5_000_000,
    "newlines": lambda: b"\n" * 10_000_000,
}
for what, make in ORDERS.items():
    add_case(f"order-{what}", _append(FILES["order"], make), "ls", "verify", "repair", "console")


def _duplicate(place: Place) -> None:
    """Two folders with the same manifest."""
    first = place.episode()
    copy = first.with_name(first.name + "-copy")
    copy.mkdir()
    for file in first.iterdir():
        put(copy / file.name, file.read_bytes())


def _removed(place: Place) -> None:
    """`.order` says that an episode was removed; the next writer deletes the folder of that name."""
    outside = place.run / "episodes" / "victim"
    outside.symlink_to(place.secret_folder)
    _append(FILES["order"], lambda: _order.line(7, "victim", removed=True))(place)


add_case("episode-twice", _duplicate, "ls", "verify", "export", "console")
add_case("episode-removed-link", _removed, "rm", "repair", *READERS, level="default")
add_case("tmp-full", lambda p: put(p.run / "episodes" / ".tmp" / "x" / "y", b"1"), "verify", "ls", "rm")
add_case("name-with-newline", lambda p: put(p.run / "episodes" / "a\nerror: fake \x1b[31m", b""), *READERS)
add_case("name-not-utf8", lambda p: put(Path(os.fsdecode(bytes(p.run) + b"/episodes/\xff\xfe")), b""), *READERS)
add_case("known-serve-token", lambda p: put(p.run / "serve.token", "a" * 64 + "\n"), "serve")

# ---- weights and checkpoints


def _weights(make: Callable[[], bytes]) -> Callable[[Place], None]:
    """All components of the newest version are this file."""

    def build(place: Place) -> None:
        data = make()
        digest = sha256(data)
        put(place.run / "weights" / "components" / f"{digest}.safetensors", data)
        edit_json(
            place.run / "weights" / "v00000005.json",
            lambda m: m.update(components=dict.fromkeys(m["components"], digest)),
            indent=1,
        )

    return build


def _tensors(header: str, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + data


TENSORS: dict[str, Callable[[], bytes]] = {
    "huge-header": lambda: (2**60).to_bytes(8, "little") + b"{}",
    "huge-shape": lambda: _tensors(
        '{"a":{"dtype":"F32","shape":[1000000000,1000000000],"data_offsets":[0,4]}}', b"\0" * 4
    ),
    "overlap": lambda: _tensors('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4000000000]}}', b"\0" * 4),
    "deep": lambda: _tensors('{"a":' + nested(50_000) + "}"),
    "bfloat": lambda: _tensors('{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}', b"\0" * 2),
    "empty": lambda: b"",
    "other-arrays": lambda: _tensors('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4),
}
for what, make in TENSORS.items():
    level = "default" if what == "huge-shape" else "extended"
    add_case(f"tensors-{what}", _weights(make), "eval", "serve", "verify", level=level)


def _version(change: Callable[[dict[str, Any]], Any]) -> Callable[[Place], None]:
    return lambda place: edit_json(place.run / "weights" / "v00000005.json", change, indent=1)


for what, change in {
    "path": lambda m: m.update(components={"actor": "../../../outside/secret"}),
    "list": lambda m: m.update(components=[1]),
    "name-escape": lambda m: m.update(components={"\x1b[31m\n": next(iter(m["components"].values()))}),
    "version-text": lambda m: m.update(version="5"),
}.items():
    add_case(f"weights-manifest-{what}", _version(change), "eval", "serve", "verify", "console")


def _sparse(place: Place) -> None:
    path = place.run / "weights" / "components" / f"{'0' * 64}.safetensors"
    with path.open("wb") as file:
        file.truncate(20 << 30)
    edit_json(
        place.run / "weights" / "v00000005.json",
        lambda m: m.update(components=dict.fromkeys(m["components"], "0" * 64)),
        indent=1,
    )


def _sparse_steps(place: Place) -> None:
    with (place.episode() / "steps.parquet").open("wb") as file:
        file.truncate(20 << 30)


add_case("weights-sparse-file", _sparse, "eval", "serve", "verify")
add_case("steps-sparse-file", _sparse_steps, "verify", "export", "show", level="default")
add_case("weights-long-version", lambda p: put(p.run / "weights" / f"v{'9' * 200}.json", b"{}"), "eval", "console")


def _checkpoint(**fields: Any) -> Callable[[Place], None]:
    return lambda p: edit_json(
        p.run / "checkpoints" / "last" / "manifest.json", lambda m: m.update(fields), indent=2
    )


for what, build in {
    "path": _checkpoint(file="../../../outside/secret.json"),
    "number": _checkpoint(file=5),
    "hash-list": _checkpoint(sha256=[]),
}.items():
    add_case(f"checkpoint-{what}", build, "verify", "eval-checkpoint")

# ---- spool


def _journal_of(make: Callable[[], bytes]) -> Callable[[Place], None]:
    return lambda place: put(place.journal(), make())


def _start(place: Place) -> bytes:
    with place.journal().open("rb") as file:
        return next(_journal.read(file)).payload


def _segment(make: Callable[[], bytes]) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        start = _journal.pack(_journal.Kind.START, _start(place))
        put(place.journal(), start + _journal.pack(_journal.Kind.SEGMENT, make()))

    return build


def ipc(table: pa.Table, compression: str) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _ipc_bomb() -> bytes:
    return ipc(_ours("a", pa.array(np.zeros(60_000_000, np.float64)), [], "float64"), "zstd")


def _many_headers() -> bytes:
    """Each promises a long record, so a reader that tries them all never ends."""
    header = _journal._HEADER.pack(b"dvtJ", 2, 5_000_000, 0)
    return b"\0" * 30 + (header + _journal._CHECK.pack(zlib.crc32(header))) * 300_000


for what, build in {
    "bomb": _segment(_ipc_bomb),
    "noise": _segment(lambda: np.random.default_rng(0).bytes(5000)),
    "start-deep": _journal_of(lambda: _journal.pack(_journal.Kind.START, sign('{"x": ' + nested() + "}"))),
    "start-empty": _journal_of(lambda: _journal.pack(_journal.Kind.START, dump_json({}))),
    "end-first": _journal_of(
        lambda: _journal.pack(_journal.Kind.END, dump_json({"outcome": "x", "judgement": []}))
    ),
    "many-headers": _journal_of(_many_headers),
    "huge-length": _journal_of(lambda: _journal._HEADER.pack(b"dvtJ", 1, 2**63, 0)),
}.items():
    add_case(f"journal-{what}", build, "verify", "ls", "console")
