"""Each finding of the review of 0.6 about files from elsewhere, by its number there."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.api.names import find_run
from dovetail.config.load import load, load_saved, save
from dovetail.config.trust import check_stored, is_trusted, mark_trusted
from dovetail.core.disk import (
    check_folder,
    open_file,
    open_for_update,
    open_lock,
    parse_json,
    private_folder,
    read_file,
    write_atomic,
    writer,
)
from dovetail.core.errors import LabelError, PluginError, RunFolderError, StoreError
from dovetail.episodes.lerobot import export, open_dataset
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.verify import verify_log
from dovetail.labels._chat_client import ChatClient, ServerConfig
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder
from hostile.folders import CODE, edit_json, honest_run, nested, put, set_config
from support.lerobot_episodes import MemoryLog, make_labels, make_lerobot_episode


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    put(folder / "precious", "data")
    return folder


# ---- 8, 18, 19: links


def test_8_linked_tmp_folder_is_refused_and_not_emptied(tmp_path: Path, victim: Path) -> None:
    log = EpisodeLog(tmp_path / "episodes")
    log.commit(make_lerobot_episode(0))
    (tmp_path / "episodes" / ".tmp").rmdir()
    (tmp_path / "episodes" / ".tmp").symlink_to(victim)
    with pytest.raises(StoreError, match="symbolic link"):
        log.commit(make_lerobot_episode(1))
    assert (victim / "precious").read_text() == "data"


def test_8_link_inside_tmp_is_unlinked_and_its_target_kept(tmp_path: Path, victim: Path) -> None:
    with writer(tmp_path / "store"):
        pass
    (tmp_path / "store" / ".tmp" / "x").symlink_to(victim)
    with writer(tmp_path / "store") as temporary:
        assert not list(temporary.iterdir())
    assert (victim / "precious").exists()


def test_8_verify_changes_nothing(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_lerobot_episode(0))
    put(tmp_path / ".tmp" / "leftover", "x")
    (tmp_path / ".order").unlink()  # a problem, which was checked again under the writer's lock
    (tmp_path / ".lock").unlink()
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert [finding.problem for finding in verify_log(tmp_path) if not finding.is_intact] == ["is missing"]
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_18_lock_files_follow_no_link_and_are_not_truncated(tmp_path: Path, victim: Path) -> None:
    run = honest_run(tmp_path)
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(victim / "precious")
    with pytest.raises(RunFolderError, match=r"\.lock is a symbolic link"):
        RunFolder.open(run)
    (run / ".lock").unlink()
    os.link(victim / "precious", run / ".lock")
    folder = RunFolder.open(run)
    folder.lock()
    folder.unlock()
    assert (victim / "precious").read_text() == "data"
    (tmp_path / "link").symlink_to(victim / "precious")
    with pytest.raises(StoreError, match="symbolic link"):
        open_lock(tmp_path / "link")


def test_19_linked_episode_is_none_and_can_be_removed_from_the_order(tmp_path: Path, victim: Path) -> None:
    log = EpisodeLog(tmp_path / "episodes")
    first, second = make_lerobot_episode(0), make_lerobot_episode(1)
    log.commit(first)
    (tmp_path / "episodes" / first.id).rename(tmp_path / "elsewhere")
    (tmp_path / "episodes" / first.id).symlink_to(tmp_path / "elsewhere")
    assert log.ids() == []
    assert first.id not in log
    log.commit(second)  # the log still works
    log.remove(second.id)
    log.remove(first.id)
    assert not (tmp_path / "episodes" / first.id).is_symlink()
    assert (tmp_path / "elsewhere" / "manifest.json").exists()
    assert not [finding for finding in verify_log(tmp_path / "episodes") if not finding.is_intact]


@pytest.mark.parametrize("target", ["elsewhere", "not-there"])
def test_19_episode_with_the_id_of_a_link_is_committed(tmp_path: Path, target: str) -> None:
    log, episode = EpisodeLog(tmp_path / "episodes"), make_lerobot_episode(0)
    log.commit(episode)
    (tmp_path / "episodes" / episode.id).rename(tmp_path / "elsewhere")
    before = sorted(path.name for path in (tmp_path / "elsewhere").iterdir())
    (tmp_path / "episodes" / episode.id).symlink_to(tmp_path / target)
    log.commit(episode)
    assert log.ids() == [episode.id]
    log.verify(episode.id)
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == before


@pytest.mark.parametrize("target", ["/dev/zero", "/etc/hostname", "loop"])
def test_no_reader_follows_a_link(tmp_path: Path, target: str) -> None:
    (tmp_path / "loop").symlink_to(target)
    with pytest.raises(StoreError, match="symbolic link"):
        open_file(tmp_path / "loop")
    with pytest.raises(StoreError, match="symbolic link"):
        open_for_update(tmp_path / "loop")
    with pytest.raises(StoreError, match="symbolic link"):
        check_folder(tmp_path)


def test_file_is_in_memory_once_while_it_is_read(tmp_path: Path) -> None:
    put(tmp_path / "large", os.urandom(30_000_000))
    tracemalloc.start()
    try:
        assert len(read_file(tmp_path / "large")) == 30_000_000
        assert tracemalloc.get_traced_memory()[1] < 35_000_000
    finally:
        tracemalloc.stop()


def test_pipe_does_not_block_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for opened in (open_file, open_lock, open_for_update):
        with pytest.raises(StoreError, match="not a regular file"):
            opened(tmp_path / "pipe")


def test_hard_link_is_not_written_in_place(tmp_path: Path, victim: Path) -> None:
    os.link(victim / "precious", tmp_path / "events.jsonl")
    with pytest.raises(StoreError, match="hard link"):
        open_for_update(tmp_path / "events.jsonl")
    write_atomic(tmp_path / "events.jsonl", b"new")  # replaces the name
    assert (victim / "precious").read_text() == "data"


# ---- 9: code

SHADOWS = ("av", "numpy", "json", "torch", "yaml", "typer", "sitecustomize", "usercustomize", "pyarrow", "mujoco")


def _cold(arguments: list[str], *, cwd: Path, outside: Path) -> subprocess.CompletedProcess[str]:
    """Run the script. A server is ended after it has printed its address."""
    script = Path(sys.executable).with_name("dovetail")
    process = subprocess.Popen(
        [str(script), *arguments],
        cwd=cwd,
        env={**os.environ, "HOSTILE_OUTSIDE": str(outside)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = ""
    if arguments[0] == "serve":
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
    try:
        output, errors = process.communicate(timeout=180)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, first + output, errors)


def test_9_every_child_process_ignores_the_modules_of_the_current_folder(pytestconfig: pytest.Config) -> None:
    """Without -P, `python -m` and `python -c` search the current folder first."""
    lines = [
        f"{path.name}: {line.strip()}"
        for path in (pytestconfig.rootpath / "src" / "dovetail").rglob("*.py")
        for line in path.read_text().splitlines()
        if "sys.executable" in line
    ]
    assert len(lines) >= 5
    assert not [line for line in lines if 'sys.executable, "-P"' not in line]


@pytest.mark.parametrize(
    "arguments",
    [
        ["episodes", "ls", "."],
        pytest.param(["episodes", "verify", "."], marks=pytest.mark.extended),
        pytest.param(["eval", ".", "--episodes", "1"], marks=pytest.mark.extended),
        pytest.param(["label", ".", "--labeler", "outcome"], marks=pytest.mark.slow),
        pytest.param(["episodes", "export", ".", "--out", "../out"], marks=pytest.mark.slow),
        pytest.param(["doctor"], marks=pytest.mark.extended),
        pytest.param(["run", "--resume", ".", "--quiet"], marks=pytest.mark.slow),
        pytest.param(["serve", ".", "--port", "0", "--quiet"], marks=pytest.mark.extended),
        pytest.param(["run", "--resume", ".", "--quiet", "on ray"], marks=pytest.mark.slow),
    ],
)
def test_9_modules_in_the_current_folder_do_not_run(tmp_path: Path, arguments: list[str]) -> None:
    run, outside = honest_run(tmp_path), tmp_path / "outside"
    outside.mkdir()
    if arguments[-1] == "on ray":
        stored = set_config(run, lambda config: config.update(runtime="ray"))
        checkpoint = run / "checkpoints" / "last" / "manifest.json"
        edit_json(checkpoint, lambda facts: facts.update(config_hash=stored), indent=2)
        arguments = arguments[:-1]
    for name in SHADOWS:
        put(run / f"{name}.py", CODE)
    put(run / "dovetail" / "__init__.py", CODE)
    put(run / "evil-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    put(run / "evil-1.0.dist-info" / "entry_points.txt", "[dovetail.robot]\nsim = evil:Robot\n")
    put(run / "evil.py", CODE)
    done = _cold(arguments, cwd=run, outside=outside)
    assert done.returncode in (0, 1), done.stderr
    if arguments[0] in ("eval", "run", "serve"):
        assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(outside.iterdir())


def test_9_stored_config_with_code_is_refused_until_trusted(tmp_path: Path) -> None:
    run = honest_run(tmp_path)
    set_config(run, lambda config: config.update(task={"type": "support.sample_plugins:Task"}))
    with pytest.raises(PluginError, match=r"not made by you on this machine.*`dovetail trust"):
        load_saved(run)
    assert not is_trusted(run)
    mark_trusted(run)
    assert load_saved(run, quiet=True).config.task is not None
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (".trusted", "config.yaml"):
        put(copy / name, (run / name).read_bytes())
    assert not is_trusted(copy), "a copy is another folder"
    put(run / "config.yaml", (run / "config.yaml").read_text() + "\n")
    assert not is_trusted(run), "a changed config is another config"


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"policy": {"encoder": {"type": "frozen", "file": "/dev/zero"}}}, "a file outside the run ('/dev/zero')"),
        ({"policy": {"components": {"actor": {"checkpoint": "~/old"}}}}, "weights outside the run ('~/old')"),
        ({"labels": [{"type": "classifier", "folder": "../judge"}]}, "a folder outside the run ('../judge')"),
        ({"labels": [{"type": "vlm", "model_folder": "a\0b"}]}, "a folder outside the run"),
        ({"operator": {"type": "pedal", "path": "/dev/input/event0"}}, "the operator 'pedal'"),
        ({"policy": {"type": "remote", "token_env": "AWS_KEY"}}, "a secret"),
    ],
)
def test_stored_config_that_names_a_path_outside_the_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], what: str
) -> None:
    run = honest_run(tmp_path)
    monkeypatch.chdir(run)
    with pytest.raises(PluginError) as refused:
        check_stored(config, run)
    assert what in str(refused.value)
    inside = {"policy": {"encoder": {"type": "frozen", "file": str(run / "encoder.safetensors")}}}
    check_stored(inside, run)
    check_stored({"policy": {"encoder": {"file": "encoder.safetensors"}}}, run)
    (run / "link").symlink_to("/etc")
    with pytest.raises(PluginError, match="outside the run"):
        check_stored({"policy": {"encoder": {"file": str(run / "link" / "passwd")}}}, run)


@pytest.mark.parametrize("name", ["zero", "pipe", "large"])
def test_encoder_file_that_is_no_regular_file_or_too_large_is_refused(tmp_path: Path, name: str) -> None:
    from dovetail.policies.images.backbones import load_backbone

    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(StoreError, match=r"not a regular file|holes"):
        load_backbone(tmp_path / name, arch="mobilenet_v2", stride=16)


def test_9_own_run_is_trusted(tmp_path: Path) -> None:
    save(load(["peg-insertion"]), tmp_path / "run")
    assert is_trusted(tmp_path / "run")


def test_9_own_plugin_of_the_current_folder_is_found_after_installed_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail.config.plugins import resolve

    put(tmp_path / "hostile_own_plugin.py", "from support.sample_plugins import Task\n")
    put(tmp_path / "colorsys.py", "raise RuntimeError\n")  # of the standard library, not imported yet
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(PluginError, match=r"cannot import module 'colorsys'|has no 'Task'"):
        resolve("task", "colorsys:Task")
    assert str(tmp_path) not in sys.path
    assert resolve("task", "hostile_own_plugin:Task").__name__ == "Task"
    assert sys.path[-1] == str(tmp_path)


# ---- 13, 14, 15: datasets


def test_13_imported_labels_never_outrank_a_person(tmp_path: Path) -> None:
    from dataclasses import replace

    log = MemoryLog([0])
    person = make_labels(log.episode(log.ids()[0]), success=False)
    crafted = replace(person, labeler="human", priority=10**9, success=True)
    export(log, tmp_path / "out", labels={crafted.episode_id: crafted}.get)
    imported = open_dataset(tmp_path / "out").labels(0)
    assert imported is not None
    assert (imported.labeler, imported.priority) == ("imported", 0)
    assert imported.version.startswith("human ")
    store = LabelStore(tmp_path / "labels")
    store.add(replace(person, labeler="human", priority=1))
    store.add(imported)
    current = store.current(person.episode_id)
    assert current is not None
    assert current.labeler == "human"


def distill_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Distill a run of 0.6, which was made elsewhere, into itself. Its labels are those of a person."""
    from dovetail.api import distillation

    (tmp_path / "new").mkdir()
    monkeypatch.setattr(distillation, "train", lambda **options: None)
    run = tmp_path / "run" if (tmp_path / "run").is_dir() else honest_run(tmp_path)
    distillation.distill(run, run, name="made", runs_dir=tmp_path / "new")
    return tmp_path / "new" / "made"


