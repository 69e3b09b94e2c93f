"""N simulated robots at the same task in one process, a tick at a time, each behind its own safety filter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.errors import FailureError, UsageError
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
from dovetail.learn.rollouts import Practice, RolloutBuffer
from dovetail.policies.trainable import ValuedPolicy
from dovetail.runs.assembly.workcell import Workcell
from dovetail.runtime.onpolicy.recording import Recording

__all__ = ["Collector", "World"]


class World:
    """One cell, reset whenever an episode ends. Its k-th episode begins alike whatever happened before it."""

    def __init__(
        self,
        cell: Workcell,
        *,
        number: int,
        num_worlds: int,
        seed: int,
        num_episodes: int = 0,
        recording: Recording | None = None,
    ) -> None:
        if not isinstance(cell.clock, SimulatedClock):
            raise UsageError(
                f"robot '{cell.robot.spec.name}' is not simulated: on-policy rollouts come from simulators only"
            )
        self._cell, self._number, self._num_worlds, self._seed = cell, number, num_worlds, seed
        self._period_ns = round(NS_PER_S / cell.robot.spec.control_hz)
        self.num_episodes = num_episodes  # begun
        self.num_steps = 0  # of the present one
        self.rewards: dict[str, float] = defaultdict(float)  # the same
        self.at_limit = 0.0  # the same, of its actions' numbers: how many steps' worth lay at a limit
        self._recording, self._records = recording, False
        self._seen: Observation | None = None
        self._sent: list[Array] = []  # in the present one

    @property
    def sent(self) -> Array:
        """The actions of the present episode, [T, A]: with its number they say all of where it stands."""
        return np.array(self._sent, np.float32).reshape(len(self._sent), *self._cell.robot.spec.action.shape)

    def go_on(self, actions: Array) -> Observation:
        """The present episode, as far as it had come: begun again, and these actions sent again. It is not recorded."""
        self.num_episodes -= 1
        observation = self.reset(records=False)
        for action in actions:
            observation, _ = self.step(action)
        return observation

    def reset(self, *, records: bool = True) -> Observation:
        cell = self._cell
        episode = self._number + self._num_worlds * self.num_episodes
        cell.task.reset(cell.robot, rng=stream(self._seed, "practice/reset", episode))
        cell.robot.reset()
        self.num_episodes += 1
        self.num_steps = 0
        self.rewards.clear()
        self.at_limit = 0.0
        self._sent.clear()
        self._records = records and self._recording is not None
        if self._recording is not None and self._records:
            self._recording.begin(episode)
        self._seen = cell.robot.observe()
        return self._seen

    def step(
        self, action: Array, *, version: int = 0, extras: Mapping[str, Array] = MappingProxyType({})
    ) -> tuple[Observation, Verdict]:
        """`version` and `extras` are the policy's, for the record."""
        cell, seen = self._cell, self._seen
        probed = cell.probe() if self._records else {}
        executed = cell.robot.send(action)
        self._sent.append(action)
        cell.clock.sleep_until(cell.clock.now_ns() + self._period_ns)
        observation = cell.robot.observe()
        self.num_steps += 1
        self.at_limit += float(cell.robot.spec.action.at_limits(action).mean())
        verdict = cell.task.judge(cell.robot, observation, num_steps=self.num_steps)
        if verdict.outcome is Outcome.ABORTED:
            raise FailureError(f"task '{cell.task.spec.name}' gave up an episode of world {self._number}")
        for name, reward in verdict.rewards.items():
            self.rewards[name] += reward
        if self._recording is not None and self._records:
            assert seen is not None, "reset() comes first"
            step = Step(
                observation=seen,
                proposed=action,
                executed=executed,
                source=Source.POLICY,
                policy_version=version,
                chunk_id=self.num_steps - 1,
                chunk_index=0,
                verdict=verdict,
                extras={**probed, **cell.robot.safety_extras(), **extras},
            )
            self._recording.add(step)
            if verdict.outcome is not None:
                self._recording.end(verdict.outcome, last=observation)
        self._seen = observation
        return observation, verdict

    def close(self) -> None:
        self._cell.close()


