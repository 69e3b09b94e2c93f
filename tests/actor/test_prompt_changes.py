"""A task whose prompt changes in the middle of an episode: what the policy gets, what is executed, what is recorded.

Stage 0 is steps 0 to 3, stage 1 is steps 4 to 7, and so on. Chunks have 8 actions.
"""

from dataclasses import replace

import numpy as np
import pytest

from dovetail.actor.actors import NaiveActor, RtcActor, SequentialActor, SoftActor
from dovetail.actor.board import Board, BoardLayout
from dovetail.actor.modes import Naive, Rtc, Sequential, Soft
from dovetail.core.errors import UsageError
from dovetail.core.prompts import decode_prompt
from dovetail.core.specs import BaseSpec
from dovetail.core.types import Observation, PromptChange
from dovetail.testing.staged_task import StagedTask, StagedTaskConfig
from support.acting import SPEC, ChunkPolicy, FakeWorkcell, ScriptedInference, chunk, make_planner, order
from support.small_episodes import ROBOT

OPEN, PUT, CLOSE = (
    "open the lid",
    "put the cube in",
    "close the lid " * 40,
)  # the last one is longer than 256 bytes
CHANGES = (PromptChange(step=4, prompt=PUT), PromptChange(step=8, prompt=CLOSE))


def staged(**settings):
    config = StagedTaskConfig(stages=(OPEN, PUT, CLOSE), max_steps=12, tolerance=0.0, **settings)
    return FakeWorkcell(task=StagedTask(config))


def prompts_seen(policy):
    return [decode_prompt(seen["prompt"][0]) for seen in policy.observations]


@pytest.mark.parametrize("kind", [SequentialActor, NaiveActor, RtcActor, SoftActor])
def test_new_prompt_requests_a_chunk_at_its_first_step(kind):
    """Without a change, a chunk of 8 actions would last to step 8."""
    cell = staged()
    policy = ChunkPolicy(cell.raw.spec, horizon=8, guidable=True, prompted=True)
    actor = cell.actor(policy, kind=kind, execution_horizon=8)
    for _ in range(2):  # the second episode begins with the first prompt again
        episode = actor.run(order())
        assert (episode.prompt, episode.prompt_changes) == (OPEN, CHANGES)
        assert episode.column("chunk_id").tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert prompts_seen(policy) == [OPEN, PUT, CLOSE]
        policy.observations.clear()


@pytest.mark.parametrize("kind", [NaiveActor, RtcActor])
def test_old_chunk_is_executed_until_the_new_one_is_ready(kind):
    """Answers take 3 ticks. Chunk 1 of the second prompt is requested at step 4 and executed from step 7 on. The third
    prompt begins at step 8, so chunk 2 is executed from step 11 on."""
    cell = staged()
    policy = ChunkPolicy(cell.raw.spec, horizon=8, guidable=True, prompted=True)
    episode = cell.actor(policy, kind=kind, execution_horizon=8, simulated_delay_ticks=3).run(order())
    assert episode.column("chunk_id").tolist() == [-1] * 3 + [0] * 4 + [1] * 4 + [2]
    assert prompts_seen(policy) == [OPEN, PUT, CLOSE]


def test_sequential_actor_holds_until_the_new_chunk_is_ready():
    cell = staged()
    policy = ChunkPolicy(cell.raw.spec, horizon=8, prompted=True)
    episode = cell.actor(policy, kind=SequentialActor, simulated_delay_ticks=2).run(order())
    assert episode.column("chunk_id").tolist() == [-1, -1, 0, 0] + [-1, -1, 1, 1] + [-1, -1, 2, 2]


def test_chunk_that_was_requested_with_the_old_prompt_is_not_used():
    """Answers take 3 ticks, but the prompt changes at steps 2 and 4: the arm holds until step 7."""
    cell = staged(steps_per_stage=2)
    policy = ChunkPolicy(cell.raw.spec, horizon=8, prompted=True)
    episode = cell.actor(policy, kind=NaiveActor, simulated_delay_ticks=3).run(order())
    assert episode.column("chunk_id").tolist()[:8] == [-1] * 7 + [0]
    assert prompts_seen(policy)[:3] == [OPEN, PUT, CLOSE]


