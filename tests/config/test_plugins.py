"""Plugins by built-in name, by entry point and by `module:Class`; and errors for unknown ones."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dovetail.config import plugins
from dovetail.config.model import Config
from dovetail.config.plugins import BUILTIN, build, config_model, list_plugins, locate, resolve, settings_of
from dovetail.core.errors import PluginError
from support import sample_plugins


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution on sys.path that offers a task, a broken task, and one that shadows a built-in."""
    info = tmp_path / "my_lab-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-lab\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[dovetail.task]\n"
        "wipe_board = support.sample_plugins:Task\n"
        "broken = my_lab_that_is_not_there:Task\n"
        "push_cube = support.sample_plugins:Task\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def fake_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILTIN["task"], "peg_insertion", "support.sample_plugins:Task")


@pytest.mark.parametrize("name", ["peg_insertion", "peg-insertion"])
def test_builtin_by_either_spelling(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_builtin(monkeypatch)
    assert resolve("task", name) is sample_plugins.Task
    assert locate("task", name).name == "peg_insertion"
    assert locate("task", name).origin == "built-in"


def test_module_and_class() -> None:
    assert resolve("task", "support.sample_plugins:Task") is sample_plugins.Task
    assert locate("task", "support.sample_plugins:Task").origin == "module"


@pytest.mark.parametrize("name", ["wipe_board", "wipe-board"])
def test_entry_point(name: str, installed: None) -> None:
    assert resolve("task", name) is sample_plugins.Task
    assert locate("task", name).name == "wipe_board"
    assert locate("task", name).origin == "entry point (my-lab)"


def test_builtin_names_take_precedence(installed: None) -> None:
    assert locate("task", "push_cube").target == "dovetail.tasks.push_cube:PushCube"
    assert [p.origin for p in list_plugins() if p.name == "push_cube"] == ["built-in"]


def test_builtin_names_follow_one_pattern() -> None:
    for names in BUILTIN.values():
        for name, target in names.items():
            assert name == plugins.normalize_name(name)
            assert target.startswith("dovetail.") and target.count(":") == 1


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (
            "task",
            "peg-insertoin",
            "no task named 'peg-insertoin'. Did you mean 'peg_insertion'? "
            f"Valid: {', '.join(sorted(BUILTIN['task']))}. For your own class, write package.module:Class",
        ),
        (
            "robot",
            "kuka",
            f"no robot named 'kuka'. Valid: {', '.join(sorted(BUILTIN['robot']))}. "
            "For your own class, write package.module:Class",
        ),
        ("taks", "x", "there is no plugin kind 'taks'. Did you mean 'task'?"),
        (
            "task",
            "my.tasks.Wipe",
            "no task named 'my.tasks.Wipe'. For your own class, write 'my.tasks:Wipe'",
        ),
        (
            "task",
            "no_such_module:Task",
            "task 'no_such_module:Task': cannot import module 'no_such_module' "
            "(ModuleNotFoundError: No module named 'no_such_module'). "
            f"{os.getcwd()} and PYTHONPATH have no no_such_module: run the command in the folder of the module",
        ),
        (
            "task",
            "support.sample_plugins:Taks",
            "task 'support.sample_plugins:Taks': 'support.sample_plugins' has no 'Taks'. Did you mean 'Task'?",
        ),
        (
            "task",
            "support.sample_plugins:not_a_class",
            "task 'support.sample_plugins:not_a_class': 'support.sample_plugins:not_a_class' should be a class, got a int",
        ),
        (
            "task",
            "support.sample_plugins:NoConfig",
            "task 'support.sample_plugins:NoConfig': 'support.sample_plugins:NoConfig' has no config model; give "
            "the class a `Config` attribute that is a subclass of dovetail.config.model.Config",
        ),
        (
            "task",
            "support.sample_plugins:TypedConfig",
            "task 'support.sample_plugins:TypedConfig': rename the field 'type' of "
            "'support.sample_plugins:TypedConfig.Config', because `type` names the plugin",
        ),
        ("task", ":Task", "task ':Task' should be written as 'package.module:Class', got ':Task'"),
        ("task", "a:b:c", "task 'a:b:c' should be written as 'package.module:Class', got 'a:b:c'"),
    ],
)
def test_errors_are_one_line(kind: str, name: str, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        resolve(kind, name)
    assert str(caught.value) == message


def test_module_that_lacks_another_one_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_an_sdk.py").write_text("import vendor_sdk_that_is_not_here")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginError) as caught:
        resolve("robot", "needs_an_sdk:Arm")
    assert str(caught.value).endswith("(ModuleNotFoundError: No module named 'vendor_sdk_that_is_not_here')")


def test_any_import_error_is_a_plugin_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_on_import.py").write_text("raise ValueError('two\\nlines')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match=r"cannot import module 'fails_on_import' \(ValueError: two lines\)"):
        resolve("task", "fails_on_import:Task")


def test_listing_includes_plugins_that_cannot_be_imported(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_builtin(monkeypatch)
    rows = {(row.kind, row.name): row for row in list_plugins()}
    assert {(kind, name) for kind, names in BUILTIN.items() for name in names} <= set(rows)
    assert rows["task", "peg_insertion"].doc == (sample_plugins.__doc__ or "").splitlines()[0]
    assert rows["task", "wipe_board"].doc == "A task with a few settings."
    assert rows["task", "peg_insertion"].error is None
    assert "my_lab_that_is_not_there" in str(rows["task", "broken"].error)


def test_locating_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "importlib", types.SimpleNamespace())
    assert locate("policy", "gaussian_mlp").target == "dovetail.policies.gaussian_mlp:GaussianMLP"


# ---- classes that do not meet their contract


class WithoutStop(sample_plugins.Plain):
    """A robot without `stop`."""

    spec = observe = send = None


class WithoutTask(sample_plugins.Plain):
    """A robot whose constructor takes no task."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)


class Proxy:
    """Forwards every attribute."""

    Config = sample_plugins.Plain.Config

    def __init__(self, config: Config, *, task: object) -> None: ...

    def __getattr__(self, name: str) -> object: ...


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("WithoutStop", "has no stop, which dovetail.core.contracts.Robot requires"),
        (
            "WithoutTask",
            ": its constructor should take (config, *, task), but got an unexpected keyword argument 'task'",
        ),
    ],
)
def test_incomplete_robot_is_refused_when_built(plugin: str, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        build("robot", f"{__name__}:{plugin}", sample_plugins.Plain.Config(), task=None)
    assert str(caught.value).startswith(f"robot '{__name__}:{plugin}'") and str(caught.value).endswith(message)


def test_a_proxy_is_not_checked_for_members() -> None:
    assert isinstance(build("robot", f"{__name__}:Proxy", sample_plugins.Plain.Config(), task=None), Proxy)


def test_settings_of_builtin_plugins_are_those_of_their_classes() -> None:
    for kind, names in BUILTIN.items():
        for name in names:
            assert settings_of(kind, name) is config_model(resolve(kind, name)), f"{kind} {name}"


@pytest.mark.parametrize("wrong", ["lerner.utd=2", "policy.hiden=[8]", "algorithm.lrr=1", "robot.type=kuka"])
def test_wrong_setting_is_refused_before_torch_and_simulator_are_loaded(wrong: str) -> None:
    code = (
        "import sys; from dovetail.cli.main import main;"
        f"code = main(['run', 'peg-insertion', {wrong!r}]);"
        "print(code, [name for name in ('torch', 'mujoco', 'ray', 'tensordict') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[-2] == "2 []"
    assert done.stderr.startswith("error: override")
