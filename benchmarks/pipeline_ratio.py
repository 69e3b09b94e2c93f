"""Ray against inline at the same update-to-data ratio: seconds per episode, compared with the largest possible gain.

The inline run takes C seconds to collect an episode and T to learn from it; parallel execution can gain at most
(C + T) / max(C, T). The arm runs in real time at 10 Hz with two cameras; updates sleep, as one waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks._pipeline_runs import CASES, Case, measure_pace
from dovetail.bench.rows import Row, at_least

__all__ = ["bench"]

_AIM = 90.0  # % of the bound


def bench(*, quick: bool) -> Iterator[Row]:
    for case in CASES:
        yield from _compare(case, num_episodes=4 if quick else 12, quick=quick)


def _compare(case: Case, *, num_episodes: int, quick: bool) -> Iterator[Row]:
    name, updates = case.name, case.updates
    inline = measure_pace(case, "inline", num_episodes=num_episodes, updates=updates)
    yield Row(name=f"{name}, inline: an episode and its updates", value=inline.episode_s, unit="s")
    yield Row(name=f"{name}: C, collecting it", value=inline.collect_s, unit="s")
    yield Row(name=f"{name}: T, learning from it", value=inline.train_s, unit="s")
    other_s = inline.episode_s - inline.collect_s - inline.train_s
    yield Row(name=f"{name}, inline: everything else", value=other_s, unit="s")
    yield Row(name=f"{name}: bound (C + T) / max(C, T)", value=inline.bound, unit="x")
    ray = measure_pace(case, "ray", num_episodes=num_episodes, updates=updates)
    ratio = updates / case.num_steps
    for runtime, pace in (("inline", inline), ("ray", ray)):
        label = f"{name}, {runtime}: updates per step, of {ratio:.3f} allowed"
        yield Row(name=label, value=pace.updates_per_step, unit="")
    yield Row(name=f"{name}, ray: collecting an episode", value=ray.collect_s, unit="s")
    yield Row(name=f"{name}, ray: from one to the next", value=ray.episode_s, unit="s")
    episode_s = ray.seconds_at_ratio(ratio, case.num_steps)
    gain = inline.episode_s / episode_s
    yield Row(
        name=f"{name}, ray: an episode and its updates",
        value=episode_s,
        unit="s",
        baseline="inline",
        ratio=1 / gain,
    )
    yield Row(name=f"{name}: ray, times faster per episode", value=gain, unit="x", baseline="inline", ratio=gain)
    share, label = 100 * gain / inline.bound, f"{name}: of the bound"
    yield Row(name=label, value=share, unit="%") if quick else at_least(label, share, "%", _AIM)
