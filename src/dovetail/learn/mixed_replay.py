"""Batches with rows of several arms: one replay per arm, padded to the canonical action and observation space.

policy = CanonicalPolicy(config, robot=panda)
replay = MixedReplay(policy.canonical_space, [(panda, its_replay), (x5, its_replay)])
Learner(algorithm=Imitation(..., policy=policy), replay=replay, robot=policy.robot, ...)

Actions are scaled by each axis' limits to -1 ... 1, and 0 on axes that an arm does not have. A batch also has `embodiment`
[B], the number of the row's arm, and `action_mask` [B, A], true on the axes that this arm has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.core.contracts import ReplayReader
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, View, Window
from dovetail.policies.embodiments.canonical_space import EMBODIMENT, CanonicalArm, CanonicalSpace

__all__ = ["MixedReplay"]

_ACTIONS = ("action", "achieved")


class MixedReplay:
    """See the ReplayReader contract. Every step has the same probability. With `shares`, each named arm with steps gets its
    share of a batch."""

    def __init__(
        self,
        canonical_space: CanonicalSpace,
        replays: Sequence[tuple[RobotSpec, ReplayReader]],
        *,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        self._canonical_space = canonical_space
        self._arms = [(canonical_space.arm(robot), replay) for robot, replay in replays]
        kinds = {" + ".join(_kinds(robot)) for robot, _ in replays}
        if len(kinds) != 1:
            raise SpecMismatch(
                f"one policy cannot have {' and '.join(sorted(kinds))} actions. Use arms with the same kinds of parts"
            )
        if shares is not None and {arm.name for arm, _ in self._arms} - shares.keys():
            raise UsageError(f"shares must name each of {', '.join(arm.name for arm, _ in self._arms)}")
        self._shares = shares

    def size(self, view: View) -> int:
        return sum(replay.size(view) for _, replay in self._arms)

    def sample(
        self, into: Mapping[str, Array], *, view: View, rng: np.random.Generator, window: Window | None = None
    ) -> None:
        window = window or Window()
        sizes = [replay.size(view) for _, replay in self._arms]
        if not sum(sizes):
            raise UsageError(f"replay view '{view.part}' is empty. Add episodes before sampling")
        weights = np.array(
            [
                size if self._shares is None else self._shares[arm.name] * (size > 0)
                for (arm, _), size in zip(self._arms, sizes, strict=True)
            ],
            np.float64,
        )
        counts = rng.multinomial(len(next(iter(into.values()))), weights / weights.sum())
        first = 0
        for (arm, replay), count in zip(self._arms, counts, strict=True):
            if count:
                rows = {name: array[first : first + count] for name, array in into.items()}
                self._sample(arm, replay, rows, view=view, rng=rng, window=window)
                first += count

    def _sample(
        self,
        arm: CanonicalArm,
        replay: ReplayReader,
        rows: Mapping[str, Array],
        *,
        view: View,
        rng: np.random.Generator,
        window: Window,
    ) -> None:
        """Sample one arm's rows in its own layout, then pad them."""
        own: dict[str, Array] = {}
        padded: dict[str, tuple[str, Array]] = {}
        for name, out in rows.items():
            side, _, key = name.partition("/")
            if name == EMBODIMENT:
                out[:] = arm.index
            elif name == "action_mask":
                out[:] = self._canonical_space.action_masks[arm.index]
            elif key == EMBODIMENT:
                out[:] = arm.one_hot
            elif name in _ACTIONS:
                own[name] = np.empty((*out.shape[:-1], len(arm.canonical_axes)), out.dtype)
                padded[name] = (name, own[name])
            elif side in ("observation", "next") and key.removesuffix("/mask") in self._canonical_space.sizes:
                base_key = key.removesuffix("/mask")
                if base_key not in arm.keys:  # this arm has no such observation
                    out[:] = 0
                    continue
                own_name = f"{side}/{arm.keys[base_key]}"
                if key != base_key:
                    own[f"{own_name}/mask"] = out
                else:
                    own[own_name] = np.empty(
                        (*out.shape[:-1], int(self._canonical_space.observation_masks[key][arm.index].sum())),
                        out.dtype,
                    )
                    padded[name] = (key, own[own_name])
            else:
                own[name] = out
        history = {arm.keys[key]: num for key, num in window.history.items() if key in arm.keys}
        images = {key: num for key, num in window.history.items() if key not in self._canonical_space.sizes}
        replay.sample(own, view=view, rng=rng, window=replace(window, history={**history, **images}))
        for name, (key, values) in padded.items():
            rows[name][:] = arm.pad_actions(values) if name in _ACTIONS else arm.pad_observation(key, values)


def _kinds(robot: RobotSpec) -> list[str]:
    """The kinds of a robot's action parts. A gripper does not count: arms with and without one may share a policy."""
    kinds = {part.kind for part in robot.parts}
    return sorted(kinds - {"gripper"} or kinds)
