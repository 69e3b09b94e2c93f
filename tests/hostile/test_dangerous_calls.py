"""No module of Dovetail unpickles, runs a shell, or loads a file in a way that could run code from it."""

from __future__ import annotations

import re

import pytest

from support.docs_pages import ROOT

FORBIDDEN = {
    "unpickles": r"\b(pickle|cPickle|dill|cloudpickle|marshal|joblib|shelve)\.(loads?|Unpickler|open)\(",
    "runs a shell": r"shell=True|\bos\.(system|popen)\(",
    "loads YAML with code": r"\byaml\.(load|load_all|full_load|unsafe_load)\(",
    "loads arrays with objects": r"allow_pickle=True|\bnp\.load\((?!.*allow_pickle=False)",
    "loads torch files with code": r"\btorch\.load\((?!.*weights_only=True)|weights_only=False|torch\.jit\.load\(",
    "unpacks paths of an archive": r"\.extractall\(",
    "listens on all networks": r"(host|address)[^\n]{0,40}= ?\"(0\.0\.0\.0|::)\"",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_module(what: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for match in re.finditer(FORBIDDEN[what], path.read_text())
    ]
    assert not found, f"{what}: {found}"
