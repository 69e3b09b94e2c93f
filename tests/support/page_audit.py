"""What must hold on every page of the console at every size: names, contrast, touch targets, STOP, no overflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page

__all__ = ["SIZES", "audit", "new_context"]

SIZES: dict[str, dict[str, Any]] = {
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
    "phone-landscape": {"viewport": {"width": 844, "height": 390}, "has_touch": True, "is_mobile": True},
    "tablet": {"viewport": {"width": 820, "height": 1180}, "has_touch": True, "is_mobile": True},
    "desktop": {"viewport": {"width": 1440, "height": 900}},
}

_AUDIT = Path(__file__).with_suffix(".js").read_text()


def audit(page: Page) -> list[str]:
    """The problems of the page as it is now, one line each."""
    found: list[str] = page.evaluate(_AUDIT)
    return found


def new_context(browser: Browser, size: str, **other: Any) -> BrowserContext:
    context = browser.new_context(**SIZES[size], **other)
    context.set_default_timeout(60_000)
    return context
