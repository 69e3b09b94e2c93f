"""docs/safety.md: every test in the hazard list exists, and the STOP matrix on the page is the one that is tested."""

import re

from dovetail.bench.stop._matrix import LAYOUTS, MISSING, PLACES
from support.docs_pages import ROOT

PAGE = (ROOT / "docs" / "safety.md").read_text()


DEFECTS = (ROOT / "docs" / "safety_tests.md").read_text()


def check_named_tests(found: list[list[str]]) -> None:
    for row in found:
        named = re.findall(r"`(\w[\w/]*\.py)(?:::(\w+))?`", row[2])
        assert named, row
        for file, test in named:
            text = (ROOT / "tests" / file).read_text()
            assert f"def {test}(" in text if test else text, f"{file}::{test}"


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_hazard_names_tests_that_exist():
    hazards = rows(section("Hazards"))[1:]
    assert len(hazards) >= 15
    check_named_tests(hazards)


def test_every_defect_of_0_6_names_tests_that_exist():
    defects = rows(DEFECTS)[1:]
    assert [row[0] for row in defects] == [str(number) for number in range(1, 26)]
    check_named_tests(defects)


def test_page_says_first_that_it_is_not_a_certified_safety_function():
    assert "not a certified safety function" in PAGE.partition("\n## ")[0]


def test_cells_that_do_not_exist_are_listed_with_their_reason():
    listed = [row for row in rows(section("The STOP matrix")) if len(row) == 2]
    assert [[one.cells, one.reason] for one in MISSING] == listed[-len(MISSING) :]


def test_table_has_every_place_and_layout():
    table = section("The STOP matrix").rpartition("\n| place | one process")[2]
    assert all(layout in "one process" + table.splitlines()[0] for layout in LAYOUTS)
    assert {row[0] for row in rows(table)} >= set(PLACES)
