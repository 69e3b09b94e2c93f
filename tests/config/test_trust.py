"""Only the user who made or read a run folder can make its mark, and it counts while no other user may write there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.config import _trust_key
from dovetail.config import load as loading
from dovetail.config import trust as trusting
from dovetail.config._trust_key import key_file, make_key
from dovetail.config.load import load, load_saved, save
from dovetail.config.model import Config, nested_models, settings
from dovetail.config.plugins import BUILTIN, settings_of
from dovetail.config.schema import RunConfig
from dovetail.config.trust import MARK, is_trusted, mark_trusted
from dovetail.core.errors import ConfigWarning, PluginError, RunFolderError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def run(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with plugins that are not built in, as another process of this user sees it."""
    save(load([base]), tmp_path / "run")
    monkeypatch.setattr(trusting, "_made_here", set())
    return tmp_path / "run"


def test_own_run_is_trusted_by_another_process(run: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dovetail.config.trust import is_trusted\n"
        "print(is_trusted(Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, run], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_mark_computed_without_the_key_does_not_count(run: Path) -> None:
    """Everything that the mark is made from can be known to another user, except the key."""
    machine, config = trusting._machine_id(), (run / "config.yaml").read_bytes()
    digest = hashlib.sha256(config).hexdigest()
    facts = "\n".join(["dovetail run folder", machine, str(os.getuid()), str(run.stat().st_ino), digest])
    assert trusting._facts(run) == facts.encode()
    (run / MARK).write_text(hashlib.sha256(facts.encode()).hexdigest() + "\n")  # the scheme without a key
    assert not is_trusted(run)
    with pytest.raises(PluginError, match=r"was not made by you on this machine.*`dovetail trust"):
        load_saved(run)
    mark_trusted(run)
    load_saved(run)


def test_mark_of_another_key_does_not_count(run: Path) -> None:
    assert is_trusted(run)
    key_file().unlink()
    assert not is_trusted(run)
    assert not key_file().exists(), "reading makes no key"
    make_key()
    assert not is_trusted(run)


@pytest.mark.parametrize("name", [".", "config.yaml", "changes.json", MARK])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_mark_does_not_count_where_other_users_may_write(run: Path, name: str, mode: int) -> None:
    path = run / name
    if name == "changes.json":
        path.write_text("{}")
    before = path.stat().st_mode
    path.chmod(before | mode)
    assert not is_trusted(run)
    for call in (mark_trusted, lambda folder: load_saved(folder)):
        with pytest.raises(
            (RunFolderError, PluginError), match=f"other users may write to {path}.*chmod go-w {path}`"
        ):
            call(run)
    path.chmod(before)
    assert is_trusted(run)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", [".", "config.yaml", MARK])
def test_mark_does_not_count_if_another_user_owns_a_part(run: Path, name: str) -> None:
    os.chown(run / name, 65534, -1)
    assert not is_trusted(run)
    with pytest.raises(RunFolderError, match=r"is not a file or folder of yours. Copy the folder"):
        mark_trusted(run)


def test_new_run_is_trusted_with_a_umask_that_lets_the_group_write(base: str, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        save(load([base]), tmp_path / "run")
    finally:
        os.umask(before)
    assert is_trusted(tmp_path / "run")


def test_key_is_private(run: Path, state: Path) -> None:
    assert key_file() == state / "dovetail" / "trust.key"
    assert key_file().stat().st_mode & 0o777 == 0o600
    assert key_file().parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in key_file().parent.iterdir()] == ["trust.key"]
    key_file().chmod(0o644)
    assert not is_trusted(run)
    with pytest.raises(RunFolderError, match=r"other users may open .*trust.key. Delete it"):
        mark_trusted(run)


def test_key_behind_a_link_is_refused(run: Path, tmp_path: Path) -> None:
    key_file().rename(tmp_path / "elsewhere")
    key_file().symlink_to(tmp_path / "elsewhere")
    assert not is_trusted(run)
    with pytest.raises(RunFolderError, match=r"cannot read .*trust.key"):
        mark_trusted(run)


def test_processes_that_make_the_key_at_the_same_time_get_the_same_key(state: Path) -> None:
    code = (
        "import sys, time; from dovetail.config._trust_key import make_key\n"
        "print('ready', flush=True); sys.stdin.readline(); print(make_key().hex())"
    )
    command = [sys.executable, "-c", code]
    made = [subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) for _ in range(6)]
    assert [each.stdout.readline() for each in made if each.stdout] == ["ready\n"] * 6
    assert not state.exists()
    for each in made:
        assert each.stdin
        each.stdin.write("\n")
        each.stdin.flush()
    keys = {each.communicate(timeout=60)[0] for each in made}
    assert keys == {make_key().hex() + "\n"}
    assert [path.name for path in (state / "dovetail").iterdir()] == ["trust.key"]


