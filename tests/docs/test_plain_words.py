"""The glossary is short, is linked, and the words that it replaced do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.docs_pages import ROOT

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
REPLACED = (
    *("nobody", "somebody", "anybody", "everybody", "whoever", "whomever", "anew", "lest", "thinks", "believes"),
    *(
        "obituary",
        "mourned",
        "muster",
        "misspelt",
        "spelt",
        "colour",
        "behaviour",
        "normalise",
        "normaliser",
        "optimiser",
    ),
)
WORD = re.compile(rf"\b({'|'.join(REPLACED)})\b", re.IGNORECASE)
STORED = {"behaviour_kl"}  # names in files of earlier versions


def nouns() -> list[str]:
    rows = [row.split("|")[1] for row in GLOSSARY.splitlines() if row.startswith("| ")]
    return [noun.strip() for row in rows for noun in row.split(",") if noun.strip() != "word"]


def replaced_words(text: str) -> list[str]:
    return [word for word in WORD.findall(text) if word not in STORED]


def files() -> list[Path]:
    folders = ("src", "benchmarks", "docs")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [path for path in found if path.suffix in {".py", ".js", ".yaml", ".md", ".svg"}] + [ROOT / "README.md"]


def test_glossary_has_at_most_60_nouns_with_one_meaning_each() -> None:
    assert 40 <= len(nouns()) <= 60
    assert len(set(nouns())) == len(nouns())


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_glossary_is_linked(page: str) -> None:
    assert "docs/glossary.md" in (ROOT / page).read_text()


def test_replaced_words_do_not_occur() -> None:
    found = {str(path.relative_to(ROOT)): words for path in files() if (words := replaced_words(path.read_text()))}
    assert found == {}


def test_replaced_words_are_found() -> None:
    assert replaced_words("Whoever watches is told anew.") == ["Whoever", "anew"]
