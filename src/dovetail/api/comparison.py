"""Compare two trained policies by a sequential test: is B worse than A by more than a margin?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.api.contenders import (
    check_same,
    make_contenders,
    name_of,
    played_settings,
    settings_of,
    shared_stop,
)
from dovetail.api.links import OnLink, connect_nothing
from dovetail.api.names import RUNS_DIR
from dovetail.api.opened_run import Run
from dovetail.api.weights import WeightSource, find_weights
from dovetail.config.load import Overrides
from dovetail.core.figures import EpisodeScore, Performance
from dovetail.core.sequential_test import Answer, SequentialTest
from dovetail.core.streams import stream
from dovetail.runs.pair_test import measure_of, pair_test

if TYPE_CHECKING:  # loads torch
    from dovetail.runs.paired_play import Contender, PairedPlayer

__all__ = ["MAX_PAIRS", "Comparison", "OnPair", "compare"]

MAX_PAIRS = 200
_OTHER_RESETS = 1000  # added to the seed: a best checkpoint was chosen by the resets of its run's own seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer, and the figures of both policies over the same number of episodes."""

    names: tuple[str, str]  # of A and B, such as `runs/first, weights version 9`
    scores: tuple[tuple[EpisodeScore, EpisodeScore], ...]  # of A and B, by pair
    margin_percent: float | None  # None: the default of the measure
    max_pairs: int
    seed: int
    same_resets: bool  # False: the episodes were interleaved in random order
    stopped: bool = False  # before the test was finished
    not_recorded: str = ""  # why the result is not in both runs' events.jsonl

    @property
    def measure(self) -> str:
        """`success`, or `return` where the environment has no success."""
        return measure_of(self.scores)

    @property
    def test(self) -> SequentialTest:
        return pair_test(self.scores, margin_percent=self.margin_percent, max_pairs=self.max_pairs)

    @property
    def answer(self) -> Answer:
        return self.test.answer

    @property
    def a(self) -> Performance:
        return Performance.of([pair[0] for pair in self.scores])

    @property
    def b(self) -> Performance:
        return Performance.of([pair[1] for pair in self.scores])

    def to_json(self) -> dict[str, Any]:
        return {
            "measure": self.measure,
            **self.test.to_json(),
            "max_pairs": self.max_pairs,
            "same_resets": self.same_resets,
            "seed": self.seed,
            "stopped": self.stopped,
            "a": {"weights": self.names[0], **self.a.to_json()},
            "b": {"weights": self.names[1], **self.b.to_json()},
        }


OnPair = Callable[[Comparison], None]
"""Called after each pair of episodes."""


def compare(
    a: Run | str | Path,
    b: Run | str | Path,
    overrides: Overrides = (),
    *,
    num_episodes: int = MAX_PAIRS,
    margin: float | None = None,
    seed: int | None = None,
    robot: str | None = None,
    runs_dir: Path | str = RUNS_DIR,
    on_pair: OnPair = lambda comparison: None,
    should_stop: Callable[[], bool] = lambda: False,
    announce: Callable[[str], None] = lambda line: None,
    on_link: OnLink = connect_nothing,
) -> Comparison:
    """Play A and B in turns until the test has an answer, at most `num_episodes` each.

    A and B are runs, `RUN/weights/v00000009.json`, or checkpoints. They must have the same task, robot and safety limits;
    `overrides` change the settings of both. Simulated robots play both on the same resets. On a real robot each pair is
    played in random order. `margin` is in points of success (default 5), or in percent of the spread of returns where the
    environment has no success (default 25). `seed` determines the resets. `robot` names an arm of a run with several.
    The result is also written to the events.jsonl of both runs.
    """
    from dovetail.runs.paired_play import PairedPlayer

    sources = [find_weights(_target(one), runs_dir=Path(runs_dir)) for one in (a, b)]
    configs = [settings_of(source, overrides, robot) for source in sources]
    check_same(sources, configs)
    used_seed = configs[0].run.seed + _OTHER_RESETS if seed is None else seed
    configs = [played_settings(configs[0], own, seed=used_seed) for own in configs]
    comparison = Comparison(
        names=("A", "B"),
        scores=(),
        margin_percent=margin,
        max_pairs=num_episodes,
        seed=used_seed,
        same_resets=True,
    )
    with shared_stop(sources) as stop:
        player = PairedPlayer(should_stop=should_stop)
        try:
            contenders = make_contenders(
                sources, configs, stop=stop, robot=robot, announce=announce, on_link=on_link
            )
            names = [name_of(source, player, one) for source, one in zip(sources, contenders, strict=True)]
            comparison = replace(comparison, names=(names[0], names[1]), same_resets=player.simulated)
            comparison = _play(comparison, player, contenders, on_pair)
        finally:
            player.close()
    if comparison.stopped:
        return comparison
    return replace(comparison, not_recorded=_record(sources, comparison))


def _play(
    comparison: Comparison, player: PairedPlayer, contenders: list[Contender], on_pair: OnPair
) -> Comparison:
    for index in range(comparison.max_pairs):
        order = [0, 1]
        if not player.simulated:
            stream(comparison.seed, "compare", index).shuffle(order)
        played: dict[int, EpisodeScore] = {}
        for side in order:
            episode = player.play(contenders[side], index)
            if episode is None:
                return replace(comparison, stopped=True)
            played[side] = player.score(contenders[side], episode)
        comparison = replace(comparison, scores=(*comparison.scores, (played[0], played[1])))
        on_pair(comparison)
        if comparison.answer is not Answer.CANNOT_TELL:
            break
    return comparison


def _target(named: Run | str | Path) -> str | Path:
    return named.path if isinstance(named, Run) else named


def _record(sources: list[WeightSource], comparison: Comparison) -> str:
    """Write the result to the events of both runs. Returns why that failed."""
    problems = []
    for folder in {source.folder.path.resolve(): source.folder for source in sources}.values():
        try:
            folder.event("compare", **comparison.to_json())
        except OSError as error:  # the run may be read-only
            problems.append(f"{folder.path / 'events.jsonl'}: {error.strerror}")
    return "; ".join(problems)
