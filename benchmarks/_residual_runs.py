"""The runs of `benchmarks.residual`: a cloned flow, and five ways to improve it with the same demonstrations.

python -m benchmarks._residual_runs peg 11 "residual, person"    # plays one run, and writes runs/residual/result-NAME.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dovetail.core.errors import FailureError
from dovetail.core.figures import Performance
from dovetail.core.stats import Rate
from dovetail.runs.folder import RunFolder

__all__ = ["FOLDER", "METHODS", "TASKS", "Evaluated", "Result", "play", "result_of"]

FOLDER = Path("runs/residual")
NO_PERSON = "operator={type: none}"
RESIDUAL = ("residual, person", "residual, no person")
METHODS = (*RESIDUAL, "hg-dagger", "rlpd", "dsrl")
COMMON = (
    "run.untrained_episodes=0",
    "run.video_episodes=0",
    "run.eval_every_steps=1500",
    "run.scheduled_eval_episodes=50",
)
TINY = (  # for a rough answer; of the base and of the others
    ("run.demos=3", "run.eval_episodes=3", "learner.warmup_updates=50"),
    (
        "run.demos=3",
        "run.eval_episodes=3",
        "run.env_steps=100",
        "run.eval_every_steps=50",
        "run.scheduled_eval_episodes=2",
    ),
)
_FLOW_DAGGER = (
    "actor={type: sequential, execution_horizon: 4}",
    "algorithm={type: hg_dagger, demo_share: 0.25, lr: 0.001, average: 0.998}",
    "learner.utd=1",
    "learner.warmup_updates=0",
)
_PEG = ("run.demo_noise=1.0", "run.env_steps=6000")  # the base's demonstrations
_DSRL = (
    NO_PERSON,  # it learns from its own noise only
    "actor={type: sequential, execution_horizon: 4}",
    "algorithm={type: dsrl, gamma: 0.98, target_range: [0.0, 1.0], lr: 0.001, tau: 0.01, temperature: 0.0003, "
    "actor_every: 1, actor_after: 1000}",
    "learner={bc_updates: 3000, utd: 2, warmup_updates: 500}",
)


def _steered(inputs: str) -> str:
    return f"policy={{type: steered, inputs: [{inputs}], horizon: 4, num_flow_steps: 3}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The recipe of the base with its settings, and for each other method recipe and settings."""

    base: tuple[str, ...]
    residual: str
    others: Mapping[str, tuple[str, ...]]


TASKS: Mapping[str, Task] = {
    "peg": Task(
        base=("peg-insertion-offset-base",),
        residual="peg-insertion-residual",
        others={
            "hg-dagger": (
                "peg-insertion-offset",
                "policy={type: flow, inputs: [ee_twist, ee_error, task_state], horizon: 8}",
                *_FLOW_DAGGER,
                "learner.bc_updates=3000",
                *_PEG,
            ),
            "rlpd": ("peg-insertion-offset", *_PEG),
            "dsrl": ("peg-insertion-offset", *_DSRL, _steered("ee_twist, ee_error, task_state"), *_PEG),
        },
    ),
    "pick": Task(
        base=("pick-place-sft", "run.demos=7", "learner.warmup_updates=3000"),
        residual="pick-place-residual",
        others={
            "hg-dagger": ("pick-place-hg-dagger", "run.demos=7", "learner.bc_updates=3000"),
            "rlpd": ("pick-place", "run.demos=7", "run.demo_noise=0.3", "run.env_steps=6000"),
            "dsrl": (
                "pick-place-hg-dagger",
                *_DSRL,
                _steered("ee_twist, ee_error, gripper, task_state"),
                "run.demos=7",
                "run.deterministic_share=0.0",
                "run.eval_noise=true",
            ),
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation without help after so many seconds of robot time."""

    robot_s: float
    successes: int
    episodes: int

    @property
    def rate(self) -> Rate:
        return Rate(successes=self.successes, episodes=self.episodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a method made of its start. `start` is the base, or what the method cloned itself."""

    task: str
    seed: int
    method: str
    start: Evaluated
    later: tuple[Evaluated, ...]
    human_share: float

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Result:
        start, later = Evaluated(**data["start"]), tuple(Evaluated(**one) for one in data["later"])
        return Result(**{**data, "start": start, "later": later})


def result_of(task: str, seed: int, method: str, *, tiny: bool = False) -> Result:
    """The result of a run, which is played if its file does not exist."""
    folder = FOLDER / "tiny" if tiny else FOLDER
    file = folder / f"result-{run_name(task, seed, method)}.json"
    if not file.is_file():
        play(task, seed, method, tiny=tiny)
    return Result.from_json(json.loads(file.read_text("utf-8")))


def run_name(task: str, seed: int, method: str) -> str:
    return f"{task}-{seed}-{method.replace(', ', '-').replace(' ', '-')}"


def play(task: str, seed: int, method: str, settings: Sequence[str] = (), *, tiny: bool = False) -> Result:
    """Train the base, improve it, and write the result beside the runs. A run that was interrupted continues."""
    folder = FOLDER / "tiny" if tiny else FOLDER
    name, of, seeded = run_name(task, seed, method), TASKS[task], f"run.seed={seed}"
    tiny_base, tiny_run = TINY if tiny else ((), ())
    settings = (*tiny_run, *settings)
    if method in RESIDUAL:
        base = folder / f"{name}-base"
        _command("train", base, (*of.base, seeded, "run.video_episodes=0", *tiny_base))
        who = () if method == RESIDUAL[0] else (NO_PERSON,)
        start = [f"policy.base.run={base}", *who, *COMMON, seeded, *settings]
        _command("run", folder / name, (of.residual, *start))
        first = _evaluations(base)["after"]
    else:
        _command("run", folder / name, (*of.others[method], *COMMON, seeded, *settings))
        first = _evaluations(folder / name)["cloning"]
    report = json.loads((folder / name / "report.json").read_text("utf-8"))
    later = {key: one for key, one in _evaluations(folder / name).items() if key not in ("cloning", "untrained")}
    result = Result(
        task=task,
        seed=seed,
        method=method,
        start=first,
        later=tuple(sorted(later.values(), key=lambda one: one.robot_s)),
        human_share=report["human_share"],
    )
    text = json.dumps(asdict(result), indent=1) + "\n"
    (folder / f"result-{name}.json").write_text(text, "utf-8")
    return result


def _evaluations(run: Path) -> dict[str, Evaluated]:
    found = {}
    for event in RunFolder.open(run).events("evaluated"):
        success = Performance.from_json(event).success
        if success is not None and "name" in event:
            robot_s = 60.0 * event["robot_minutes"]
            found[event["name"]] = Evaluated(
                robot_s=robot_s, successes=success.successes, episodes=success.episodes
            )
    return found


def _command(command: str, run: Path, sources: Sequence[str]) -> None:
    if (run / "report.json").exists():
        return
    given = ["--resume", str(run)] if (run / "config.yaml").exists() else [*sources]
    if given[0] != "--resume":
        given += ["--runs-dir", str(run.parent), "--name", run.name]
    console = ["--no-console"] if command == "run" else []
    line = [sys.executable, "-m", "dovetail.cli", command, *given, *console, "--quiet"]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise FailureError(f"{run} failed: {last}")


if __name__ == "__main__":
    chosen, number, way, *more = sys.argv[1:]
    sys.stdout.write(f"{play(chosen, int(number), way, more)}\n")
