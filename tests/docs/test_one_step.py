"""Every file and function that docs/one-step.md and docs/architecture.md name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.docs_pages import ROOT

SOURCE = ROOT / "src" / "dovetail"
FILE = re.compile(r"`([\w/]+\.py)(?:: ([\w.]+))?`")
METHOD = re.compile(r"`([A-Z]\w+)\.(\w+)`")  # of a class that the same page names with its file, or of a contract


def names_of(file: Path) -> set[str]:
    """Top-level names of a module, and `Class.member` for methods and fields."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = (
                member for member in node.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
            )
            names |= {f"{node.name}.{member.name}" for member in members}
    return names


def problems(text: str) -> list[str]:
    found, known = [], names_of(SOURCE / "core" / "contracts.py")
    for path, name in FILE.findall(text):
        if not (SOURCE / path).is_file():
            found.append(path)
            continue
        known |= names_of(SOURCE / path)
        if name and name not in names_of(SOURCE / path):
            found.append(f"{path}: {name}")
    return found + [f"{cls}.{name}" for cls, name in METHOD.findall(text) if f"{cls}.{name}" not in known]


@pytest.mark.parametrize("page", ["one-step.md", "architecture.md"])
def test_named_files_and_functions_exist(page: str) -> None:
    assert problems((ROOT / "docs" / page).read_text()) == []


def test_missing_names_are_found() -> None:
    text = (
        "`core/clock.py: SimulatedClock`, `core/clocks.py`, `core/clock.py: Sundial`, `Robot.observe`, `Robot.fly`"
    )
    assert problems(text) == ["core/clocks.py", "core/clock.py: Sundial", "Robot.fly"]


def test_one_step_names_many_files() -> None:
    assert len(FILE.findall((ROOT / "docs" / "one-step.md").read_text())) > 50
