"""Texts of errors."""

from __future__ import annotations

from dovetail.core.errors import shown


def test_quoted_value_is_one_short_line() -> None:
    assert shown("a\nb\x1b[2J") == "a b\N{REPLACEMENT CHARACTER}[2J"
    assert shown("x" * 5000) == "x" * 80
    assert shown(3) == "3"
