"""The deployed policy of a run: a candidate replaces it only if a comparison finds it not worse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dovetail.api.comparison import MAX_PAIRS, Comparison, OnPair, compare
from dovetail.api.evaluation import evaluate
from dovetail.api.links import OnLink, connect_nothing
from dovetail.api.names import RUNS_DIR, find_run
from dovetail.api.opened_run import Run
from dovetail.api.weights import find_weights
from dovetail.core.errors import RunFolderError, UsageError
from dovetail.runs.deployment import Deployment, deployment_lock
from dovetail.runs.deployment_request import Change, request_change
from dovetail.runs.folder import RunFolder
from dovetail.runs.paired_comparison import PairedComparison, PlayedPair

__all__ = ["Decision", "approve", "deploy", "deployment_of", "reject", "roll_back", "watch"]

_FIRST_SEED = 5000  # of watched episodes: other resets than those of learning and comparing


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether the candidate is deployed now, and the comparison that decided it."""

    deployed: bool
    comparison: Comparison


def deployment_of(run: Run | str | Path, *, runs_dir: Path | str = RUNS_DIR) -> Deployment:
    """What is deployed in a run: at first its own newest weights."""
    path = run.path if isinstance(run, Run) else find_run(run, Path(runs_dir))
    return Deployment.load(RunFolder.open(path))


def deploy(
    run: Run | str | Path,
    candidate: str | Path,
    *,
    num_episodes: int = MAX_PAIRS,
    margin: float | None = None,
    seed: int | None = None,
    gate: Literal["compare", "person"] = "compare",
    runs_dir: Path | str = RUNS_DIR,
    on_pair: OnPair = lambda comparison: None,
    should_stop: Callable[[], bool] = lambda: False,
    announce: Callable[[str], None] = lambda line: None,
    on_link: OnLink = connect_nothing,
) -> Decision:
    """Compare a candidate with the deployed policy of a run, and deploy it if it is not worse: see `compare`.

    The candidate is a run, RUN/weights/v00000009.json or a checkpoint. If it is worse, or the comparison cannot tell, it is
    rejected. With gate="person" it waits instead, whatever the answer: `approve` or `reject` it. Each decision is an event
    of the run.
    """
    with _changing(run, runs_dir) as deployment:
        deployment.propose(_pinned(candidate, Path(runs_dir)))
        assert deployment.candidate is not None
        comparison = compare(
            deployment.deployed.weights,
            deployment.candidate,
            num_episodes=num_episodes,
            margin=margin,
            seed=seed,
            runs_dir=runs_dir,
            on_pair=on_pair,
            should_stop=should_stop,
            announce=announce,
            on_link=on_link,
        )
        if comparison.stopped:
            raise UsageError(
                "the comparison was stopped, so nothing was deployed. The candidate stays: run it again"
            )
        pairs = tuple(PlayedPair(ids=("", ""), scores=scores) for scores in comparison.scores)
        made = PairedComparison(number=deployment.num_compared, max_pairs=num_episodes, margin=margin, pairs=pairs)
        deployment.add_pairs(made)
        if gate == "person":
            deployment.wait_for_person()
            return Decision(deployed=False, comparison=comparison)
        deployed = deployment.decide(comparison.answer, rate=made.expected_rate)
        return Decision(deployed=deployed, comparison=comparison)


def approve(
    run: Run | str | Path,
    candidate: str | Path | None = None,
    *,
    by: str = "a person",
    runs_dir: Path | str = RUNS_DIR,
) -> bool:
    """Deploy a candidate without a comparison; without a name, the candidate of the run's gate. False: the run is active,
    and does it between two episodes."""
    if candidate is not None:
        with _changing(run, runs_dir) as deployment:
            deployment.propose(_pinned(candidate, Path(runs_dir)))
            deployment.approve(by=by)
        return True
    state = deployment_of(run, runs_dir=runs_dir)
    return request_change(state.folder, Change.APPROVE, seen=state.candidate or "", by=by)


def reject(run: Run | str | Path, *, by: str = "a person", runs_dir: Path | str = RUNS_DIR) -> bool:
    """Drop the candidate. False: the run is active, and does it between two episodes."""
    state = deployment_of(run, runs_dir=runs_dir)
    return request_change(state.folder, Change.REJECT, seen=state.candidate or "", by=by)


def roll_back(run: Run | str | Path, *, by: str = "a person", runs_dir: Path | str = RUNS_DIR) -> bool:
    """Return to the policy before the deployed one. False: the run is active, and does it between two episodes."""
    state = deployment_of(run, runs_dir=runs_dir)
    return request_change(state.folder, Change.ROLL_BACK, seen=state.deployed.weights, by=by)


@contextmanager
def _changing(run: Run | str | Path, runs_dir: Path | str) -> Iterator[Deployment]:
    """The deployment of a run, which nothing else changes meanwhile."""
    folder = deployment_of(run, runs_dir=runs_dir).folder
    if folder.config.deploy is None:  # the run itself does not use it
        with deployment_lock(folder):
            yield Deployment.load(folder)
        return
    try:
        folder.lock()
    except RunFolderError as error:
        raise UsageError(
            f"{error}, and its gate compares its own weights. Use --approve or --roll-back alone, or wait for its end"
        ) from error
    try:
        yield Deployment.load(folder)
    finally:
        folder.unlock()


def watch(
    run: Run | str | Path,
    *,
    num_episodes: int,
    seed: int | None = None,
    runs_dir: Path | str = RUNS_DIR,
    should_stop: Callable[[], bool] = lambda: False,
    announce: Callable[[str], None] = lambda line: None,
    on_link: OnLink = connect_nothing,
) -> tuple[Deployment, int]:
    """Run episodes of the deployed policy without help, and roll it back if it succeeds less often than in its comparison.

    Returns the deployment and the number of episodes that counted for the policy before a roll-back."""
    with _changing(run, runs_dir) as deployment:
        used = (
            _FIRST_SEED + len(deployment.outcomes) if seed is None else seed
        )  # episodes that were counted do not count again
        played = evaluate(
            deployment.deployed.weights,
            num_episodes=num_episodes,
            seed=used,
            runs_dir=runs_dir,
            should_stop=should_stop,
            announce=announce,
            on_link=on_link,
        )
        count = 0
        for score in (score for arm in played.arms for score in arm.scores):
            count += 1
            test = deployment.observe(success=bool(score.success))
            if test is not None and test.alarm:
                break
        return deployment, count


def _pinned(candidate: str | Path, runs_dir: Path) -> str:
    """The candidate by a name that does not change when its run learns on."""
    source = find_weights(candidate, runs_dir=runs_dir)
    if source.checkpoint is not None:
        return str(source.checkpoint.absolute())
    version = source.snapshot().version if source.version is None else source.version
    return str((source.folder.weights / f"v{version:08d}.json").absolute())
