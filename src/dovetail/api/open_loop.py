"""Check a policy open loop: give it recorded observations, and compare its chunks with the recorded actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.api.evaluation import arms_of
from dovetail.api.names import RUNS_DIR
from dovetail.api.opened_run import Run
from dovetail.api.recorded_data import DataReader, RecordedData
from dovetail.api.weights import WeightSource, brings_weights, find_weights
from dovetail.config.load import Overrides, load_saved
from dovetail.config.schema import RunConfig
from dovetail.core.errors import Interrupted, SpecMismatch, UsageError
from dovetail.core.specs import PolicySpec, RobotSpec, match
from dovetail.core.types import Array

if TYPE_CHECKING:
    from dovetail.core.contracts import Policy
    from dovetail.runs.open_loop import OpenLoopErrors, Predicted

__all__ = ["OpenLoop", "evaluate_open_loop"]

MAX_EPISODES = 20  # unless a number is given

OnProgress = Callable[[str, float, int], None]
"""Called often with what happens, the number of episodes done (with a fraction) and the number of episodes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """How far the chunks of a policy are from recorded actions. `errors` counts steps of the policy."""

    weights: str  # for example `weights version 9`
    run: Path
    dataset: Path
    policy: PolicySpec
    steps_per_s: float
    every: int  # steps from one chunk to the next
    errors: OpenLoopErrors
    episodes: tuple[Predicted, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        return self.policy.action.names or tuple(f"axis{i}" for i in range(self.policy.action.shape[0]))

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each axis; empty where the robot does not state it."""
        found: list[str] = []
        for part in self.policy.parts:
            first, _, second = part.unit.partition("+")
            split = [first] * 3 + [second] * 3 if second and part.num_axes == 6 else [part.unit] * part.num_axes
            found += [""] * part.num_axes if part.derived_from else split
        return tuple(found) or ("",) * len(self.axes)

    @property
    def relative(self) -> float:
        """The error relative to the spread of the recorded actions, as the mean of all axes that move in the data."""
        moving = self.errors.relative[np.isfinite(self.errors.relative)]
        return float(moving.mean()) if len(moving) else float("nan")

    def to_json(self) -> dict[str, Any]:
        errors = self.errors
        names = ("mae", "rmse", "spread", "relative")
        columns = [(name, _plain(getattr(errors, name))) for name in names]
        return {
            "weights": self.weights,
            "dataset": str(self.dataset),
            "policy": self.policy.name,
            "steps_per_s": self.steps_per_s,
            "every": self.every,
            "num_chunks": sum(len(one.starts) for one in self.episodes),
            "relative": _plain(np.array(self.relative)),
            "axes": [
                {"name": name, "unit": unit, **{key: values[i] for key, values in columns}}
                for i, (name, unit) in enumerate(zip(self.axes, self.units, strict=True))
            ],
            "steps": [
                {"step": step + 1, "num_compared": int(num), "mae": mae, "rmse": rmse, "relative": relative}
                for step, (num, mae, rmse, relative) in enumerate(
                    zip(
                        errors.num_compared,
                        _plain(errors.mae_by_step),
                        _plain(errors.rmse_by_step),
                        _plain(errors.relative_by_step),
                        strict=True,
                    )
                )
            ],
            "episodes": [
                {"id": one.episode_id, "prompt": one.prompt, "num_steps": len(one.recorded)}
                for one in self.episodes
            ],
        }

    def save(self, folder: Path | None = None) -> Path:
        """Write errors.json and the plots. The default folder is `open_loop/DATASET` in the run. Returns the folder."""
        from dovetail.reports.open_loop import write_open_loop

        folder = folder or self.run / "open_loop" / self.dataset.absolute().name
        title = f"{self.weights} on {self.dataset.absolute().name}"
        write_open_loop(folder, self.to_json(), self.episodes, self.errors, title=title)
        return folder


def evaluate_open_loop(
    run: Run | str | Path,
    dataset: Run | str | Path,
    overrides: Overrides = (),
    *,
    num_episodes: int | None = None,
    every: int | None = None,
    rename: Mapping[str, str] | None = None,
    ignore_names: bool = False,
    version: int | None = None,
    best: bool = False,
    runs_dir: Path | str = RUNS_DIR,
    on_progress: OnProgress = lambda what, done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> OpenLoop:
    """Compare a run's policy, or the one in `overrides`, with recorded actions, without a robot.

    `dataset` is a LeRobot dataset (v3.0 or v2.1) or a run; of a run, its demonstrations, or all episodes if it has none.
    `rename` and `ignore_names` map a dataset to the robot as in an import. A chunk is computed every `every` steps; by
    default, when the last one is over. By default, at most 20 episodes are used, spread evenly.
    """
    from dovetail.runs.assembly.policy_rate import policy_robot, refuse_other_rate, ticks_of_step
    from dovetail.runs.open_loop import OpenLoopErrors, predict

    target, data = (one.path if isinstance(one, Run) else one for one in (run, dataset))
    source = find_weights(target, version=version, best=best, runs_dir=Path(runs_dir))
    folder = source.folder
    config = load_saved(folder.path, overrides, quiet=True).config if overrides else folder.config
    refuse_other_rate(folder.config, config)
    on_progress("loading the policy", 0.0, 0)
    reader = DataReader(Path(data), runs_dir=Path(runs_dir), rename=rename or {}, ignore_names=ignore_names)
    config, robot, policy, recorded = _fitting_arm(source, config, reader)
    label = _load_weights(source, config, policy, robot)
    policy.warmup()
    ticks = ticks_of_step(config, robot)
    every = every or policy.spec.horizon
    total = min(num_episodes or MAX_EPISODES, len(recorded))
    found: list[Predicted] = []
    for number, index in enumerate(np.linspace(0, len(recorded) - 1, total).round().astype(int).tolist()):
        if should_stop():
            raise Interrupted
        on_progress("reading an episode", number, total)
        episode = recorded.episode(index)
        if len(episode) < ticks:
            continue

        def on_chunk(done: int, chunks: int, number: int = number) -> None:
            if should_stop():
                raise Interrupted
            on_progress("computing chunks", number + done / chunks, total)

        found.append(predict(policy, episode, ticks=ticks, every=every, on_chunk=on_chunk))
    if not found:
        raise UsageError(f"{reader.path} has no episode with at least one step of the policy")
    return OpenLoop(
        weights=label,
        run=folder.path,
        dataset=reader.path,
        policy=policy.spec,
        steps_per_s=policy_robot(config, robot).control_hz,
        every=every,
        errors=OpenLoopErrors.of(found, policy.spec),
        episodes=tuple(found),
    )


def _fitting_arm(
    source: WeightSource, config: RunConfig, reader: DataReader
) -> tuple[RunConfig, RobotSpec, Policy, RecordedData]:
    """Settings, robot and policy of the first arm that the dataset fits, and the dataset."""
    from dovetail.runs.assembly.policy_components import build_acting_policy
    from dovetail.runs.assembly.policy_rate import policy_robot

    problem: SpecMismatch | None = None
    for name, own in arms_of(config):
        robot = _robot(source, own, name)
        seen = policy_robot(own, robot)
        try:
            policy = build_acting_policy(
                own.policy, robot=seen, seed=own.run.seed, components=source.folder.components
            )
            match(seen, policy=policy.spec)
            return own, robot, policy, reader.open(own, robot, policy.spec)
        except SpecMismatch as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _robot(source: WeightSource, config: RunConfig, name: str | None) -> RobotSpec:
    from dovetail.api.policy import robot_and_prompt
    from dovetail.runs.assembly.build import build_assembly

    if name is None:
        return robot_and_prompt(source.folder, config)[0]
    assembly = build_assembly(config, name=name)  # the newest episode may be of another arm
    try:
        return assembly.robot.spec
    finally:
        assembly.close()


def _load_weights(source: WeightSource, config: RunConfig, policy: Policy, robot: RobotSpec) -> str:
    """Load the run's weights, unless the policy brings its own. Returns their name."""
    from dovetail.runs.assembly.policy_components import check_size
    from dovetail.runs.assembly.policy_rate import policy_robot

    if brings_weights(config, run=source.folder.config):
        return f"the {config.policy.type} policy"
    snapshot = source.snapshot()
    check_size(
        config.policy, robot=policy_robot(config, robot), snapshot=snapshot, components=source.folder.components
    )
    policy.load(snapshot)
    return source.label(snapshot)


def _plain(values: Array) -> Any:
    """Lists of numbers, with None for NaN: JSON has none."""
    found = np.asarray(values).astype(object)
    found[~np.isfinite(values)] = None
    return found.tolist()
