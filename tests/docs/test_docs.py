"""Checks the documentation: commands parse, links exist, and the tutorial works."""

import importlib
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import typer
from PIL import Image

from dovetail.cli.main import app, main
from dovetail.config.load import load, recipes
from dovetail.config.plugins import BUILTIN
from dovetail.robots.sim import SimRobot, SimRobotConfig
from dovetail.testing import check_task
from support.docs_pages import (
    EXTENDING,
    MACHINE_PATH,
    PAGES,
    ROOT,
    TUTORIAL,
    command_problem,
    commands,
    files,
    link_problems,
    mention_problems,
    page_id,
    pretend_installed,
)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A folder with the files of a page, as its reader would have it; modules in it can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = []

    def write(*texts: str) -> Path:
        for text in texts:
            for name, content in files(text).items():
                (tmp_path / name).parent.mkdir(exist_ok=True)
                (tmp_path / name).write_text(content)
                modules.append(name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
                if name == "pyproject.toml":
                    pretend_installed(content, tmp_path)
        return tmp_path

    yield write
    for module in modules:
        sys.modules.pop(module, None)


# ---- the pages


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_parse_and_their_configs_load(page, written):
    text = page.read_text()
    shared = EXTENDING if page in EXTENDING else [TUTORIAL, page]  # the README's example uses the tutorial's task
    written(*(other.read_text() for other in shared))
    assert [problem for line in commands(text) if (problem := command_problem(line))] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_and_images_exist(page):
    assert link_problems(page.read_text(), page.parent) == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_mentioned_files_and_names_exist(page):
    assert mention_problems(page.read_text()) == []


@pytest.mark.parametrize(
    "page", [*PAGES, *ROOT.glob("docs/*.svg"), *ROOT.glob("src/dovetail/config/recipes/*.yaml")], ids=page_id
)
def test_no_machine_of_ours_is_named(page):
    assert MACHINE_PATH.findall(page.read_text()) == []


def test_there_is_something_to_check():
    everything = "\n".join(page.read_text() for page in PAGES)
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {page.name for page in PAGES}
    assert len(commands(everything)) > 30
    assert {line.split()[1] for line in commands(everything)} == set(typer.main.get_command(app).commands)


def test_the_readme_shows_claim_picture_and_two_commands_first():
    lines = (ROOT / "README.md").read_text().splitlines()
    first_screen = "\n".join(lines[:15])
    assert len(lines) < 120
    assert "docs/loop.svg" in first_screen
    assert "make demo" in first_screen and "make test" in first_screen


def test_pictures_can_be_opened():
    for path in ROOT.glob("docs/**/*.svg"):
        assert ET.parse(path).getroot().get("viewBox")
    for path in ROOT.glob("docs/**/*.png"):
        with Image.open(path) as picture:
            picture.verify()


def test_every_task_has_a_recipe_that_says_what_it_is():
    shipped = recipes()
    assert {recipe.task for recipe in shipped} >= set(BUILTIN["task"])
    for recipe in shipped:
        assert len(recipe.description) > 20, recipe.name
        config = load([recipe.name])
        assert config.run.env_steps > 0 or config.learner.warmup_updates > 0  # it learns something


# ---- the tutorial's task


def test_the_tutorials_own_test_passes(written):
    written(TUTORIAL.read_text())
    importlib.import_module("test_press_button").test_press_button_keeps_the_contract()


def test_the_tutorials_task_also_works_on_the_other_arm(written):
    written(TUTORIAL.read_text())
    module = importlib.import_module("press_button")
    check_task(
        lambda: module.PressButton(module.PressButtonConfig()),
        lambda task: SimRobot(SimRobotConfig(arm="x5"), task=task),
        num_expert_episodes=5,
        min_expert_successes=5,
    )


@pytest.mark.slow
def test_the_tutorials_task_visibly_learns(written):
    folder = written(TUTORIAL.read_text())
    assert (
        main(["run", "push-cube", "press_button.yaml", "run.video_episodes=0", "--name", "button", "--quiet"]) == 0
    )
    report = json.loads((folder / "runs" / "button" / "report.json").read_text())
    assert report["success_before"]["rate"] < 0.5
    assert report["success_after"]["rate"] > report["success_before"]["rate"] + 0.3


def test_the_tutorials_task_is_one_short_file():
    assert len(files(TUTORIAL.read_text())["press_button.py"].splitlines()) <= 80


# ---- and the checks themselves notice


@pytest.mark.parametrize(
    ("line", "because"),
    [
        ("dovetail fly peg-insertion", "no command"),
        ("dovetail episodes", "no command"),
        ("dovetail episodes play first", "no command"),
        ("dovetail run peg-insertion --nmae first", "nmae"),
        ("dovetail eval", "argument"),
        ("dovetail run peg-insertoin", "Did you mean 'peg-insertion'"),
        ("dovetail run peg-insertion run.sed=3", "Did you mean 'run.seed'"),
        ("dovetail run peg-insertion gone.yaml", "not found"),
        ("dovetail bench spe", "no bench"),
    ],
)
def test_wrong_command_is_found(line, because):
    assert commands(f"```sh\n{line}  # a comment\n```\n") == [line]
    assert commands(f"Say `{line}`.") == [line]
    assert because in (command_problem(line) or "")


def test_dead_link_is_found():
    text = "[a](docs/tutorial.md#3-evaluate), ![b](docs/gone.png), [c](https://example.com/x), [d](GONE.md)"
    assert link_problems(text, ROOT) == ["docs/gone.png", "GONE.md"]


def test_link_to_a_missing_heading_is_found():
    text = "# One `two` three\n\n[a](docs/tutorial.md#evaluate), [b](#one-two-three), [c](#four)"
    assert link_problems(text, ROOT) == ["docs/tutorial.md#evaluate", "#four"]


def test_mention_of_a_missing_name_is_found():
    text = (
        "`dovetail.testing.check_robot`, `dovetail.testing.check_moon`, `core/disk.py`, `core/disc.py`, `make fly`"
    )
    assert mention_problems(text) == ["dovetail.testing.check_moon", "core/disc.py", "make fly"]


@pytest.mark.parametrize("text", ["see /home/me/runs", "`/tmp/x`", "(/work/main/README.md)", r"C:\runs"])
def test_local_path_is_found(text):
    assert MACHINE_PATH.search(text)


@pytest.mark.parametrize("text", ["runs/first/tmp/x", "https://example.com/home/x", "`robots/sim/`", "and/or"])
def test_other_slashes_are_fine(text):
    assert not MACHINE_PATH.search(text)


def test_outdated_tutorial_is_found(written):
    text = TUTORIAL.read_text()
    rotten = text.replace("else -0.02  # first above the button, then through it", "else 0.02  # never through it")
    assert rotten != text
    written(rotten)
    with pytest.raises(AssertionError, match="the expert succeeded in 0 of 10"):
        importlib.import_module("test_press_button").test_press_button_keeps_the_contract()


# ---- the pages of robots


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "robots").glob("*.md")), ids=page_id)
def test_page_of_a_robot_says_what_it_was_tried_on(page):
    text = page.read_text().lower()
    assert "tried on" in text
    if page.name not in ("README.md", "table.md"):
        assert any(
            words in text for words in ("no hardware", "not on an arm", "not tried on a real", "never tried")
        ) or (page.name == "cameras.md" and text.count("no camera") >= 2)


def test_every_robot_and_camera_type_has_a_page():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "robots").glob("*.md"))
    missing = [
        name
        for kind in ("robot", "camera")
        for name in BUILTIN[kind]
        if name not in ("sim", "gym") and f"`{name}`" not in pages
    ]
    assert not missing
