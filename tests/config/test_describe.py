"""Basic settings, descriptions, and what `dovetail config show` prints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dovetail.config.describe import basic_keys, describe
from dovetail.config.load import load, recipes
from dovetail.config.model import Config, nested_models, old_keys, settings
from dovetail.config.plugins import config_model, list_plugins, resolve
from dovetail.config.schema import RunConfig

MAX_BASIC = 40


def models() -> Iterator[type[Config]]:
    """Every config model of the schema and of the built-in plugins."""
    todo: list[type[Config]] = [RunConfig, *(config_model(resolve(p.kind, p.name)) for p in list_plugins())]
    seen = set()
    while todo:
        model = todo.pop()
        if model not in seen:
            seen.add(model)
            yield model
            todo += [nested for field in model.model_fields.values() for nested in nested_models(field.annotation)]


def test_every_setting_has_a_description() -> None:
    missing = [
        f"{m.__name__}.{key}" for m in models() for key, field in m.model_fields.items() if not field.description
    ]
    assert missing == []


def test_basic_and_old_keys_are_consistent() -> None:
    for model in models():
        fields = set(settings(model))
        renamed, removed = old_keys(model)
        assert basic_keys(model) <= fields, model
        assert set(renamed.values()) <= fields and not fields & {*renamed, *removed}, model


@pytest.mark.parametrize("recipe", [recipe.name for recipe in recipes()])
def test_basic_settings_of_a_recipe_are_few_and_described(recipe: str) -> None:
    lines = describe(load([recipe])).splitlines()
    settings = [line for line in lines if not line.endswith(":")]
    assert 20 < len(settings) <= MAX_BASIC
    assert all(" # " in line or "type: " in line for line in settings)


@pytest.mark.parametrize("recipe", ["peg-insertion", "pick-place-hi-ors-two-machines", "peg-insertion-classifier"])
def test_all_settings_load_as_the_same_config(recipe: str, write: object) -> None:
    config = load([recipe])
    text = describe(config, all_settings=True)
    assert callable(write)
    assert load([write("all.yaml", text)]) == config