def test_changes_are_recorded_once_in_whatever_pieces_the_episode_is_written():
    cell = staged()
    policy = ChunkPolicy(cell.raw.spec, horizon=8, prompted=True)
    pieces = cell.actor(policy, flush_every_s=0.05).run(order())
    assert len(pieces.segments) > 3
    assert pieces.prompt_changes == CHANGES
    for segment in pieces.segments:
        assert all(
            segment.first <= change.step < segment.first + len(segment) for change in segment.prompt_changes
        )


def test_task_that_changes_its_prompt_too_often_is_refused():
    stages = tuple(f"stage {number}" for number in range(200))
    task = StagedTask(StagedTaskConfig(stages=stages, steps_per_stage=1, max_steps=150, tolerance=0.0))
    cell = FakeWorkcell(task=task)
    with pytest.raises(UsageError, match="changed its prompt more than 100 times in one episode"):
        cell.actor(ChunkPolicy(cell.raw.spec, prompted=True)).run(order())
    assert cell.num_stops > 0


# ---- planner: H = 8 and s = 4, chunk n has the value 100 n + i at index i


def values(planner, ticks):
    return [None if (due := planner.action_for(tick)) is None else float(due.action[0]) for tick in ticks]


@pytest.mark.parametrize("mode", [Naive(), Rtc(), Soft()])
def test_replan_requests_at_once_and_keeps_acting(mode):
    inference = ScriptedInference()
    planner = make_planner(mode, inference)
    values(planner, [0])
    inference.set_answer(chunk(1))
    assert values(planner, [1, 2]) == [101, 102]
    planner.replan(3)
    assert values(planner, [3, 4]) == [103, 104]
    assert [request.row for request in inference.requests] == [0, 3]  # without it, at 4
    planner.replan(5)  # the pending request has the wrong prompt
    assert values(planner, [5, 6, 7, 8]) == [105, 106, 107, None]  # the old chunk is used up, as without a change
    assert [request.row for request in inference.requests] == [0, 3, 5]


def test_replan_in_sequential_mode_drops_the_plan():
    inference = ScriptedInference()
    planner = make_planner(Sequential(), inference)
    values(planner, [0])
    inference.set_answer(chunk(1))
    assert values(planner, [1]) == [100]
    planner.replan(2)
    assert values(planner, [2, 3]) == [None, None]
    inference.set_answer(chunk(2))
    assert values(planner, [4]) == [200]


def test_base_is_asked_again_after_a_change_of_the_prompt():
    told = []
    spec = replace(SPEC, horizon=2, base=BaseSpec(horizon=8, every=6))
    inference = ScriptedInference()
    planner = make_planner(
        Sequential(), inference, spec=spec, execution_horizon=2, propose=lambda row, known, _: told.append(known)
    )
    planner._base = (chunk(9), 0)
    planner.action_for(1)
    assert np.isfinite(told[-1]).all()
    planner.replan(2)
    planner.action_for(2)
    assert np.isnan(told[-1]).all()


# ---- board


def test_each_row_keeps_its_own_prompt():
    board = Board(BoardLayout.of(ROBOT.with_only(("state",)), extras={}, horizon=2, num_rows=6))
    spec = ChunkPolicy(ROBOT.with_only(("state",)), prompted=True).spec

    def prompt_at(row):
        return decode_prompt(board.inputs(spec, row=row, first=0)["prompt"][0])

    def observe():
        return board.observe(Observation(time_ns=0, values={"state": np.zeros(3, np.float32)}))

    board.begin(prompt=OPEN)
    before, after = observe(), observe()
    assert not board.change_prompt(after, OPEN)
    assert board.change_prompt(after, CLOSE)
    later = observe()
    assert [prompt_at(row) for row in (before, after, later)] == [OPEN, CLOSE, CLOSE]
    assert board.prompt == CLOSE  # what the console shows
    board.begin(prompt=PUT)
    assert prompt_at(observe()) == PUT
