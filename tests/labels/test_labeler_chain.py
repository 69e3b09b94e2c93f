"""Decisions of a labeler chain compared with expected ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dovetail.core.errors import LabelError, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, Labels, Outcome
from dovetail.labels.chain import LabelerChain
from dovetail.labels.human import HumanLabeler
from dovetail.labels.outcome import OutcomeLabeler
from dovetail.labels.queue import Reason
from support.example_labels import labels

YES, NO = True, False


class FixedLabeler:
    """Always gives the same labels."""

    def __init__(self, name: str, success: bool, confidence: float) -> None:
        self._labels = labels(labeler=name, success=success, confidence=confidence)
        self.num_asked = 0

    def label(self, episode: Episode) -> Labels:
        self.num_asked += 1
        return self._labels


class SlowLabeler(FixedLabeler):
    max_concurrent = 2

    def __init__(self, name: str, success: bool, confidence: float, *, away: int = 0) -> None:
        super().__init__(name, success, confidence)
        self._away = away

    def label(self, episode: Episode) -> Labels:
        if self._away:
            self._away -= 1
            raise LabelError("server is away")
        return super().label(episode)


@pytest.fixture
def episode(make_episode: Callable[..., Episode]) -> Episode:
    return make_episode(Outcome.SUCCESS)


@pytest.mark.parametrize(
    ("cross_check", "answers", "person", "decided_by", "reasons", "num_asked"),
    [
        # the first confident labeler decides; the others are not asked
        (False, [(YES, 0.9), (NO, 1.0)], False, 0, [], [1, 0]),
        (False, [(YES, 0.8), (NO, 1.0)], True, 0, [], [1, 0]),  # 0.8 is enough
        (False, [(YES, 0.79), (NO, 0.9)], False, 1, [], [1, 1]),
        (False, [(NO, 0.5), (NO, 0.6)], False, None, ["uncertain"], [1, 1]),
        (False, [(NO, 0.5), (YES, 0.6)], True, None, ["uncertain"], [1, 1]),
        (False, [], True, None, ["new"], []),
        # all are asked, and must agree
        (True, [(YES, 0.9), (YES, 0.9)], False, 0, [], [1, 1]),
        (True, [(YES, 0.5), (YES, 0.9)], False, 1, [], [1, 1]),
        (True, [(YES, 0.9), (NO, 0.9)], False, None, ["disagreement"], [1, 1]),
        (True, [(YES, 0.9), (NO, 0.3)], False, None, ["disagreement"], [1, 1]),
        (True, [(YES, 0.3), (NO, 0.3)], True, None, ["disagreement"], [1, 1]),
        (True, [(YES, 0.3), (YES, 0.3)], True, None, ["uncertain"], [1, 1]),
        # a person is always asked; the decided labels are valid until then
        (True, [(YES, 0.9)], True, 0, ["new"], [1]),
    ],
)
def test_chain_decisions(
    episode: Episode,
    cross_check: bool,
    answers: list[tuple[bool, float]],
    person: bool,
    decided_by: int | None,
    reasons: list[str],
    num_asked: list[int],
) -> None:
    asked = [FixedLabeler(f"labeler {number}", *answer) for number, answer in enumerate(answers)]
    chain = LabelerChain([*asked, *([HumanLabeler()] if person else [])], cross_check=cross_check)
    chain_state = chain.ask(episode)
    assert chain_state.finished
    assert (chain_state.decided and chain_state.decided.labeler) == (
        None if decided_by is None else f"labeler {decided_by}"
    )
    assert chain_state.reasons == tuple(Reason(reason) for reason in reasons)
    assert [labeler.num_asked for labeler in asked] == num_asked
    assert len(chain_state.labels) == sum(num_asked)
    assert len(chain_state.opinions) == sum(num_asked) - (decided_by is not None)
    assert {opinion.priority for opinion in chain_state.opinions} <= {-1}
    if chain_state.decided is not None:
        assert chain_state.decided.priority == 0


def test_ask_stops_before_slow_labelers(episode: Episode) -> None:
    quick, slow, after = (
        FixedLabeler("quick", YES, 0.5),
        SlowLabeler("slow", NO, 0.6, away=2),
        FixedLabeler("after", NO, 0.9),
    )
    chain = LabelerChain([quick, slow, after])
    assert chain.max_concurrent == 2
    chain_state = chain.ask(episode)
    assert not chain_state.finished
    assert (quick.num_asked, slow.num_asked, after.num_asked) == (1, 0, 0)
    for _ in range(2):
        with pytest.raises(LabelError, match="server is away"):
            chain.resume(episode, chain_state)
    chain_state = chain.resume(episode, chain_state)
    assert chain_state.finished
    assert chain_state.decided is not None
    assert chain_state.decided.labeler == "after"
    assert [opinion.labeler for opinion in chain_state.opinions] == ["quick", "slow"]
    assert (quick.num_asked, slow.num_asked, after.num_asked) == (1, 1, 1)  # each asked once


def test_ask_finishes_if_fast_labeler_is_confident(episode: Episode) -> None:
    slow = SlowLabeler("slow", NO, 1.0)
    assert LabelerChain([OutcomeLabeler(), slow]).ask(episode).finished
    assert slow.num_asked == 0
    assert LabelerChain([OutcomeLabeler()]).max_concurrent is None


def test_human_labeler_must_be_last() -> None:
    with pytest.raises(UsageError, match="Move `human` to the end"):
        LabelerChain([HumanLabeler(), OutcomeLabeler()])


def test_check_refuses_robot_without_needed_camera(episode: Episode) -> None:
    """A labeler that needs an unrecorded key must not silently drop every episode."""

    class NeedsACamera(FixedLabeler):
        def check(self, robot: RobotSpec) -> None:
            raise UsageError(f"robot '{robot.name}' has no camera 'wrist'")

    with pytest.raises(UsageError, match="robot 'panda' has no camera 'wrist'"):
        LabelerChain([OutcomeLabeler(), NeedsACamera("camera", YES, 1.0)]).check(episode.robot)
