"""Helpers for tests that drive a live run through the console: read its state, take over, wait for control."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
from playwright.sync_api import Page

from support.console_process import OpenConsole

__all__ = ["has_control", "read_events", "read_state", "resumes", "send_event", "take_over"]

_NUM_PRESSES = 20


def read_state(console: OpenConsole, arm: str = "") -> dict[str, Any]:
    """Of the named arm, or of the first one."""
    answer = httpx.get(f"{console.address}api/state", params={"arm": arm}, headers=console.headers)
    state: dict[str, Any] = answer.json()["state"]
    return state


def send_event(console: OpenConsole, event: str) -> None:
    httpx.post(f"{console.address}api/event", headers=console.headers, json={"event": event})


def has_control(console: OpenConsole, *controls: str) -> Callable[[], Any]:
    """A condition for `until`: true when the run's control state is one of `controls`."""
    return lambda: (now := read_state(console)) and now["control"] in controls and now


def read_events(console: OpenConsole) -> list[dict[str, Any]]:
    path = console.run / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []  # the run writes its first event late
    return [json.loads(line) for line in lines if line.endswith("}")]


def take_over(console: OpenConsole, page: Page, *, arm: str = "") -> None:
    """Open the takeover page and hold the dead-man key until the page drives.

    `arm` is the one that the page shows; without a name, the first one.

    On a busy machine the drive messages may pause for 0.25 s: then the arm holds until the key is pressed again.
    """
    console.enter(page, "/takeover")
    page.wait_for_selector("body[data-drives]")
    page.wait_for_function("window.dovetail.state?.may_drive")
    for _ in range(_NUM_PRESSES):
        page.keyboard.down("Space")
        page.wait_for_timeout(500)
        if (now := read_state(console, arm)) is None or now["control"] in ("human", "idle"):
            return
        page.keyboard.up("Space")


def resumes(console: OpenConsole) -> bool:
    """Whether the policy acts again. On a busy machine the drive messages may pause for 0.25 s; the arm then holds, and
    this sends `start`."""
    control = read_state(console)["control"]
    if control == "holding":
        send_event(console, "start")
    return control in ("policy", "idle")
