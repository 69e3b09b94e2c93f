"""Facts for the coach from demonstrations: how well observations explain what the demonstrator did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.core.types import Array, Episode
from dovetail.learn.coach import DemoFacts

__all__ = ["DemoCollection", "explained_variance"]

_MIN_DEMOS, _MAX_DEMOS = 3, 40  # that are compared
_MAX_STEPS = 500  # in a regression
_NUM_FOLDS = 4
_RIDGE = 0.1  # relative to the kernel, which is 1 for equal observations


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demo:
    observations: Mapping[str, Array]  # [T, D] each
    actions: Array  # [T, A], each axis divided by its range


class DemoCollection:
    """`add` each demonstration that trains; `facts` are computed again only if there are more of them."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self._inputs = tuple(inputs)
        self._demos: dict[str, _Demo] = {}
        self._num = 0
        self._facts = DemoFacts()

    def add(self, episode: Episode) -> None:
        if episode.id in self._demos:
            return
        self._num += 1
        if len(self._demos) >= _MAX_DEMOS:
            return
        robot, actions = episode.robot, episode.column("executed")
        low, high = robot.action.bounds
        scale = np.where(np.isfinite(high - low) & (high > low), high - low, 1.0)
        vectors = [key for key, spec in robot.observation.items() if len(spec.shape) == 1 and not spec.is_image]
        observations = {key: episode.column(f"observation/{key}").astype(np.float64) for key in vectors}
        self._demos[episode.id] = _Demo(observations=observations, actions=actions / scale)

    def facts(self, *, explain: bool) -> DemoFacts:
        """`explain` includes the regressions, which take about half a second."""
        if self._num != self._facts.num or (explain and not self._facts.explained):
            self._facts = DemoFacts(num=self._num, explained=self._explained() if explain else {})
        return self._facts

    def _explained(self) -> dict[str, float]:
        demos = list(self._demos.values())
        if len(demos) < _MIN_DEMOS:
            return {}
        inputs = [key for key in self._inputs if key in demos[0].observations]
        if not inputs:
            return {}
        found = {"": self._share(inputs)}
        for key in demos[0].observations:
            if key not in inputs:
                found[key] = self._share([*inputs, key])
        return found

    def _share(self, keys: Sequence[str]) -> float:
        demos = self._demos.values()
        return explained_variance(
            [np.concatenate([demo.observations[key] for key in keys], axis=1) for demo in demos],
            [demo.actions for demo in demos],
        )


def explained_variance(observations: Sequence[Array], actions: Sequence[Array]) -> float:
    """Share of the variance of the actions [T, A] of some episodes that follows from the observations [T, D] of others.

    Kernel ridge regression, cross-validated by episode. At most 1; 0 or less if the observations carry no information.
    """
    total = sum(map(len, actions))
    stride = max(1, -(-total // _MAX_STEPS))
    x = np.concatenate([one[::stride] for one in observations])
    y = np.concatenate([one[::stride] for one in actions])
    fold = np.concatenate(
        [np.full(len(one[::stride]), index % _NUM_FOLDS) for index, one in enumerate(observations)]
    )
    spread = x.std(axis=0)
    x = (x - x.mean(axis=0))[:, spread > 1e-6] / spread[spread > 1e-6]
    if not x.shape[1] or len(np.unique(fold)) < 2:
        return 0.0
    squared = np.maximum(0.0, (x * x).sum(1)[:, None] + (x * x).sum(1)[None] - 2.0 * x @ x.T)
    median = float(np.median(squared)) or 1.0
    return max(_cross_validated(np.exp(-squared / (width * median)), y, fold) for width in (1.0, 0.25))


def _cross_validated(kernel: Array, y: Array, fold: Array) -> float:
    errors = variance = 0.0
    for index in np.unique(fold):
        test, train = fold == index, fold != index
        mean = y[train].mean(axis=0)
        weights = np.linalg.solve(kernel[np.ix_(train, train)] + _RIDGE * np.eye(train.sum()), y[train] - mean)
        errors += float(((kernel[np.ix_(test, train)] @ weights + mean - y[test]) ** 2).sum())
        variance += float(((y[test] - mean) ** 2).sum())
    return 1.0 - errors / variance if variance > 1e-9 else 1.0
