"""Keys of older versions: renamed ones still work, removed ones are ignored, both with a warning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from dovetail.config import _yaml
from dovetail.config import load as loading
from dovetail.config.load import load, load_saved, load_settings
from dovetail.config.model import Config
from dovetail.config.schema import LearnerConfig, PluginSection, RunConfig
from dovetail.core.errors import ConfigError, ConfigWarning
from support.sample_plugins import Plain

Write = Callable[[str, str], str]


class Head(Config):
    RENAMED: ClassVar = {"size": "width"}
    width: int = 1


class Base(Config):
    RENAMED: ClassVar = {"climb_from": "actor_q_from_update"}
    actor_q_from_update: int = 0


class Learner(Plain):
    class Config(Base):
        REMOVED: ClassVar = {"calm": "use rate"}
        RENAMED: ClassVar = {"speed": "rate"}
        rate: float = 1.0
        sizes: tuple[int, ...] = ()
        head: Head | None = None
        heads: dict[str, Head] = Field(default_factory=dict)
        list_of_heads: list[Head] = Field(default_factory=list)


TYPE = f"{__name__}:Learner"


def learner(config: RunConfig) -> Any:
    return config.algorithm.config


@pytest.fixture
def recipe(base: str, write: Write) -> str:
    return write("recipe.yaml", f"base: base.yaml\nalgorithm: {{type: '{TYPE}', actor_q_from_update: 5}}\n")


def test_an_old_key_in_a_file_replaces_the_new_key_of_its_base(recipe: str, write: Write) -> None:
    later = write("later.yaml", "algorithm: {climb_from: 3, sizes: [1, 2]}")
    with pytest.warns(ConfigWarning, match=r"^'algorithm.climb_from' is now 'algorithm.actor_q_from_update'$"):
        config = load([recipe, later])
    assert learner(config).actor_q_from_update == 3 and learner(config).sizes == (1, 2)


@pytest.mark.parametrize(
    "overrides", [["algorithm.climb_from=3"], {"algorithm.climb_from": 3}, ["algorithm={climb_from: 3}"]]
)
def test_an_old_key_in_an_override_is_accepted(recipe: str, overrides: Any) -> None:
    with pytest.warns(ConfigWarning, match="is now 'algorithm.actor_q_from_update'"):
        assert learner(load([recipe], overrides)).actor_q_from_update == 3


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("head: {size: 7}", "head.size", "head.width"),
        ("heads: {left: {size: 7}}", "heads.left.size", "heads.left.width"),
        ("list_of_heads: [{size: 7}]", "list_of_heads.0.size", "list_of_heads.0.width"),
    ],
)
def test_an_old_key_of_a_nested_model_is_accepted(
    recipe: str, write: Write, text: str, old: str, new: str
) -> None:
    with pytest.warns(ConfigWarning, match=f"^'algorithm.{old}' is now 'algorithm.{new}'$"):
        config = load([recipe, write("later.yaml", f"algorithm: {{{text}}}")])
    assert "7" in str(learner(config))


def test_an_override_through_a_renamed_mapping_is_accepted(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner.Config, "RENAMED", {"top": "head"})
    with pytest.warns(ConfigWarning) as caught:
        assert learner(load([recipe], ["algorithm.top.size=7"])).head.width == 7
    assert [str(warning.message) for warning in caught] == [
        "'algorithm.top' is now 'algorithm.head'",
        "'algorithm.top.size' is now 'algorithm.head.width'",
    ]


@pytest.mark.parametrize("overrides", [["algorithm.calm=1"], ["algorithm={calm: 1}"]])
def test_a_removed_key_is_ignored_with_advice(recipe: str, overrides: list[str]) -> None:
    with pytest.warns(ConfigWarning, match=r"^'algorithm.calm' is no longer a setting and is ignored: use rate$"):
        assert load([recipe], overrides) == load([recipe])


def test_the_old_and_the_new_key_in_one_file_are_an_error(recipe: str, write: Write) -> None:
    later = write("later.yaml", "algorithm:\n  rate: 1\n  speed: 2\n")
    with pytest.raises(ConfigError, match=r"^later.yaml:3: 'algorithm.speed' is now 'algorithm.rate': remove"):
        load([recipe, later])


def test_the_old_and_the_new_key_in_overrides_are_an_error(recipe: str) -> None:
    with pytest.raises(ConfigError, match=r"'algorithm.rate' and 'algorithm.speed' are the same setting"):
        load([recipe], ["algorithm.speed=1", "algorithm.rate=2"])


def test_a_misspelled_key_gets_a_suggestion(recipe: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm.rat'. Did you mean 'algorithm.rate'?"):
        load([recipe], ["algorithm.rat=1"])


def test_an_old_key_of_the_schema_is_accepted(base: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LearnerConfig, "RENAMED", {"ratio": "utd"})
    later = write("later.yaml", "learner: {ratio: 9}")
    for sources, overrides in (([base, later], []), ([base], ["learner.ratio=9"])):
        with pytest.warns(ConfigWarning, match="'learner.ratio' is now 'learner.utd'"):
            assert load(sources, overrides).learner.utd == 9


def test_old_keys_in_python_mappings_are_accepted(recipe: str) -> None:
    with pytest.warns(ConfigWarning, match="'climb_from' is now 'actor_q_from_update'"):
        section = PluginSection.parse("algorithm", {"type": TYPE, "climb_from": 3, "sizes": [1]})
    assert section.config == Learner.Config(actor_q_from_update=3, sizes=(1,))
    with pytest.warns(ConfigWarning):
        assert Learner.Config.model_validate({"climb_from": 3, "sizes": (1,)}) == section.config
    with pytest.warns(ConfigWarning):
        assert load_settings(Learner.Config, ["climb_from=3", "sizes=[1]"]) == section.config
    with pytest.warns(ConfigWarning, match="'algorithm.climb_from'"):
        assert learner(load([recipe, {"algorithm": {"climb_from": 3}}])).actor_q_from_update == 3


def test_a_run_folder_of_an_older_version_keeps_its_hash(recipe: str, tmp_path: Path) -> None:
    config = load([recipe])
    data = config.model_dump(mode="json")
    data["algorithm"]["climb_from"] = data["algorithm"].pop("actor_q_from_update")
    data["algorithm"]["calm"] = 2
    data["safety"] = {"type": "filter"}
    stored = loading._hash(data)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"# hash: {stored}\n{_yaml.dump(data)}")
    with pytest.warns(ConfigWarning) as caught:
        assert load_saved(run, trusted=True) == (config, stored)
    assert [str(warning.message) for warning in caught] == [
        f"config of {run} was written by an older version: 1 setting renamed, 1 removed"
    ]
    with pytest.warns(ConfigWarning):
        assert learner(load_saved(run, ["algorithm.rate=2"], trusted=True).config).rate == 2


def test_safety_type_of_older_configs_is_accepted_and_any_other_filter_refused(base: str, write: Write) -> None:
    assert load([base, write("later.yaml", "safety: {type: filter}")]) == load([base])
    with pytest.raises(ConfigError, match=r"'safety.type' should be 'filter', got 'my_lab:NoFilter'"):
        load([base], ["safety.type=my_lab:NoFilter"])
