"""Ray against inline with a learner without an update limit, as RLinf-USER measured it: seconds per episode and per update.

Inline runs a fixed number of updates per episode, Ray as many as the learner can do in parallel; the two ratios are printed.
If inline takes C seconds to collect, T to learn and O for the rest, an episode can become (C + T + O) / C times as fast and
an update (C + T + O) / T times. More updates per episode increase the first bound and decrease the second. Therefore inline
runs with two ratios, and Ray once.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks._pipeline_runs import CASES, Case, Pace, measure_pace
from dovetail.bench.rows import Row, at_least

__all__ = ["bench"]

# per case: gains of the reference (per episode, per update), our aims, and updates per episode inline
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
    free = measure_pace(case, "ray", num_episodes=num_episodes, updates=ratios[0], free=True)
    yield Row(name=f"{name}, ray: an episode", value=free.episode_s, unit="s")
    yield Row(name=f"{name}, ray: an update", value=free.update_s, unit="s")
    yield Row(name=f"{name}, ray: updates per step", value=free.updates_per_step, unit="")
    gains = []
    for updates in ratios:
        inline = measure_pace(case, "inline", num_episodes=max(4, num_episodes // 2), updates=updates)
        label = f"{name}, inline with {updates} updates an episode"
        yield from _inline_rows(label, inline)
        gains.append((inline.episode_s / free.episode_s, inline.update_s / free.update_s))
        for what, gain in zip(("episode", "update"), gains[-1], strict=True):
            yield Row(
                name=f"{label}: ray, times faster per {what}", value=gain, unit="x", baseline="inline", ratio=gain
            )
    for what, values, aim, theirs in zip(
        ("episode", "update"), zip(*gains, strict=True), aims, reference, strict=True
    ):
        label = f"{name}: ray, times faster per {what}, the better ratio (reference {theirs:g}x)"
        yield Row(name=label, value=max(values), unit="x") if quick else at_least(label, max(values), "x", aim)


def _inline_rows(label: str, pace: Pace) -> Iterator[Row]:
    yield Row(name=f"{label}: an episode", value=pace.episode_s, unit="s")
    yield Row(name=f"{label}: an update", value=pace.update_s, unit="s")
    yield Row(name=f"{label}: updates per step", value=pace.updates_per_step, unit="")
    bounds = (pace.episode_s / pace.collect_s, pace.episode_s / pace.train_s)
    for what, bound in zip(("episode", "update"), bounds, strict=True):
        yield Row(name=f"{label}: bound per {what}", value=bound, unit="x")
