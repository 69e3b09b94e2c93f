"""A learner that is free to run, as RLinf-USER measured it: seconds per episode and per update, inline against Ray.

Inline there are as many updates per episode as its ratio says; on Ray as many as the learner manages meanwhile. So the two
have different ratios, which are printed. With C seconds to collect, T to learn and O for all else, all inline, an episode
can become (C + T + O) / C times as fast and an update (C + T + O) / T times: the more updates an episode earns, the more the
first gains and the less the second. Hence two ratios inline, and one run on Ray beside both.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.bench._pipeline_runs import CASES, Case, Pace, paced
from dovetail.bench.rows import Row, at_least

__all__ = ["bench"]

# per case: what the reference found (an episode, an update), what we aim for, and updates per episode inline
_SETTINGS = {
    CASES[0].name: ((1.55, 4.61), (1.6, 5.0), (24, 8)),
    CASES[1].name: ((1.20, 5.70), (1.25, 6.0), (2, 1)),
}


def bench(*, quick: bool) -> Iterator[Row]:
    for case in CASES:
        yield from _compare(case, num_episodes=4 if quick else 10, quick=quick)


def _compare(case: Case, *, num_episodes: int, quick: bool) -> Iterator[Row]:
    name = case.name
    reference, aims, ratios = _SETTINGS[name]
    free = paced(case, "ray", num_episodes=num_episodes, updates=ratios[0], free=True)
    yield Row(name=f"{name}, ray: an episode", value=free.episode_s, unit="s")
    yield Row(name=f"{name}, ray: an update", value=free.update_s, unit="s")
    yield Row(name=f"{name}, ray: updates per step", value=free.updates_per_step, unit="")
    gains = []
    for updates in ratios:
        inline = paced(case, "inline", num_episodes=max(4, num_episodes // 2), updates=updates)
        label = f"{name}, inline with {updates} updates an episode"
        yield from _inline_rows(label, inline)
        gains.append((inline.episode_s / free.episode_s, inline.update_s / free.update_s))
        for what, gain in zip(("episode", "update"), gains[-1], strict=True):
            yield Row(
                name=f"{label}: ray, times faster per {what}", value=gain, unit="x", baseline="inline", ratio=gain
            )
    for what, of_each, aim, theirs in zip(
        ("episode", "update"), zip(*gains, strict=True), aims, reference, strict=True
    ):
        label = f"{name}: ray, times faster per {what}, the better ratio (reference {theirs:g}x)"
        yield Row(name=label, value=max(of_each), unit="x") if quick else at_least(label, max(of_each), "x", aim)


def _inline_rows(label: str, pace: Pace) -> Iterator[Row]:
    yield Row(name=f"{label}: an episode", value=pace.episode_s, unit="s")
    yield Row(name=f"{label}: an update", value=pace.update_s, unit="s")
    yield Row(name=f"{label}: updates per step", value=pace.updates_per_step, unit="")
    bounds = (pace.episode_s / pace.collect_s, pace.episode_s / pace.train_s)
    for what, bound in zip(("episode", "update"), bounds, strict=True):
        yield Row(name=f"{label}: bound per {what}", value=bound, unit="x")
