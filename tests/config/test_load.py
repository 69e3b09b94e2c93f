"""Merging, overrides, saving, and the error line of each mistake."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.config import _yaml
from dovetail.config.load import config_hash, dump_yaml, load, load_saved, recipes, save
from dovetail.config.schema import RunConfig
from dovetail.core.errors import ConfigError, PluginError, RunFolderError, UsageError
from support import sample_plugins
from support.sample_plugins import BASE

Write = Callable[[str, str], str]


def policy(config: RunConfig) -> sample_plugins.Policy.Config:
    assert isinstance(config.policy.config, sample_plugins.Policy.Config)
    return config.policy.config


# Merging


def test_later_files_win_key_by_key(base: str, write: Write) -> None:
    later = write("later.yaml", "policy: {rate: 1e-3}\nrun: {seed: 7}\n")
    config = load([base, later])
    assert policy(config).hidden == (64, 64)
    assert policy(config).rate == 1e-3
    assert (config.run.seed, config.run.demos) == (7, 20)


def test_json_and_paths_are_sources_too(base: str, write: Write) -> None:
    write("later.json", '{\n\t"run": {"seed": 9}\n}')
    assert load([Path(base), Path("later.json")]).run.seed == 9


def test_lists_are_replaced(base: str, write: Write) -> None:
    assert policy(load([base, write("later.yaml", "policy: {hidden: [8]}")])).hidden == (8,)


def test_a_changed_type_drops_the_old_settings(base: str, write: Write) -> None:
    later = write("later.yaml", "task: {type: 'support.sample_plugins:OtherTask', angle_deg: 90}")
    task = load([base, later]).task
    assert task is not None
    assert task.config == sample_plugins.OtherTask.Config(angle_deg=90)


def test_the_same_type_keeps_the_old_settings(base: str, write: Write) -> None:
    task = load([base, write("later.yaml", "task: support.sample_plugins:Task")]).task
    assert task is not None
    assert task.config == sample_plugins.Task.Config(clearance_mm=0.5)


def test_later_file_adds_settings_to_a_bare_name(base: str, write: Write) -> None:
    robot = load([base, write("later.yaml", "robot: {viewer: true}")]).robot
    assert robot.config == sample_plugins.Robot.Config(viewer=True)


def test_an_empty_file_changes_nothing(base: str, write: Write) -> None:
    assert load([base, write("later.yaml", "# nothing yet\n")]) == load([base])


# Overrides


@pytest.mark.parametrize(
    ("override", "field", "expected"),
    [
        ("policy.rate=3e-4", "rate", 3e-4),
        ("policy.hidden=[8, 9]", "hidden", (8, 9)),
        ("policy.hidden.1=9", "hidden", (64, 9)),
        ("policy.name=a=b", "name", "a=b"),
        ("policy.name='7'", "name", "7"),
        ("policy.activation=tanh", "activation", sample_plugins.Activation.TANH),
        ("policy.init=weights/a.bin", "init", Path("weights/a.bin")),
        ("policy.init=", "init", None),
        ("policy.encoder.width=16", "encoder", sample_plugins.Encoder(width=16)),
        ("policy.encoders.wrist.width=4", "encoders", {"wrist": sample_plugins.Encoder(width=4)}),
        ("policy={rate: 0.5}", "rate", 0.5),
    ],
)
def test_override(base: str, override: str, field: str, expected: Any) -> None:
    assert getattr(policy(load([base], [override])), field) == expected


@pytest.mark.parametrize("reverse", [False, True])
def test_overriding_a_type_works_in_any_order(base: str, reverse: bool) -> None:
    overrides = ["task.type=support.sample_plugins:OtherTask", "task.angle_deg=45"]
    task = load([base], overrides[::-1] if reverse else overrides).task
    assert task is not None
    assert task.config == sample_plugins.OtherTask.Config(angle_deg=45)


def test_override_a_section_by_bare_name_and_a_list_entry(base: str) -> None:
    config = load([base], ["task=support.sample_plugins:OtherTask", "labels.0.type=support.sample_plugins:Task"])
    assert config.task is not None and config.task.type == "support.sample_plugins:OtherTask"
    assert config.labels[0].type == "support.sample_plugins:Task"


def test_override_of_an_optional_section(base: str, write: Write) -> None:
    later = write("later.yaml", "run: {stop_when_solved: null}")
    stop = load([base, later], ["run.stop_when_solved.window=5"]).run.stop_when_solved
    assert stop is not None and stop.window == 5


def test_override_removes_the_task(base: str) -> None:
    config = load([base], ["task=null", "robot.type=support.sample_plugins:BringsTask", "robot.id=Reach-v4"])
    assert config.task is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.seed", "override 'run.seed': should look like key.sub=value"),
        ("=3", "override '=3': should look like key.sub=value"),
        ("run..seed=3", "override 'run..seed=3': should look like key.sub=value"),
        (
            "policy.hidden=[1,",
            "override 'policy.hidden=[1,': not valid YAML: expected the node content, but found '<stream end>'",
        ),
        ("run.sede=3", "override 'run.sede=3': unknown key 'run.sede'. Did you mean 'run.seed'?"),
        ("seed=3", "override 'seed=3': unknown key 'seed'. Did you mean 'run.seed'?"),
        ("run.seed=x", "override 'run.seed=x': 'run.seed' should be a whole number, got 'x'"),
        (
            "run.seed.a=1",
            "override 'run.seed.a=1': 'run.seed' should be a whole number, got a mapping with 'a'",
        ),
        (
            "labels.3.type=x",
            "override 'labels.3.type=x': 'labels' is a list of 1: use a smaller index than that, not '3'",
        ),
        ("task.type.x=1", "override 'task.type.x=1': 'task.type' is a single value and has no 'x' inside"),
        (
            "run.layers.0=1",
            "override 'run.layers.0=1': no file sets 'run.layers'; give the whole list",
        ),
        ("run.demo_noise=.inf", "override 'run.demo_noise=.inf': should be a finite number, got inf"),
    ],
)
def test_bad_override(base: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([base], [override])
    assert str(caught.value) == message


# Mistakes in files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nlearner:\n  udt: 3\n", "later.yaml:3: unknown key 'learner.udt'. Did you mean 'learner.utd'?"),
        ("plicy: x\n", "later.yaml:1: unknown key 'plicy'. Did you mean 'policy'?"),
        (
            "zzz: 1\n",
            "later.yaml:1: unknown key 'zzz'. Valid: actor, algorithm, cameras, cluster, deploy, device, images, improve, ",
        ),
        (
            "task:\n  clearence_mm: 1\n",
            "later.yaml:2: unknown key 'task.clearence_mm'. Did you mean 'task.clearance_mm'?",
        ),
        ("task:\n  tpye: x\n", "later.yaml:2: unknown key 'task.tpye'. Did you mean 'task.type'?"),
        ("operator:\n  x: 1\n", "later.yaml:2: unknown key 'operator.x'. 'operator' has no settings"),
        (
            "policy:\n  encoders:\n    wrist:\n      widht: 3\n",
            "later.yaml:4: unknown key 'policy.encoders.wrist.widht'. Did you mean 'policy.encoders.wrist.width'?",
        ),
        (
            "labels:\n  - type: support.sample_plugins:Task\n    promt: x\n",
            "later.yaml:3: unknown key 'labels.0.promt'. Did you mean 'labels.0.prompt'?",
        ),
        ("run:\n  seed: '5'\n", "later.yaml:2: 'run.seed' should be a whole number, got '5'"),
        ("run:\n  seed: 1.5\n", "later.yaml:2: 'run.seed' should be a whole number, got 1.5"),
        ("run:\n  seed: true\n", "later.yaml:2: 'run.seed' should be a whole number, got true"),
        ("run:\n  seed: -1\n", "later.yaml:2: 'run.seed' should be greater than or equal to 0, got -1"),
        ("learner: {utd: fast}\n", "later.yaml:1: 'learner.utd' should be a number, got 'fast'"),
        ("learner: 3\n", "later.yaml:1: 'learner' should be a mapping (key: value), got 3"),
        (
            "run:\n  stop_when_solved: off\n",
            "later.yaml:2: 'run.stop_when_solved' should be a mapping (key: value), got 'off'",
        ),
        ("task:\n  prompt: 3\n", "later.yaml:2: 'task.prompt' should be text (quote it), got 3"),
        (
            "robot:\n  arm: pnada\n",
            "later.yaml:2: 'robot.arm' should be 'panda' or 'x5', got 'pnada'. Did you mean 'panda'?",
        ),
        (
            "policy:\n  activation: zzz\n",
            "later.yaml:2: 'policy.activation' should be 'relu' or 'tanh', got 'zzz'",
        ),
        ("policy:\n  hidden: 3\n", "later.yaml:2: 'policy.hidden' should be a list, got 3"),
        (
            "policy:\n  hidden:\n    - 8\n    - x\n",
            "later.yaml:4: 'policy.hidden.1' should be a whole number, got 'x'",
        ),
        (
            "policy:\n  target: 1.5\n",
            "later.yaml:2: 'policy.target' should be a whole number or text (quote it), got 1.5",
        ),
        ("policy:\n  hidden: [1]\n", "later.yaml:1: 'policy': every hidden layer needs 2 units or more"),
        (
            "robot: 3\n",
            "later.yaml:1: 'robot' should be a mapping with a type, or the bare name of a plugin, got 3",
        ),
        ("labels: [{}]\n", "later.yaml:1: 'labels.0.type' should name a labeler. Valid: "),
        ("labels: []\n", "later.yaml:1: 'labels' "),
        ("task: null\n", "later.yaml:1: robot 'support.sample_plugins:Robot' needs a task, e.g. task: push_cube"),
        (
            "run:\n  sede: 3\n  demos: x\n",
            "later.yaml:2: unknown key 'run.sede'. Did you mean 'run.seed'? Also later.yaml:3: 'run.demos' should be a "
            "whole number, got 'x'",
        ),
        ("- a\n", "later.yaml:1: the top level should be a mapping (key: value), got a list"),
        ("just words\n", "later.yaml:1: the top level should be a mapping (key: value), got 'just words'"),
        ("a: 1\n b: 2\n", "later.yaml:2: not valid YAML: mapping values are not allowed here"),
    ],
)
def test_mistake_in_a_file(base: str, write: Write, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load([base, write("later.yaml", text)])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "run: {}\ntask:\n  type: peg-insertoin\n",
            "later.yaml:3: 'task.type': no task named 'peg-insertoin'. Did you mean 'peg_insertion'?",
        ),
        ("robot: smi\n", "later.yaml:1: 'robot.type': no robot named 'smi'. Did you mean 'sim'?"),
        (
            "labels: [support.sample_plugins:NoConfig]\n",
            "later.yaml:1: 'labels.0.type': labeler 'support.sample_plugins:NoConfig': ",
        ),
    ],
)
def test_unknown_plugin(base: str, write: Write, text: str, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        load([base, write("later.yaml", text)])
    assert str(caught.value).startswith(message)


def test_missing_section(write: Write) -> None:
    text = "".join(line for line in BASE.splitlines(keepends=True) if not line.startswith("policy"))
    with pytest.raises(ConfigError) as caught:
        load([write("short.yaml", text)])
    assert str(caught.value) == "short.yaml: the key 'policy' is missing. Write for example 'policy: gaussian_mlp'"


def test_missing_setting_of_a_plugin(base: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([base], ["task=null", "robot=support.sample_plugins:BringsTask"])
    assert str(caught.value) == "override 'robot=support.sample_plugins:BringsTask': the key 'robot.id' is missing"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("peg-insertoin", "no recipe or file named 'peg-insertoin'. Did you mean 'peg-insertion'?"),
        ("nowhere.yaml", "config file not found: nowhere.yaml."),
        (
            "sub/peg_insertion.yaml",
            "config file not found: sub/peg_insertion.yaml. Did you mean the recipe 'peg-insertion'?",
        ),
        ("folder", "folder: cannot be read: Is a directory"),
        ("binary.yaml", "binary.yaml: not a text file in UTF-8 (byte 0)"),
    ],
)
def test_bad_source(tmp_path: Path, write: Write, source: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError) as caught:
        load([source])
    assert str(caught.value) == message


def test_unreadable_source(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, *args: object, **kwargs: object) -> str:  # simulated, because root can read everything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(ConfigError, match=r"^base.yaml: cannot be read: Permission denied$"):
        load([base])


def test_no_source() -> None:
    with pytest.raises(ConfigError, match="name a recipe or a config file"):
        load([])


# Recipes


def test_recipes_have_a_name_a_description_and_a_task() -> None:
    found = {recipe.name: recipe for recipe in recipes()}
    assert found["peg-insertion"].task == "peg_insertion"
    for recipe in found.values():
        assert recipe.description and recipe.task, f"{recipe.name} needs a leading # line and a task"


@pytest.mark.parametrize("name", ["peg-insertion", "peg_insertion"])
def test_recipe_is_found_by_either_spelling(name: str, base: str) -> None:
    config = load([name, base])  # `base` replaces every plugin, so that no other folder is needed
    assert config.run.deterministic_share == 0.5


# Bases


def test_files_with_bases(tmp_path: Path, base: str) -> None:
    (tmp_path / "lab.yaml").write_text(f"base: {base}\nrun: {{seed: 3}}\n")
    (tmp_path / "mine.yaml").write_text("base: lab.yaml\nlearner: {utd: 9}\n")
    config = load([tmp_path / "mine.yaml"])
    assert config.run.seed == 3 and config.learner.utd == 9
    assert config.policy == load([base]).policy


def test_recipe_with_a_base_is_merged() -> None:
    assert load(["peg-insertion-async"]) == load(["peg-insertion"], ["runtime=ray"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("base: b.yaml", "b.yaml:1: base 'a.yaml' has this file as its own base"),
        ("base: [a]", "a.yaml:1: base should be the name of a recipe"),
        ("base: nothing", "no recipe or file named|config file not found"),
    ],
)
def test_invalid_base_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text("base: a.yaml")
    with pytest.raises(ConfigError, match=problem):
        load([tmp_path / "a.yaml"])


# Round trips

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
POLICIES = st.fixed_dictionaries(
    {"type": st.just("support.sample_plugins:Policy")},
    optional={
        "hidden": st.lists(st.integers(2, 1024), max_size=3),
        "rate": st.floats(allow_nan=False, allow_infinity=False),
        "activation": st.sampled_from(["relu", "tanh"]),
        "encoders": st.dictionaries(st.text(min_size=1, max_size=8), st.just({"width": 3}), max_size=2),
        "init": st.none() | st.just("a/b.bin"),
        "name": TEXT,
        "target": st.integers() | TEXT,
    },
)
RUNS = st.fixed_dictionaries({}, optional={"seed": st.integers(0, 2**40), "demo_noise": st.floats(0, 1e6)})


def shuffled(data: Any, rng: random.Random) -> Any:
    if not isinstance(data, dict):
        return data
    keys = list(data)
    rng.shuffle(keys)
    return {key: shuffled(data[key], rng) for key in keys}


@pytest.mark.extended
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(policy=POLICIES, run=RUNS, rng=st.randoms(use_true_random=False))
def test_dump_then_load_is_identity_and_order_does_not_matter(
    base: str, write: Write, policy: Any, run: Any, rng: random.Random
) -> None:
    data = _yaml.parse(BASE, name="base").plain() | {"policy": policy, "run": run}
    config = load([write("a.yaml", _yaml.dump(data))])
    again = load([write("b.yaml", dump_yaml(config))])
    assert again == config
    reordered = load([write("c.yaml", _yaml.dump(shuffled(data, rng)))])
    assert config_hash(config) == config_hash(again) == config_hash(reordered)


def test_hash_depends_on_values_and_not_on_spelling(base: str) -> None:
    config = load([base])
    assert len(config_hash(config)) == 12
    assert config_hash(load([base], ["run.seed=1"])) != config_hash(config)
    assert config_hash(load([base], ["learner.utd=4", "run.seed=0"])) == config_hash(config)


# Saving


def test_save_then_load(base: str, tmp_path: Path) -> None:
    config = load([base], ["run.seed=4"])
    path = save(config, tmp_path / "runs" / "one")
    assert load_saved(tmp_path / "runs" / "one") == (config, config_hash(config))
    assert f"# hash: {config_hash(config)}\n" in path.read_text()
    assert sorted(file.name for file in path.parent.iterdir()) == [".trusted", "config.yaml"]
    assert load([path]) == config  # a saved config is a config file like any other


def test_a_changed_saved_config_is_refused(base: str, tmp_path: Path) -> None:
    config = load([base])
    path = save(config, tmp_path)
    path.write_text(path.read_text().replace("seed: 0", "seed: 1"))
    with pytest.raises(ConfigError) as caught:
        load_saved(tmp_path)
    assert str(caught.value).startswith(f"{path}: changed since it was saved (hash ")
    assert f"saved as {config_hash(config)}); undo the change" in str(caught.value)


def test_reordering_and_comments_do_not_change_the_hash(base: str, tmp_path: Path) -> None:
    config = load([base])
    path = save(config, tmp_path)
    data = dict(reversed(_yaml.parse(path.read_text(), name="x").plain().items()))
    path.write_text(f"# hash: {config_hash(config)}\n# a note\n{_yaml.dump(data)}")
    assert load_saved(tmp_path, trusted=True).config == config


def test_a_run_saved_before_a_setting_existed_still_loads(base: str, tmp_path: Path) -> None:
    from dovetail.config import load as loading

    data = load([base]).model_dump(mode="json")
    del data["learner"]["start_after_steps"]
    (tmp_path / "config.yaml").write_text(f"# hash: {loading._hash(data)}\n{_yaml.dump(data)}")
    assert load_saved(tmp_path, trusted=True).config == load([base])


def test_folder_without_a_run_is_refused(base: str, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        load_saved(tmp_path)
    (tmp_path / "config.yaml").write_text(BASE)
    with pytest.raises(ConfigError, match="the '# hash:' line is missing"):
        load_saved(tmp_path)


def test_a_failed_save_leaves_nothing_behind(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    config = load([base])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="No space left on device; check the run folder"):
        save(config, tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
