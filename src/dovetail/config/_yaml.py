"""Read YAML (and JSON, its subset) into a tree with line numbers, and write it.

Scalars follow YAML 1.2, not PyYAML's 1.1: `no` and `off` are text, `010` is ten, `12:30` is text, and `3e-4` is a number.
In addition, `1e5` and `20_000` are whole numbers. Tags, duplicate keys, aliases and non-finite numbers are refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import yaml

from dovetail.config._tree import Node, check_finite
from dovetail.core.errors import ConfigError

__all__ = ["dump", "dump_inline", "parse"]

_TAG = "tag:yaml.org,2002:"
_MAX_EXACT = 2**53  # whole floats up to here are exact integers

_RESOLVERS = [  # tag, pattern, possible first characters
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"^(?:[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+)$"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
]


class _Loader(yaml.SafeLoader):
    """Composes nodes only. `_scalar` makes the values, so no constructor of PyYAML runs."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            problem = "aliases (*name) are not supported: repeat the value"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1, or the rules above, would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Other styles of PyYAML lose some line breaks, such as U+0085.
    return dumper.represent_scalar(_TAG + "str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)
_Loader.yaml_implicit_resolvers = {}  # none of PyYAML's own
for _name, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, _first)
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, _first)


def dump(data: Any) -> str:
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def dump_inline(value: Any) -> str:
    """A value in one line: `[1, 2]`, `{a: 1}`."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def parse(text: str, *, name: str, is_json: bool = False, one_value: bool = False) -> Node:
    """Read one document. `name` is its name in errors; with `one_value`, errors have no line number."""
    if is_json:
        _check_json(text, name)
        text = text.replace("\t", " ")  # allowed between JSON tokens, but not in YAML
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
        tree = _Builder(name, one_value=one_value).build(root) if root is not None else Node(None, name)
        check_finite(tree)
        return tree
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply") from None
    except yaml.YAMLError as problem:
        raise _syntax_error(problem, name, one_value=one_value) from problem


def _check_json(text: str, name: str) -> None:
    def refuse(constant: str) -> None:
        raise ConfigError(f"{name}: numbers should be finite, got {constant}")

    try:
        json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as problem:
        raise ConfigError(f"{name}:{problem.lineno}: not valid JSON: {problem.msg}") from problem


def _syntax_error(problem: yaml.YAMLError, name: str, *, one_value: bool) -> ConfigError:
    what, mark = str(problem), None
    if isinstance(problem, yaml.MarkedYAMLError):
        what, mark = problem.problem or problem.context or "", problem.problem_mark or problem.context_mark
    elif isinstance(problem, yaml.reader.ReaderError):
        what = f"{problem.reason} (character {problem.position})"
    where = f"{name}:{mark.line + 1}" if mark is not None and not one_value else name
    hint = " (indent with spaces, not tabs)" if "'\\t'" in what else ""
    return ConfigError(f"{where}: not valid YAML: {' '.join(what.split())}{hint}")


class _Builder:
    """Converts the nodes of PyYAML."""

    def __init__(self, name: str, *, one_value: bool) -> None:
        self._name, self._one_value = name, one_value

    def build(self, node: yaml.Node, *, line: int | None = None) -> Node:
        where = self._where(node) if line is None else self._at(line)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return Node(self._mapping(node), where)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return Node([self.build(item) for item in node.value], where)
        if isinstance(node, yaml.ScalarNode):
            return Node(self._scalar(node), where)
        raise self._bad_tag(node)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or not key.value:
                raise ConfigError(f"{self._where(key)}: a key should be a name")
            if key.value in found:
                first = found[key.value].where
                raise ConfigError(f"{self._where(key)}: duplicate key '{key.value}', first at {first}")
            found[key.value] = self.build(value, line=key.start_mark.line)  # report the line of the key
        return found

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text, kind = node.value, node.tag.removeprefix(_TAG)
        try:
            match kind:
                case "str":  # join the surrogate pairs of JSON escapes
                    return text.encode("utf-16", "surrogatepass").decode("utf-16")
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[text.lower()]
                case "int":
                    digits = text.replace("_", "")
                    return int(digits, {"0x": 16, "0o": 8}.get(digits[:2], 10))
                case "float":
                    return _float(text)
        except (ValueError, KeyError):
            raise ConfigError(f"{self._where(node)}: {text!r} is not valid for !!{kind}") from None
        raise self._bad_tag(node)

    def _bad_tag(self, node: yaml.Node) -> ConfigError:
        tag = node.tag.replace(_TAG, "!!")
        return ConfigError(f"{self._where(node)}: the tag {tag} is not allowed; write plain values")

    def _where(self, node: yaml.Node) -> str:
        return self._at(node.start_mark.line)

    def _at(self, line: int) -> str:
        return self._name if self._one_value else f"{self._name}:{line + 1}"


def _float(text: str) -> float | int:
    """A float, or an int for a whole number such as `1e5`."""
    text = text.replace("_", "")
    special = text.lower().lstrip("+-")
    if special in (".inf", ".nan"):
        return float(text.lower().replace(".", ""))
    value = float(text)
    if "." not in text and math.isfinite(value) and value.is_integer() and abs(value) <= _MAX_EXACT:
        return int(value)
    return value
