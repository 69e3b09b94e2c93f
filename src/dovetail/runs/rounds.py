"""The rounds of a run with `run.distill_every`: learn a residual, distill it into its base, and begin again.

    learn `distill_every` steps -> a distillation is due -> the base is fine-tuned and compared
        not worse: a new run continues with the new base, and this one has a successor
        otherwise: this run learns on, until the next distillation is due

`rounds.json` in the run folder holds where the run stands, so a killed process continues there. `api/rounds.py` makes the
distillations, because they need other run folders.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dovetail.core.errors import StoreError, UsageError, shown
from dovetail.runs.folder import RunFolder

__all__ = ["ROUNDS", "Distillation", "Rounds"]

ROUNDS = "rounds.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """A distillation that was made: after so many online steps, into this run, with the answer of the gate."""

    env_steps: int
    base: str
    answer: str
    successor: str | None  # the run that continues with the new base


class Rounds:
    """`env_steps` limits the round that runs; `end_round` makes a distillation due; `record` what came of it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._run = folder, folder.config.run
        self._due: dict[str, Any] | None = None
        self.made: list[Distillation] = []
        if (data := folder.read_json(ROUNDS)) is not None:
            try:
                self._due = _checked_due(data["due"])
                self.made = [_checked(Distillation(**one)) for one in data["made"]]
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(f"{folder.path / ROUNDS} is damaged: {shown(error, max_chars=300)}") from error

    def check(self) -> None:
        """Raise UsageError if this run has nothing to distill into."""
        config = self._folder.config
        if self._run.distill_every is None:
            return
        base = getattr(config.policy.config, "base", None)
        if not isinstance(base, dict):
            raise UsageError(
                f"run.distill_every needs a policy with a base, such as policy.type=residual; policy '{config.policy.type}' "
                "has none. Set run.distill_every=null"
            )
        if "run" not in base and self._run.distill_into is None:
            raise UsageError(
                "the weights of the base are elsewhere, so it cannot be fine-tuned here. Set run.distill_into to a run or "
                "recipe of your own, or run.distill_every=null"
            )
        if config.cluster.robots:
            raise UsageError(
                "run.distill_every needs a run without named arms (cluster.robots). Set run.distill_every=null"
            )

    @property
    def env_steps(self) -> int:
        """Online steps at which the round ends."""
        if self._run.distill_every is None:
            return self._run.env_steps
        return min(self._run.env_steps, self._last + self._run.distill_every)

    @property
    def is_waiting(self) -> bool:
        """Whether this run cannot go on: a distillation must be made first, or a successor has gone on."""
        return self.successor is not None or (self._due is not None and not self.has_ended)

    @property
    def has_ended(self) -> bool:
        """Whether this run has learned all it will, so a distillation is the last."""
        return self._due is not None and bool(self._due["finished"])

    @property
    def due_steps(self) -> int | None:
        """Online steps of the run when the distillation became due."""
        return None if self._due is None else int(self._due["env_steps"])

    @property
    def successor(self) -> str | None:
        return self.made[-1].successor if self.made else None

    def end_round(self, env_steps: int, *, finished: bool) -> bool:
        """Make a distillation due. False: the run continues with its last phases."""
        if self._run.distill_every is None or env_steps <= self._last:
            return False
        self._due = {"env_steps": env_steps, "finished": finished}
        self._save()
        return not finished

    def record(self, made: Distillation) -> None:
        self.made.append(made)
        self._due = None
        self._save()
        self._folder.event("distillation", **asdict(made))

    @property
    def _last(self) -> int:
        return self.made[-1].env_steps if self.made else 0

    def _save(self) -> None:
        self._folder.write_json(ROUNDS, {"due": self._due, "made": [asdict(one) for one in self.made]})


def _checked_due(due: Any) -> dict[str, Any] | None:
    if due is None:
        return None
    if type(due["env_steps"]) is not int or type(due["finished"]) is not bool:
        raise ValueError("`due` should have a number and a truth value")
    return {"env_steps": due["env_steps"], "finished": due["finished"]}


def _checked(made: Distillation) -> Distillation:
    texts = (made.base, made.answer, made.successor or "")
    if type(made.env_steps) is not int or not all(isinstance(text, str) for text in texts):
        raise ValueError("a distillation should have a number and texts")
    return made
