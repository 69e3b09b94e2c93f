"""Consoles in their own processes, and a real Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from dovetail.config.trust import mark_trusted
from support.console_process import OpenConsole, end_console, start_console
from support.made_runs import made_run
from support.recorded_runs import record_run


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """`recorded(folder)` copies a run of eight episodes, e00 to e07, with 12 steps each, and returns its path."""
    original = record_run(tmp_path_factory.mktemp("recorded") / "run", num_episodes=8).path

    def copy(folder: Path) -> Path:
        run = Path(shutil.copytree(original, folder / "run"))
        if (run / "config.yaml").exists():
            mark_trusted(run)
        return run

    return copy


@pytest.fixture
def open_console() -> Iterator[Callable[..., OpenConsole]]:
    """`open_console(run)` starts a console, which ends with the test."""
    consoles: list[OpenConsole] = []

    def start(run: Path, *arguments: str) -> OpenConsole:
        consoles.append(start_console(run, *arguments))
        return consoles[-1]

    yield start
    for opened in consoles:
        end_console(opened)


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenConsole]:
    """The console of a finished run, for tests that do not change it."""
    opened = start_console(made_run(tmp_path_factory.mktemp("runs") / "one").path)
    yield opened
    assert end_console(opened) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One per module: Playwright runs an event loop in this thread, and other tests need their own."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.fail("Chromium is not installed: apt-get install chromium (scripts/setup does it)", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab of 1280x800. Script errors and requests to other hosts fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="dark")
    context.set_default_timeout(60_000)  # for busy machines
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(request.url) if not _is_local(request.url) else None)
    yield page
    context.close()
    assert not errors, errors


def _is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))
