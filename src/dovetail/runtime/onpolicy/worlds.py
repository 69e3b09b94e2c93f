"""Simulated robots with the same task, each behind its safety filter.

worlds = Worlds(workcells, spec=policy.spec, numbers=[0, 1], num_worlds=4, seed=0)
inputs = worlds.start()["observation/goal"]      # [2, ...]
result = worlds.step(actions, gamma=0.99)        # actions [2, E, A]: each world executes E actions or ends its episode
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from dovetail.actor.episode_prompt import next_prompt
from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.errors import CheckpointError, FailureError, UsageError
from dovetail.core.figures import add_metrics
from dovetail.core.images import resize_images
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import PolicySpec
from dovetail.core.streams import stream
from dovetail.core.types import Array, Observation, Outcome, PromptChange, Source, Step, Verdict
from dovetail.policies.inputs import History
from dovetail.runs.assembly.workcell import Workcell
from dovetail.runtime.onpolicy.recording import Recording

__all__ = ["World", "Worlds", "check_worlds", "stack_rows"]

PROMPT = "prompt"


def check_worlds(worlds: Mapping[str, Array], *, num_worlds: int) -> None:
    """Raise CheckpointError unless a saved state of worlds fits. A checkpoint may come from elsewhere."""
    if not worlds:
        return
    counts = {
        name: worlds.get(f"worlds/{name}", np.zeros(num_worlds, np.int64)) for name in ("num_episodes", "num_sent")
    }
    for name, values in counts.items():
        if values.shape != (num_worlds,) or values.dtype.kind not in "iu" or (values < 0).any():
            raise CheckpointError(f"the checkpoint's worlds/{name} does not belong to {num_worlds} worlds")
    if "worlds/sent" in worlds:
        sent = worlds["worlds/sent"]
        if sent.dtype.kind != "f" or sent.ndim != 2 or len(sent) != sum(counts["num_sent"].tolist()):
            raise CheckpointError("the checkpoint's worlds/sent are not the actions of its unfinished episodes")


class World:
    """One workcell, reset after each episode. The start of its k-th episode depends only on k and the seed."""

    def __init__(
        self,
        workcell: Workcell,
        *,
        spec: PolicySpec,
        number: int,
        num_worlds: int,
        seed: int,
        num_episodes: int = 0,
        recording: Recording | None = None,
    ) -> None:
        """`spec` is of the policy: its inputs, their history and the size of its images."""
        if not isinstance(workcell.clock, SimulatedClock):
            raise UsageError(
                f"on-policy learning needs a simulated robot, but '{workcell.robot.spec.name}' is not simulated"
            )
        self._workcell, self._number, self._num_worlds, self._seed = workcell, number, num_worlds, seed
        self._spec, self._history = spec, History(spec)
        self._period_ns = round(NS_PER_S / workcell.robot.spec.control_hz)
        self.num_episodes = num_episodes  # started
        # of the current episode:
        self.num_steps = 0
        self.rewards: dict[str, float] = defaultdict(float)
        self.metrics: dict[str, float] = {}  # as figures show them: see `add_metrics`
        self.at_limit = 0.0  # sum over the steps of the share of action values at a limit
        self._prompt = ""
        self._encoded_prompt = encode_prompt("")
        self._sent: list[Array] = []
        self._episode_recording = recording
        self._recording: Recording | None = None  # of the current episode
        self._observation: Observation | None = None
        self._inputs: dict[str, Array] = {}

    @property
    def sent(self) -> Array:
        """Actions of the current episode, [T, A]. With the episode's number they determine its state."""
        return np.array(self._sent, np.float32).reshape(len(self._sent), *self._workcell.robot.spec.action.shape)

    @property
    def has_success(self) -> bool:
        return self._workcell.task.spec.has_success

    @property
    def inputs(self) -> dict[str, Array]:
        """What the policy reads now: the observations with their history, and the prompt of this step."""
        prompt = {PROMPT: self._encoded_prompt} if self._spec.prompted else {}
        return {**self._inputs, **prompt}

    def replay(self, actions: Array) -> Observation:
        """Restore an unfinished episode: start it again and send these actions. It is not recorded."""
        self.num_episodes -= 1
        observation = self.reset(record=False)
        for action in actions:
            observation, _ = self.step(action)
        return observation

    def reset(self, *, record: bool = True) -> Observation:
        workcell = self._workcell
        episode = self._number + self._num_worlds * self.num_episodes
        workcell.task.reset(workcell.robot, rng=stream(self._seed, "practice/reset", episode))
        workcell.robot.reset()
        self.num_episodes += 1
        self.num_steps = 0
        self.rewards.clear()
        self.metrics.clear()
        self.at_limit = 0.0
        self._sent.clear()
        self._recording = self._episode_recording if record else None
        if self._recording is not None:
            self._recording.begin(episode)
        self._use_prompt(workcell.task.prompt)
        self._history = History(self._spec)
        return self._see(workcell.robot.observe())

    def _use_prompt(self, prompt: str) -> None:
        self._prompt, self._encoded_prompt = prompt, encode_prompt(prompt)

    def _see(self, observation: Observation) -> Observation:
        values = {key: observation.values[key] for key in self._spec.observation}
        for key, spec in self._spec.observation.items():
            if spec.is_picture:
                values[key] = resize_images(values[key], spec)
        self._inputs = {key: row[0] for key, row in self._history.add(values).items()}
        self._observation = observation
        return observation

    def step(
        self,
        action: Array,
        *,
        version: int = 0,
        chunk_index: int = 0,
        extras: Mapping[str, Array] = MappingProxyType({}),
    ) -> tuple[Observation, Verdict]:
        """`version` and `extras` of the policy are recorded, and the action's place in its chunk."""
        workcell, before = self._workcell, self._observation
        probed = workcell.probe() if self._recording is not None else {}
        executed = workcell.robot.send(action)
        self._sent.append(action)
        workcell.clock.sleep_until(workcell.clock.now_ns() + self._period_ns)
        observation = workcell.robot.observe()
        self.num_steps += 1
        self.at_limit += float(workcell.robot.spec.action.at_limits(action).mean())
        verdict = workcell.task.judge(workcell.robot, observation, num_steps=self.num_steps)
        if verdict.outcome is Outcome.ABORTED:
            raise FailureError(f"task '{workcell.task.spec.name}' aborted an episode of world {self._number}")
        for name, reward in verdict.rewards.items():
            self.rewards[name] += reward
        add_metrics(self.metrics, verdict.metrics)
        if self._recording is not None:
            assert before is not None, "call reset() first"
            step = Step(
                observation=before,
                proposed=action,
                executed=executed,
                source=Source.POLICY,
                policy_version=version,
                chunk_id=self.num_steps - 1 - chunk_index,  # the step at which it begins
                chunk_index=chunk_index,
                verdict=verdict,
                extras={**probed, **workcell.robot.safety_extras(), **extras},
            )
            self._recording.add(step)
            if verdict.outcome is not None:
                self._recording.end(verdict.outcome, last=observation, has_success=self.has_success)
        prompt = next_prompt(workcell.task)
        if prompt is not None and prompt != self._prompt:
            self._use_prompt(prompt)
            if self._recording is not None and verdict.outcome is None:
                self._recording.change_prompt(PromptChange(step=self.num_steps, prompt=prompt))
        return self._see(observation), verdict

    def close(self) -> None:
        self._workcell.close()