def test_13_labels_of_a_distilled_run_from_elsewhere_never_outrank_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    run = honest_run(tmp_path)
    store, log = LabelStore(run / "labels"), EpisodeLog(run / "episodes")
    for one in log.ids():
        crafted = make_labels(log.load(one), success=True)
        store.add(replace(crafted, labeler="human", priority=10**6))
    made = distill_foreign(tmp_path, monkeypatch)
    assert EpisodeLog(made / "episodes").ids()
    for one in EpisodeLog(made / "episodes").ids():
        label = LabelStore(made / "labels").current(one)
        assert label is not None
        assert (label.labeler, label.priority) == ("imported", 0)
        assert label.version.startswith("human ")


def test_14_distilling_a_run_from_elsewhere_refuses_values_that_are_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    log = EpisodeLog(honest_run(tmp_path) / "episodes")
    episode = next(one for one in map(log.load, log.ids()) if one.success)
    first, *rest = (replace(segment, episode_id="hostile") for segment in episode.segments)
    key = next(key for key in first.columns if key.startswith("observation/"))
    first = replace(first, columns={**first.columns, key: first.columns[key] * np.float32(np.nan)})
    log.commit(replace(episode, id="hostile", segments=(first, *rest)))
    with pytest.raises(StoreError, match="contains NaN or infinity"):
        distill_foreign(tmp_path, monkeypatch)
    assert not (tmp_path / "new" / "made").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_14_values_that_are_not_finite_are_refused_with_the_column(value: float) -> None:
    from dataclasses import replace

    from dovetail.episodes.lerobot._checks import check_values

    episode = make_lerobot_episode(0)
    check_values(episode, None, name="episode 0")
    segment = episode.segments[0]
    bad = {**segment.columns, "observation/joint_pos": segment.columns["observation/joint_pos"] * value}
    changed = replace(episode, segments=(replace(segment, columns=bad), *episode.segments[1:]))
    with pytest.raises(StoreError, match=r"observation/joint_pos contains NaN or infinity"):
        check_values(changed, None, name="episode 0")
    short = {**segment.columns, "observation/joint_pos": segment.columns["observation/joint_pos"][:, :2]}
    with pytest.raises(StoreError, match=r"observation 'joint_pos' is float32\[2\], but should be float32\[3\]"):
        check_values(replace(episode, segments=(replace(segment, columns=short),)), None, name="episode 0")