def test_key_of_the_first_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first look and the link, another process makes the key."""
    first = make_key()
    looks = iter([None])
    read = _trust_key.read_key
    monkeypatch.setattr(_trust_key, "read_key", lambda: next(looks, read()))
    assert make_key() == first
    assert len(list(key_file().parent.iterdir())) == 1


def test_without_a_writable_home_a_run_is_trusted_in_its_process_only(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.warns(ConfigWarning) as caught:
        save(load([base]), tmp_path / "run")
    (message,) = [str(warning.message) for warning in caught]
    assert message.endswith("trust.key: Not a directory")
    assert "\n" not in message
    load_saved(tmp_path / "run")
    monkeypatch.setattr(trusting, "_made_here", set())  # another process
    with pytest.raises(PluginError, match="was not made by you on this machine or was copied, and"):
        load_saved(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"cannot trust .*trust.key: Not a directory"):
        mark_trusted(tmp_path / "run")


# ---- what a stored config may name

HARMLESS_TEXTS = {
    "targets",  # names of layers in a checkpoint, which is outside the run
    # names of observations, cameras, axes, metrics and action parts
    *(
        "action_axes",
        "ee_pose_key",
        "gripper_key",
        "images",
        "inputs",
        "joint_key",
        "metric",
        "part",
        "reference_key",
    ),
    *(
        "constants",
        "environment",
        "images_in",
        "relative_axes",
        "relative_parts",
        "rename",
        "render_key",
        "state",
        "state_axes",
        "success_key",
        "video_camera",
    ),
    *("ask", "prompt"),  # texts that are shown
    "device",  # cpu, auto or cuda
    "id",  # of a Gymnasium environment; one with a module is code, which is refused
    "machine",  # a key of `machines`, which are refused
    "model",  # its name, at the server that is refused
}


def _texts(model: type[Config], path: str) -> Iterator[str]:
    """The settings of a model that take any text."""
    for name, field in settings(model).items():
        for inner in nested_models(field.annotation):
            yield from _texts(inner, f"{path}.{name}")
        if _takes_text(field.annotation):
            yield f"{path}.{name}"


def _takes_text(annotation: Any) -> bool:
    if annotation in (str, Any, Path) or annotation is object:
        return True
    if typing.get_origin(annotation) is typing.Literal:
        return False
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is dict:
        arguments = arguments[1:]
    return any(_takes_text(one) for one in arguments)


def test_every_setting_that_takes_any_text_is_checked_or_known_to_be_harmless() -> None:
    """A new setting of a plugin that foreign run folders may name: add it to `config.trust`, or to HARMLESS_TEXTS."""
    found = set(_texts(RunConfig, "run config"))
    for kind, names in BUILTIN.items():
        for name in names:
            if trusting._is_harmless(kind, name):
                found |= set(_texts(settings_of(kind, name), f"{kind} {name}"))
    checked = {*trusting._OUTSIDE, *trusting._PATHS, *trusting._SECTIONS}
    parts = {one: one.split(" ")[-1].split(".") for one in found}
    unknown = {one for one in found if parts[one][-1] not in checked and not {*parts[one]} & {*trusting._OUTSIDE}}
    assert {one.rsplit(".", 1)[1] for one in unknown} == HARMLESS_TEXTS, sorted(unknown)


@pytest.mark.parametrize(
    "section",
    [{"robot": {"type": name}} for name in BUILTIN["robot"] if name not in ("sim", "gym")]
    + [{"cameras": {"front": {"type": name}}} for name in BUILTIN["camera"]]
    + [{"operator": {"type": "several", "operators": [{"type": name}]}} for name in ("leader", "gamepad", "pedal")]
    + [{"operator": {"leader": {"type": name}}} for name in BUILTIN["leader"]],
    ids=str,
)
def test_foreign_folder_may_not_name_a_device_whatever_its_settings(
    section: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(PluginError, match=r"its config names the (robot|camera|operator|leader) '"):
        trusting.check_stored(section, tmp_path)
    with pytest.raises(PluginError, match="its config names"):
        trusting.check_stored({"cluster": {"robots": {"left": section}}}, tmp_path)


def test_foreign_folder_may_name_simulated_robots_and_table_routines(tmp_path: Path) -> None:
    routine = [{"parts": {"arm": [0.0]}, "ask": "put the block back"}]
    trusting.check_stored(
        {
            "task": {"type": "table", "prompt": "x", "routine": routine},
            "robot": {"type": "sim", "images": ["front"]},
            "cameras": {},
            "operator": {"type": "several", "operators": [{"type": "browser", "kinematics": []}]},
            "labels": [{"type": "classifier", "cameras": ["front"]}],
        },
        tmp_path,
    )


@pytest.mark.parametrize("name", ["my_vla:MyVla", "torch.nn:Linear", "no_module"])
def test_foreign_config_may_not_name_a_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy 'vla' is built in, but the model that it builds is code."""
    config = {"policy": {"type": "vla", "model_class": name, "model_config": {"path": "/etc/passwd"}}}
    with pytest.raises(
        PluginError, match=rf"its config names the code of a model \('{name}'\) \(policy.model_class\)"
    ):
        trusting.check_stored(config, tmp_path)
    with pytest.raises(PluginError, match=rf"the code of a model \('{name}'\)"):
        trusting.check_stored([{"model_class": name}], tmp_path)  # as a change in a resume


