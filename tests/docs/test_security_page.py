"""docs/security.md: the table of formats names every fuzzed format, and each with modules and tests that exist."""

from __future__ import annotations

import re

from fuzz.test_fuzz_formats import FORMATS
from support.docs_pages import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()


def formats() -> list[list[str]]:
    table = PAGE.partition("\n## Formats\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_each_format_names_modules_that_exist():
    for name, modules, *_ in formats():
        assert named(modules), name
        for module in named(modules):
            assert (ROOT / "src" / "dovetail" / module).exists(), f"{name}: {module}"


def test_each_format_names_limits_and_fuzz_tests_that_exist():
    for name, _, limits, tests in formats():
        assert limits, name
        assert named(tests), name
        for test in named(tests):
            assert (ROOT / test).is_file() if test.endswith(".py") else test in FORMATS, f"{name}: {test}"


def test_each_fuzzed_format_is_in_the_table():
    assert set(FORMATS) <= {test for row in formats() for test in named(row[3])}
