"""Config data with the place of each value, and the merging of such data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.core.errors import ConfigError

__all__ = ["Node", "Path", "check_finite", "dotted", "from_plain", "merge", "normalize_name", "put"]

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A mapping, a list or a scalar, and where it was written: `file:line`, or an override."""

    value: Any  # dict[str, Node], list[Node], or a scalar
    where: str

    def plain(self) -> Any:
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def descend(self, path: Sequence[str | int]) -> tuple[Node, Path]:
        """The node at a path, or the nearest one above it, and the existing part of the path."""
        node, walked = self, 0
        for part in path:
            child = node._child(part)
            if child is None:
                break
            node, walked = child, walked + 1
        return node, tuple(path[:walked])

    def _child(self, part: str | int) -> Node | None:
        if isinstance(self.value, dict):
            found: Node | None = self.value.get(str(part))
            return found
        if isinstance(self.value, list) and str(part).isdecimal() and int(part) < len(self.value):
            item: Node = self.value[int(part)]
            return item
        return None


def normalize_name(name: str) -> str:
    """`peg-insertion` and `peg_insertion` name the same plugin; a `module:Class` stays as it is."""
    return name if ":" in name else name.replace("-", "_")


def dotted(path: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in path)


def from_plain(data: Any, where: str) -> Node:
    if isinstance(data, dict):
        return Node({key: from_plain(value, where) for key, value in data.items()}, where)
    if isinstance(data, list):
        return Node([from_plain(value, where) for value in data], where)
    return Node(data, where)


def check_finite(node: Node, path: Path = ()) -> None:
    children: Any = ()
    if isinstance(node.value, dict):
        children = node.value.items()
    elif isinstance(node.value, list):
        children = enumerate(node.value)
    for key, child in children:
        check_finite(child, (*path, key))
    if isinstance(node.value, float) and not math.isfinite(node.value):
        key = f"'{dotted(path)}' " if path else ""
        raise ConfigError(f"{node.where}: {key}should be a finite number, got {node.value}")


def merge(old: Node, new: Node) -> Node:
    """Merge mappings key by key. Other values, and a mapping with another `type`, are replaced."""
    if not (isinstance(old.value, dict) and isinstance(new.value, dict)):
        return new
    if "type" in old.value and "type" in new.value and _type(old) != _type(new):
        return new
    merged = dict(old.value)
    for key, child in new.value.items():
        merged[key] = merge(merged[key], child) if key in merged else child
    return Node(merged, new.where)


def put(root: Node, path: Sequence[str], new: Node) -> Node:
    """A copy of the tree with `new` merged in at a path. The path may contain indices of lists."""
    return _put(root, path, new, ())


def _put(node: Node, path: Sequence[str], new: Node, above: Path) -> Node:
    if not path:
        return merge(node, new)
    part, rest = path[0], path[1:]
    if isinstance(node.value, list):
        index = _index(node, part, new, above)
        items = list(node.value)
        items[index] = _put(items[index], rest, new, (*above, part))
        return Node(items, node.where)
    if not isinstance(node.value, dict):
        raise ConfigError(f"{new.where}: '{dotted(above)}' is a single value and has no '{part}' inside")
    if not rest:  # merge, so that another type replaces the section
        return Node(merge(node, Node({part: new}, new.where)).value, node.where)
    child = node.value.get(part)
    if child is None or child.value is None:  # `stop_when_solved: null`, then `run.stop_when_solved.window=5`
        if rest[0].isdecimal():
            raise ConfigError(f"{new.where}: no file sets '{dotted((*above, part))}'; give the whole list")
        child = Node({}, new.where)
    return Node({**node.value, part: _put(child, rest, new, (*above, part))}, node.where)


def _index(node: Node, part: str, new: Node, above: Path) -> int:
    if part.isdecimal() and int(part) < len(node.value):
        return int(part)
    length = len(node.value)
    raise ConfigError(
        f"{new.where}: '{dotted(above)}' is a list of {length}: use a smaller index than that, not '{part}'"
    )


def _type(node: Node) -> Any:
    name = node.value["type"].value
    return normalize_name(name) if isinstance(name, str) else name