@pytest.mark.parametrize(
    "pattern",
    ["{chunk_index:0999999999d}", "{chunk_index.__class__}", "{chunk_index!r}", "{x}", "{", "{0}", "{:9}"],
)
def test_15_path_patterns_have_plain_fields_only(pattern: str) -> None:
    from dovetail.episodes.lerobot._checks import fill

    with pytest.raises(StoreError):
        fill(pattern, {"chunk_index": 1}, name="info.json")
    assert fill("a/{chunk_index:03d}-{chunk_index}", {"chunk_index": 1}, name="info.json") == "a/001-1"


# ---- 20: nesting


class _NestedAnswers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = nested().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None: ...


def test_20_nested_json_of_a_chat_server_is_a_label_error() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _NestedAnswers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        client = ChatClient(ServerConfig(url=url, tries=1, model="m"))
        with pytest.raises(LabelError, match="not valid JSON"):
            client.ask([{"role": "user", "content": "?"}])
        server.shutdown()


@pytest.mark.parametrize(
    "text", [nested(), '{"a":' * 200_000 + "1" + "}" * 200_000, "[" + "0," * 3_000_000 + "0]"]
)
def test_20_parse_json_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|more than"):
        parse_json(text)


# ---- 25: other users


def test_25_temporary_names_are_random_and_folders_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    replace = os.replace

    def note(source: Any, target: Any) -> None:
        names.append(Path(source).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", note)
    for _ in range(2):
        write_atomic(tmp_path / "file", b"x")
    assert len(set(names)) == 2
    assert stat.S_IMODE(private_folder(tmp_path / "private").stat().st_mode) == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    assert stat.S_IMODE(private_folder(tmp_path / "open").stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(StoreError, match="another user"):
        private_folder(tmp_path / "link")


def test_25_a_link_under_a_guessed_temporary_name_is_not_followed(tmp_path: Path, victim: Path) -> None:
    from dovetail.episodes.video import write_video

    for name in (".a.mp4.partial", f"token.{os.getpid()}"):
        (tmp_path / name).symlink_to(victim / "precious")
    write_video(tmp_path / "a.mp4", [np.zeros((16, 16, 3), np.uint8)] * 2, fps=10)
    assert (victim / "precious").read_text() == "data"
    pytest.importorskip("ray")
    from dovetail.runtime.ray.cluster.token import make_token

    assert make_token(tmp_path / "token")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert (victim / "precious").read_text() == "data"


@pytest.mark.extended
def test_25_console_stores_nothing_under_a_name_that_others_know() -> None:
    names = set()
    for _ in range(2):
        code = "import os, dovetail.cli._console; print(os.environ['NICEGUI_STORAGE_PATH'])"
        environment = {key: value for key, value in os.environ.items() if key != "NICEGUI_STORAGE_PATH"}
        done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True)
        names.add(done.stdout.strip())
        assert not Path(done.stdout.strip()).exists()
    assert len(names) == 2


def test_25_spool_of_an_arm_elsewhere_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from dovetail.runtime.ray.roles.robot import Arm

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arm = Arm(name="left", config={}, config_hash="", run=Path("/not/here"), key="secret")
    assert stat.S_IMODE(arm.make_folder().parent.stat().st_mode) == 0o700


def test_other_users_can_read_nothing_of_a_new_run(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunFolder.create(tmp_path / "run", load(["peg-insertion"]))
        folder.lock()
        folder.unlock()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder.path / ".lock").stat().st_mode) == 0o600
    assert find_run(folder.path) == folder.path


def test_folder_of_0_6_needs_no_trust(tmp_path: Path) -> None:
    run = honest_run(tmp_path)
    assert load_saved(run, quiet=True).config.robot.type == "sim"
    assert json.loads((run / "progress.json").read_text())
