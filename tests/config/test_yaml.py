"""Scalars as people mean them, and documents that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import _yaml
from dovetail.core.errors import ConfigError


def value(text: str) -> Any:
    return _yaml.parse(f"x: {text}\n", name="a.yaml").plain()["x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3e-4", 3e-4),
        ("3E-4", 3e-4),
        ("-1e-3", -1e-3),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.0e5", 100000.0),
        ("1e5", 100000),
        ("20_000", 20000),
        ("010", 10),
        ("0x10", 16),
        ("-7", -7),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("off", "off"),
        ("yes", "yes"),
        ("on", "on"),
        ("none", "none"),
        ("None", "None"),
        ("null", None),
        ("~", None),
        ("", None),
        ("12:30", "12:30"),
        ("2026-01-02", "2026-01-02"),
        ("'3e-4'", "3e-4"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("!!str 5", "5"),
    ],
)
def test_scalars(text: str, expected: Any) -> None:
    assert value(text) == expected
    assert type(value(text)) is type(expected)


def test_keys_are_text_whatever_they_look_like() -> None:
    assert _yaml.parse("{on: 1, 2: 3, true: 4}", name="a.yaml").plain() == {"on": 1, "2": 3, "true": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "a.yaml:3: not valid YAML: expected ',' or ']', but got ':'"),
        (
            "a:\n\tb: 1\n",
            "a.yaml:2: not valid YAML: found character '\\t' that cannot start any token "
            "(indent with spaces, not tabs)",
        ),
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3: duplicate key 'a', first at a.yaml:1"),
        ("r:\n  a: {b: 1, b: 2}\n", "a.yaml:2: duplicate key 'b', first at a.yaml:2"),
        ("a: &x 1\nb: *x\n", "a.yaml:2: not valid YAML: aliases (*name) are not supported: repeat the value"),
        ("a: &x [*x]\n", "a.yaml:1: not valid YAML: aliases (*name) are not supported: repeat the value"),
        (
            "a: 1\nb: !!python/object/apply:os.system [echo]\n",
            "a.yaml:2: the tag !!python/object/apply:os.system is not allowed; write plain values",
        ),
        ("a: !mine 1\n", "a.yaml:1: the tag !mine is not allowed; write plain values"),
        ("a: !!set {b}\n", "a.yaml:1: the tag !!set is not allowed; write plain values"),
        ("a: 1\nb: {c: [.inf]}\n", "a.yaml:2: 'b.c.0' should be a finite number, got inf"),
        ("a: .nan\n", "a.yaml:1: 'a' should be a finite number, got nan"),
        ("a: 1e999\n", "a.yaml:1: 'a' should be a finite number, got inf"),
        ("? [a]\n: 1\n", "a.yaml:1: a key should be a name"),
        ("? \n: 1\n", "a.yaml:1: a key should be a name"),
        ("a: !!int x\n", "a.yaml:1: 'x' is not valid for !!int"),
        ('a: "\\ud83d"\n', "a.yaml:1: '\\ud83d' is not valid for !!str"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2: not valid YAML: but found another document"),
        ("[" * 5000, "a.yaml: nested too deeply"),
        ("a: \x00", "a.yaml: not valid YAML: special characters are not allowed (character 3)"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _yaml.parse(text, name="a.yaml")
    assert str(caught.value) == message


def test_json_may_be_indented_with_tabs_and_knows_its_lines() -> None:
    tree = _yaml.parse('{\n\t"a": "x\\ty",\n\t"b": [1, 2.5e-3, null]\n}', name="a.json", is_json=True)
    assert tree.plain() == {"a": "x\ty", "b": [1, 2.5e-3, None]}
    assert tree.value["b"].where == "a.json:3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n"a": 1,\n}', "a.json:3: not valid JSON: Expecting property name enclosed in double quotes"),
        ('{"a": NaN}', "a.json: numbers should be finite, got NaN"),
        ('{"a": 1,\n "a": 2}', "a.json:2: duplicate key 'a', first at a.json:1"),
    ],
)
def test_json_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _yaml.parse(text, name="a.json", is_json=True)
    assert str(caught.value).startswith(message)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
KEYS = st.text(min_size=1)


@settings(deadline=None)
@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=12))
def test_dump_then_parse_gives_the_same(data: Any) -> None:
    again = _yaml.parse(_yaml.dump(data), name="a.yaml").plain()
    assert again == data
    assert repr(again) == repr(data)  # 1 and 1.0 and True are equal, and must not be mixed up
