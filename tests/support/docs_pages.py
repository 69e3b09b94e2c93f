"""Reads the pages of the documentation: their commands, links, files and mentions, and what is wrong with them."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import typer

from dovetail.bench.registry import BENCHES
from dovetail.cli.main import app
from dovetail.config.load import load
from dovetail.config.plugins import BUILTIN
from dovetail.core.errors import DovetailError
from support import TESTS

ROOT = TESTS.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TUTORIAL = ROOT / "docs" / "tutorial.md"
EXTENDING = [ROOT / "docs" / "extending.md", *sorted(ROOT.glob("docs/extending/*.md"))]  # one package
TAKE_CONFIGS = ("run", "collect", "doctor", "config show")

FENCE = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
NAMED_BY_COMMENT = re.compile(r"# (\S+\.yaml)\b")  # a config's first line may name it
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PLACEHOLDER = re.compile(r"[A-Z][A-Z|.]*")  # RECIPE, RUN, NAME
MACHINE_PATH = re.compile(r"(?<![\w.:/~-])/(?:work|home|root|tmp|usr|opt|mnt|var|srv|Users)/|\b[A-Z]:\\")


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands(text: str) -> list[str]:
    """Every line of a shell block and every inline code that calls dovetail."""
    lines = [
        line.partition(" #")[0].strip()
        for fence in FENCE.finditer(text)
        if fence["kind"] in ("sh", "bash", "console")
        for line in fence["code"].splitlines()
    ]
    prose = FENCE.sub("", text)
    return [line for line in (*lines, *INLINE.findall(prose)) if line.startswith("dovetail ")]


def files(text: str) -> dict[str, str]:
    """The files that the reader of a page writes."""
    found = {}
    for fence in FENCE.finditer(text):
        named = NAMED_BY_COMMENT.match(fence["code"])
        name = fence["file"] or (named and named[1])
        if name:
            found[name] = fence["code"]
    return found


def command_problem(line: str) -> str | None:
    """Why a command line would be refused; it is parsed as typer parses it, and not run."""
    words = [word for word in shlex.split(line)[1:] if word != "--debug"]
    command, path = typer.main.get_command(app), []
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            return None if path == [] and words[:1] in (["--version"], ["--help"]) else f"no command in: {line}"
        path.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    if any(word in ("-h", "--help") for word in words):
        return None
    try:
        context = command.make_context(" ".join(path), words)
    except Exception as error:  # typer and click each have their own base of usage errors
        return f"{line}: {error.format_message() if hasattr(error, 'format_message') else error}"
    name, parameters = " ".join(path), context.params
    if name == "bench":
        unknown = [n for n in parameters["names"] or () if n not in (*BENCHES, "all") and not is_placeholder(n)]
        return f"{line}: no bench {unknown}" if unknown else None
    if name in TAKE_CONFIGS and not parameters.get("resume"):
        return config_problem(line, parameters["arguments"] or ())
    return None


def config_problem(line: str, arguments: tuple[str, ...]) -> str | None:
    """Recipes and files must be there, and the overrides must be settings."""
    arguments = tuple(argument for argument in arguments if not is_placeholder(argument))
    sources = [argument for argument in arguments if "=" not in argument]
    if not sources:
        return None
    try:
        load(sources, [argument for argument in arguments if "=" in argument])
    except DovetailError as error:
        return f"{line}: {error}"
    return None


def is_placeholder(word: str) -> bool:
    return PLACEHOLDER.fullmatch(word) is not None


def link_problems(text: str, folder: Path) -> list[str]:
    """Links to files that do not exist, and to headings that a page does not have."""
    targets = [target for target in LINK.findall(FENCE.sub("", text)) if "://" not in target]
    return [target for target in targets if not _link_exists(target, text, folder)]


def _link_exists(target: str, text: str, folder: Path) -> bool:
    name, _, anchor = target.partition("#")
    path = folder / name
    if name and not path.exists():
        return False
    if not anchor or (name and path.suffix != ".md"):
        return True
    return anchor in anchors(path.read_text() if name else text)


def anchors(text: str) -> list[str]:
    """Anchors of the headings of a page, as GitHub names them."""
    return [
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(FENCE.sub("", text))
    ]


def mention_problems(text: str) -> list[str]:
    """Modules, classes, source files and make targets that are spoken of and are not there."""
    wrong = []
    makefile = (ROOT / "Makefile").read_text()
    spans = [*INLINE.findall(FENCE.sub("", text))]
    spans += [line for fence in FENCE.finditer(text) for line in fence["code"].splitlines()]
    for span in spans:
        if re.fullmatch(r"dovetail(\.\w+)+", span) and span.partition(".")[2] not in BUILTIN:  # entry point groups
            wrong += [] if _importable(span) else [span]
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)+\.(py|toml|md|svg|png)", span):
            places = (ROOT / span, ROOT / "src" / span, ROOT / "src" / "dovetail" / span, ROOT / "docs" / span)
            wrong += [] if any(place.exists() for place in places) else [span]
        if made := re.match(r"make ([\w-]+)(\s|$)", span):
            wrong += [] if re.search(rf"^{made[1]}:", makefile, re.MULTILINE) else [span]
    return wrong


def _importable(name: str) -> bool:
    module, parts = name, []
    while module:
        try:
            found = importlib.import_module(module)
        except ImportError:
            module, _, last = module.rpartition(".")
            parts.insert(0, last)
            continue
        for part in parts:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def pretend_installed(pyproject: str, folder: Path) -> None:
    """What pip would leave of a package's entry points; test_extending.py has pip do it."""
    project = tomllib.loads(pyproject)["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        "\n".join((f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())))
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
