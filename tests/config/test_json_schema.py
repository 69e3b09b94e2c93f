"""The JSON Schema accepts and refuses the same configs as the loader."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from dovetail.config import _yaml
from dovetail.config.json_schema import json_schema
from dovetail.config.plugins import BUILTIN


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the built-in plugins by importable samples, and one by a missing module."""
    samples = {"task": "Task", "robot": "Robot", "policy": "Policy"}
    for kind, names in BUILTIN.items():
        for name in names:
            monkeypatch.setitem(BUILTIN[kind], name, f"support.sample_plugins:{samples.get(kind, 'Plain')}")
    monkeypatch.setitem(BUILTIN["task"], "charger", "no_such_module:Charger")


def problems(document: str) -> list[str]:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    data: Any = _yaml.parse(document, name="test").plain()
    return [error.message for error in validator.iter_errors(data)]


BASE = "robot: sim\npolicy: gaussian_mlp\nalgorithm: rlpd\n"


@pytest.mark.extended
@pytest.mark.parametrize("recipe", [f.name for f in files("dovetail.config").joinpath("recipes").iterdir()])
def test_recipes_are_accepted(recipe: str) -> None:
    assert problems(files("dovetail.config").joinpath("recipes", recipe).read_text()) == []


@pytest.mark.extended
@pytest.mark.parametrize(
    "document",
    [
        "task: {type: peg_insertion, clearance_mm: 0.5}",
        "task: {type: peg-insertion}",
        "task: {type: charger, anything: 1}",  # cannot be imported, so anything goes
        "task: {type: 'my_lab:Task', anything: 1}",
        "task: null",
        "operator: {}",  # the default type may be left out
        "labels: [outcome]",
        "run: {stop_when_solved: {window: 5}}",
    ],
)
def test_accepts(document: str, known: None) -> None:
    assert problems(BASE + document) == []


@pytest.mark.extended
@pytest.mark.parametrize(
    "document",
    [
        "taks: push_cube",
        "task: {type: peg_insertion, clearence_mm: 0.5}",
        "task: {type: peg_insertion, clearance_mm: wide}",
        "task: {type: no_such_task}",
        "task: {clearance_mm: 0.5}",
        "run: {sede: 3}",
        "labels: outcome",
    ],
)
def test_refuses(document: str, known: None) -> None:
    assert problems(BASE + document) != []


def test_nested_models_have_their_own_definitions(known: None) -> None:
    definitions = json_schema()["$defs"]
    assert "policy.gaussian_mlp.Encoder" in definitions
    encoder = definitions["policy.gaussian_mlp"]["properties"]["encoder"]
    assert "#/$defs/policy.gaussian_mlp.Encoder" in str(encoder)