class Collector:
    """`collect()` gives the next rollout, with a policy of its own that only `load` changes.

    Beside the arrays of a RolloutBuffer come those of the episodes that ended in it, `episode/success`, `episode/length`,
    `episode/at_limit` (a share), `episode/reward/<component>`,
    and how it goes on when resumed: `worlds/num_episodes` [N] that each has begun, and what was sent in the present one,
    `worlds/num_sent` [N] and, world after world, `worlds/sent` [sum of them, A].
    """

    def __init__(
        self,
        cells: Sequence[Workcell],
        *,
        policy: ValuedPolicy,
        practice: Practice,
        seed: int,
        num_rollouts: int = 0,
        worlds: Mapping[str, Array] = MappingProxyType({}),
        recordings: Sequence[Recording] = (),
    ) -> None:
        self._policy, self._seed = policy, seed
        self.num_rollouts = num_rollouts  # collected
        begun = worlds.get("worlds/num_episodes", np.zeros(len(cells), np.int64))
        self._sent: Sequence[Array] = ()  # what each goes on with
        if "worlds/sent" in worlds:
            self._sent = np.split(worlds["worlds/sent"], np.cumsum(worlds["worlds/num_sent"])[:-1])
        self._worlds = [
            World(
                cell,
                number=i,
                num_worlds=len(cells),
                seed=seed,
                num_episodes=int(begun[i]),
                recording=recordings[i] if recordings else None,
            )
            for i, cell in enumerate(cells)
        ]
        spec = policy.spec
        self._buffer = RolloutBuffer(
            num_envs=len(cells),
            num_steps=practice.num_steps,
            observation=spec.observation,
            num_drawn=policy.num_drawn,
        )
        self._now: list[Mapping[str, Array]] = []  # what each world shows
        self._ended: dict[str, list[float]] = defaultdict(list)

    def load(self, weights: Mapping[str, Mapping[str, Array]], *, version: int) -> None:
        """Act with these from the next tick on."""
        self._policy.load(WeightSnapshot(version=version, components=weights, hashes={}))

    def collect(self, *, before_tick: Callable[[], None] = lambda: None) -> dict[str, Array]:
        worlds, buffer = self._worlds, self._buffer
        chance = stream(self._seed, "practice/policy", self.num_rollouts)
        if not self._now and self._sent:
            self._now = [world.go_on(sent).values for world, sent in zip(worlds, self._sent, strict=True)]
        elif not self._now:
            self._now = [world.reset().values for world in worlds]
        for t in range(buffer.num_steps):
            before_tick()
            seen = self._stacked()
            chunk = self._policy.act(seen, ActContext(seed=int(chance.integers(2**63))))
            rewards = np.zeros(len(worlds), np.float32)
            terminated = np.zeros(len(worlds), np.bool_)
            for n, world in enumerate(worlds):
                observation, verdict = world.step(
                    chunk.actions[n, 0], version=chunk.policy_version, extras=_of_world(chunk, n)
                )
                rewards[n] = verdict.reward
                terminated[n] = verdict.outcome in (Outcome.SUCCESS, Outcome.FAILURE)
                if verdict.outcome is Outcome.TIMEOUT:
                    buffer.cut(n, t, observation.values)  # before the reset puts another one in its place
                if verdict.outcome is not None:
                    self._note(world, verdict.outcome)
                    observation = world.reset()
                self._now[n] = observation.values
            buffer.see(t, seen)
            buffer.did(
                t,
                drawn=chunk.extras["drawn"],
                log_prob=chunk.extras["log_prob"],
                version=chunk.policy_version,
                reward=rewards,
                terminated=terminated,
            )
        buffer.see(buffer.num_steps, self._stacked())
        self.num_rollouts += 1
        return {**buffer.arrays(), **self._books()}

    def close(self) -> None:
        for world in self._worlds:
            world.close()

    def _stacked(self) -> dict[str, Array]:
        return {key: np.stack([values[key] for values in self._now]) for key in self._policy.spec.observation}

    def _note(self, world: World, outcome: Outcome) -> None:
        self._ended["success"].append(float(outcome is Outcome.SUCCESS))
        self._ended["length"].append(float(world.num_steps))
        self._ended["at_limit"].append(world.at_limit / world.num_steps)
        for name, total in world.rewards.items():
            self._ended[f"reward/{name}"].append(total)

    def _books(self) -> dict[str, Array]:
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
