"""Helpers for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["TOY", "Cli", "Result"]

TOY = """\
# Peg insertion with budgets so small that nothing is learned.
task: peg_insertion
robot: sim
operator: scripted
policy: {type: gaussian_mlp, hidden: [16]}
algorithm: {type: rlpd, hidden: [16], batch_size: 16}
run: {demos: 2, env_steps: 30, eval_episodes: 2, untrained_episodes: 1, video_episodes: 1}
learner: {utd: 1, bc_updates: 20, warmup_updates: 20}
"""


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """stderr, checked to be one error line."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("error: ")
        return self.err


Cli = Callable[..., Result]
