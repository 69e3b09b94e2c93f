"""Consoles in processes of their own, and real Chromium to look at them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from support.console_process import Opened, end_console, start_console
from support.made_runs import made_run
from support.recorded_runs import record_run


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """`recorded(folder)` copies a run of eight real episodes, e00 to e07, of 12 steps each, and says where it is."""
    made = record_run(tmp_path_factory.mktemp("recorded") / "run", num_episodes=8).path
    return lambda folder: Path(shutil.copytree(made, folder / "run"))


@pytest.fixture
def open_console() -> Iterator[Callable[..., Opened]]:
    """`open_console(run)` starts one; all are ended with the test."""
    made: list[Opened] = []

    def start(run: Path, *arguments: str) -> Opened:
        made.append(start_console(run, *arguments))
        return made[-1]

    yield start
    for opened in made:
        end_console(opened)


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Of a run that is over, for tests that leave it as it is. It ends as it should when asked to."""
    opened = start_console(made_run(tmp_path_factory.mktemp("runs") / "one").path)
    yield opened
    assert end_console(opened) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One a module: while Playwright runs, its event loop is this thread's, and other tests want their own."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.fail("no Chromium here: apt-get install chromium (scripts/setup does)", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab at 1280x800. A script error in it fails the test, and so does a request to anywhere else."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="dark")
    context.set_default_timeout(60_000)  # a busy machine is slow, and not wrong
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if not _is_local(request.url) else None)
    yield page
    context.close()
    assert not wrong, wrong


def _is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))
