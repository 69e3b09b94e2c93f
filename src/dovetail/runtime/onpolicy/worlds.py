"""N simulated robots with the same task in one process. All make one step at a time, each behind its safety filter."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.figures import add_metrics
from dovetail.core.prompts import PROMPT_BYTES, encode_prompt
from dovetail.core.specs import ArraySpec
from dovetail.core.streams import stream
from dovetail.core.types import (
    ActContext,
    ActionChunk,
    Array,
    Observation,
    Outcome,
    Source,
    Step,
    Verdict,
    WeightSnapshot,
)
from dovetail.learn.rollouts import RolloutBuffer
from dovetail.policies.trainable import ValuedPolicy
from dovetail.runs.assembly.workcell import Workcell
from dovetail.runtime.onpolicy.recording import Recording

__all__ = ["Collector", "World"]

PROMPT = "prompt"


class World:
    """One workcell, reset after each episode. The start of its k-th episode depends only on k and the seed."""

    def __init__(
        self,
        workcell: Workcell,
        *,
        number: int,
        num_worlds: int,
        seed: int,
        num_episodes: int = 0,
        recording: Recording | None = None,
    ) -> None:
        if not isinstance(workcell.clock, SimulatedClock):
            raise UsageError(
                f"on-policy learning needs a simulated robot, but '{workcell.robot.spec.name}' is not simulated"
            )
        self._workcell, self._number, self._num_worlds, self._seed = workcell, number, num_worlds, seed
        self._period_ns = round(NS_PER_S / workcell.robot.spec.control_hz)
        self.num_episodes = num_episodes  # started
        # of the current episode:
        self.num_steps = 0
        self.rewards: dict[str, float] = defaultdict(float)
        self.metrics: dict[str, float] = {}  # as figures show them: see `add_metrics`
        self.at_limit = 0.0  # sum over the steps of the share of action values at a limit
        self._prompt = encode_prompt("")
        self._sent: list[Array] = []
        self._episode_recording = recording
        self._recording: Recording | None = None  # of the current episode
        self._observation: Observation | None = None

    @property
    def sent(self) -> Array:
        """Actions of the current episode, [T, A]. With the episode's number they determine its state."""
        return np.array(self._sent, np.float32).reshape(len(self._sent), *self._workcell.robot.spec.action.shape)

    @property
    def has_success(self) -> bool:
        return self._workcell.task.spec.has_success

    def inputs(self, observation: Observation) -> dict[str, Array]:
        """What a policy may read: the observation, and the prompt of the current episode."""
        return {**observation.values, PROMPT: self._prompt}

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
        self._prompt = encode_prompt(workcell.task.prompt)
        self._observation = workcell.robot.observe()
        return self._observation

    def step(
        self, action: Array, *, version: int = 0, extras: Mapping[str, Array] = MappingProxyType({})
    ) -> tuple[Observation, Verdict]:
        """`version` and `extras` of the policy are recorded."""
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
                chunk_id=self.num_steps - 1,
                chunk_index=0,
                verdict=verdict,
                extras={**probed, **workcell.robot.safety_extras(), **extras},
            )
            self._recording.add(step)
            if verdict.outcome is not None:
                self._recording.end(verdict.outcome, last=observation, has_success=self.has_success)
        self._observation = observation
        return observation, verdict

    def close(self) -> None:
        self._workcell.close()