class Worlds:
    """Some of the worlds of a run, one after another in this process. All results are arrays, so that they can be sent.

    The arrays of a step are one row per world: `observation/<key>` as the policy reads it next, `reward`, the sum of the
    executed actions' rewards with their discounts, `num_executed` and `terminated`. `final/<key>` [K, ...] are the last
    inputs of truncated episodes, `final_at` [K] their rows. `ended/<name>` has one value per episode that ended.
    """

    def __init__(
        self,
        workcells: Sequence[Workcell],
        *,
        spec: PolicySpec,
        numbers: Sequence[int],
        num_worlds: int,
        seed: int,
        worlds: Mapping[str, Array] = MappingProxyType({}),
        recordings: Sequence[Recording] = (),
    ) -> None:
        """`numbers` are those of these worlds among all of the run. `worlds` is their saved state, empty for new ones."""
        started = worlds.get("worlds/num_episodes", np.zeros(len(workcells), np.int64))
        self._resume_with: Sequence[Array] = ()  # actions of each world's unfinished episode
        if "worlds/sent" in worlds:
            self._resume_with = np.split(worlds["worlds/sent"], np.cumsum(worlds["worlds/num_sent"])[:-1])
        self._worlds = [
            World(
                workcell,
                spec=spec,
                number=number,
                num_worlds=num_worlds,
                seed=seed,
                num_episodes=int(started[i]),
                recording=recordings[i] if recordings else None,
            )
            for i, (workcell, number) in enumerate(zip(workcells, numbers, strict=True))
        ]
        self._ended: dict[str, list[float]] = defaultdict(list)

    def start(self) -> dict[str, Array]:
        """Start an episode in each world, or restore the unfinished ones. Returns the policy's inputs."""
        if self._resume_with:
            for world, sent in zip(self._worlds, self._resume_with, strict=True):
                world.replay(sent)
        else:
            for world in self._worlds:
                world.reset()
        return _named("observation", [world.inputs for world in self._worlds])

    def step(
        self,
        actions: Array,
        *,
        gamma: float,
        version: int = 0,
        extras: Mapping[str, Array] = MappingProxyType({}),
    ) -> dict[str, Array]:
        """Execute these actions, [N, E, A]. An episode that ends is followed by the start of the next one, and the rest of
        its actions are dropped."""
        num_worlds = len(self._worlds)
        rewards, num_executed = np.zeros(num_worlds, np.float32), np.zeros(num_worlds, np.int64)
        terminated, finals = np.zeros(num_worlds, np.bool_), dict[int, Mapping[str, Array]]()
        for n, world in enumerate(self._worlds):
            outcome, discount = None, 1.0
            recorded = {name: values[n] for name, values in extras.items()}
            for index, action in enumerate(actions[n]):
                _, verdict = world.step(action, version=version, chunk_index=index, extras=recorded)
                rewards[n] += discount * verdict.reward
                discount *= gamma
                num_executed[n] += 1
                outcome = verdict.outcome
                if outcome is not None:
                    break
            terminated[n] = outcome in (Outcome.SUCCESS, Outcome.FAILURE)
            if outcome is Outcome.TIMEOUT:
                finals[n] = world.inputs  # before the reset replaces it
            if outcome is not None:
                self._add_ended(world, outcome)
                world.reset()
        ended = {f"ended/{name}": np.array(values, np.float32) for name, values in self._ended.items()}
        self._ended.clear()
        return {
            **_named("observation", [world.inputs for world in self._worlds]),
            **_named("final", list(finals.values())),
            **ended,
            "final_at": np.array(list(finals), np.int64),
            "reward": rewards,
            "num_executed": num_executed,
            "terminated": terminated,
        }

    def state(self) -> dict[str, Array]:
        """For a resume: `worlds/num_episodes` [N] that each has started, `worlds/num_sent` [N], the number of actions in the
        current one, and these actions, world after world, `worlds/sent` [sum(num_sent), A]."""
        sent = [world.sent for world in self._worlds]
        return {
            "worlds/num_episodes": np.array([world.num_episodes for world in self._worlds], np.int64),
            "worlds/num_sent": np.array([len(actions) for actions in sent], np.int64),
            "worlds/sent": np.concatenate(sent),
        }

    def close(self) -> None:
        for world in self._worlds:
            world.close()

    def _add_ended(self, world: World, outcome: Outcome) -> None:
        success = outcome.success(has_success=world.has_success)
        self._ended["success"].append(math.nan if success is None else float(success))
        self._ended["length"].append(float(world.num_steps))
        self._ended["at_limit"].append(world.at_limit / world.num_steps)
        for name, total in world.rewards.items():
            self._ended[f"reward/{name}"].append(total)
        for name, value in world.metrics.items():
            self._ended[f"metric/{name}"].append(value)


def stack_rows(rows: Sequence[Array]) -> Array:
    """[N, ...]. Prompts of several widths are padded to the widest."""
    if len({row.shape for row in rows}) > 1:
        width = max(len(row) for row in rows)
        rows = [np.pad(row, (0, width - len(row))) for row in rows]
    return np.stack(rows)


def _named(name: str, inputs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    if not inputs:
        return {}
    return {f"{name}/{key}": stack_rows([row[key] for row in inputs]) for key in inputs[0]}