def test_own_run_with_a_model_is_trusted_and_a_copy_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_model.py").write_text("raise SystemExit('the model was imported')")
    monkeypatch.chdir(tmp_path)
    save(load(["push-cube-ppo"], ["policy={type: vla, model_class: 'evil_model:Model'}"]), tmp_path / "run")
    monkeypatch.setattr(trusting, "_made_here", set())
    assert load_saved(tmp_path / "run").config.policy.to_plain()["model_class"] == "evil_model:Model"
    (tmp_path / "run" / MARK).unlink()
    with pytest.raises(
        PluginError, match=r"code of a model \('evil_model:Model'\) \(policy.model_class\).*`dovetail trust"
    ):
        load_saved(tmp_path / "run")


def test_old_name_of_a_setting_is_checked_after_its_translation(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A setting that reaches outside may once have had another name."""
    from dovetail.labels._chat_client import ServerConfig

    save(load(["peg-insertion"], ["labels=[{type: vlm}]"]), tmp_path / "foreign")
    monkeypatch.setattr(trusting, "_made_here", set())
    (tmp_path / "foreign" / MARK).unlink()
    path = tmp_path / "foreign" / "config.yaml"
    data = yaml.safe_load(path.read_text())
    data["labels"][0]["place"] = data["labels"][0].pop("url")
    path.write_text(f"# hash: {loading._hash(data)}\n{yaml.safe_dump(data)}")
    monkeypatch.setattr(ServerConfig, "RENAMED", {"place": "url"})
    with pytest.raises(PluginError, match=r"its config names a server"):
        load_saved(tmp_path / "foreign", quiet=True)