class Collector:
    """`collect()` returns the next rollout. Only `load` changes the policy.

    In addition to the arrays of a RolloutBuffer, a rollout has one value per episode that ended in it (`episode/success`,
    `episode/length`, `episode/at_limit`, `episode/reward/<component>`, `episode/metric/<name>`) and the state of the worlds
    for a resume: `worlds/num_episodes` [N] that each has started, `worlds/num_sent` [N], the number of actions in the
    current one, and these actions, world after world, `worlds/sent` [sum(num_sent), A].
    """

    def __init__(
        self,
        workcells: Sequence[Workcell],
        *,
        policy: ValuedPolicy,
        num_steps: int,
        seed: int,
        num_rollouts: int = 0,
        worlds: Mapping[str, Array] = MappingProxyType({}),
        recordings: Sequence[Recording] = (),
    ) -> None:
        self._policy, self._seed = policy, seed
        self.num_rollouts = num_rollouts  # so far
        started = worlds.get("worlds/num_episodes", np.zeros(len(workcells), np.int64))
        self._resume_with: Sequence[Array] = ()  # actions of each world's unfinished episode
        if "worlds/sent" in worlds:
            self._resume_with = np.split(worlds["worlds/sent"], np.cumsum(worlds["worlds/num_sent"])[:-1])
        self._worlds = [
            World(
                workcell,
                number=i,
                num_worlds=len(workcells),
                seed=seed,
                num_episodes=int(started[i]),
                recording=recordings[i] if recordings else None,
            )
            for i, workcell in enumerate(workcells)
        ]
        spec = policy.spec
        prompt = {PROMPT: ArraySpec(shape=(PROMPT_BYTES,), dtype="uint8")} if spec.prompted else {}
        self._inputs: Mapping[str, ArraySpec] = {**spec.observation, **prompt}
        self._buffer = RolloutBuffer(
            num_envs=len(workcells),
            num_steps=num_steps,
            observation=self._inputs,
            num_drawn=policy.num_drawn,
        )
        self._observations: list[Mapping[str, Array]] = []  # the newest of each world
        self._ended: dict[str, list[float]] = defaultdict(list)

    def load(self, weights: Mapping[str, Mapping[str, Array]], *, version: int) -> None:
        """Act with these weights from the next tick on."""
        self._policy.load(WeightSnapshot(version=version, components=weights, hashes={}))

    def collect(self, *, before_tick: Callable[[], None] = lambda: None) -> dict[str, Array]:
        worlds, buffer = self._worlds, self._buffer
        rng = stream(self._seed, "practice/policy", self.num_rollouts)
        if not self._observations and self._resume_with:
            self._observations = [
                world.inputs(world.replay(sent)) for world, sent in zip(worlds, self._resume_with, strict=True)
            ]
        elif not self._observations:
            self._observations = [world.inputs(world.reset()) for world in worlds]
        for t in range(buffer.num_steps):
            before_tick()
            observations = self._stacked()
            chunk = self._policy.act(observations, ActContext(seed=int(rng.integers(2**63))))
            rewards = np.zeros(len(worlds), np.float32)
            terminated = np.zeros(len(worlds), np.bool_)
            for n, world in enumerate(worlds):
                observation, verdict = world.step(
                    chunk.actions[n, 0], version=chunk.policy_version, extras=_of_world(chunk, n)
                )
                rewards[n] = verdict.reward
                terminated[n] = verdict.outcome in (Outcome.SUCCESS, Outcome.FAILURE)
                if verdict.outcome is Outcome.TIMEOUT:
                    buffer.add_truncation(n, t, world.inputs(observation))  # before the reset replaces it
                if verdict.outcome is not None:
                    self._add_ended(world, verdict.outcome)
                    observation = world.reset()
                self._observations[n] = world.inputs(observation)
            buffer.add_observations(t, observations)
            buffer.add_step(
                t,
                drawn=chunk.extras["drawn"],
                log_prob=chunk.extras["log_prob"],
                version=chunk.policy_version,
                reward=rewards,
                terminated=terminated,
            )
        buffer.add_observations(buffer.num_steps, self._stacked())
        self.num_rollouts += 1
        return {**buffer.take_arrays(), **self._summary()}

    def close(self) -> None:
        for world in self._worlds:
            world.close()

    def _stacked(self) -> dict[str, Array]:
        return {key: np.stack([values[key] for values in self._observations]) for key in self._inputs}

    def _add_ended(self, world: World, outcome: Outcome) -> None:
        success = outcome.success(has_success=world.has_success)
        self._ended["success"].append(math.nan if success is None else float(success))
        self._ended["length"].append(float(world.num_steps))
        self._ended["at_limit"].append(world.at_limit / world.num_steps)
        for name, total in world.rewards.items():
            self._ended[f"reward/{name}"].append(total)
        for name, value in world.metrics.items():
            self._ended[f"metric/{name}"].append(value)

    def _summary(self) -> dict[str, Array]:
        ended = {f"episode/{name}": np.array(values, np.float32) for name, values in self._ended.items()}
        self._ended.clear()
        sent = [world.sent for world in self._worlds]
        return {
            **ended,
            "worlds/num_episodes": np.array([world.num_episodes for world in self._worlds], np.int64),
            "worlds/num_sent": np.array([len(actions) for actions in sent], np.int64),
            "worlds/sent": np.concatenate(sent),
        }


def _of_world(chunk: ActionChunk, n: int) -> dict[str, Array]:
    return {name: values[n] for name, values in chunk.extras.items()}
