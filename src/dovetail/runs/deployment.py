"""Which policy is deployed: a candidate replaces it only through the gate, and it can be rolled back.

    deployment = Deployment.load(folder)          # deployment.json in a run folder
    deployment.propose("runs/second")             # a candidate
    deployment.decide(answer="not worse", ...)    # the gate: deployed if the answer allows it, else rejected
    deployment.observe(success=True)              # an episode without help; may roll back
    deployment.roll_back("reason")

Each change is written atomically, and added to the events of the run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dovetail.config.trust import is_inside, is_trusted
from dovetail.core.errors import PluginError, StoreError, UsageError, one_line
from dovetail.core.rollback_test import RollbackTest, rollback_test
from dovetail.core.sequential_test import Answer
from dovetail.runs.folder import RunFolder

__all__ = ["DEPLOYMENT", "Deployed", "Deployment"]

DEPLOYMENT = "deployment.json"
_FALSE_ALARM_RATE = 0.01
_MAX_NAME = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A policy by the weights it names, and the lower limit of its success rate in its comparison, if there was one."""

    weights: str
    expected_rate: float | None = None


@dataclass(kw_only=True)
class Deployment:
    """The deployed policy, those before it, and a candidate. See the module."""

    folder: RunFolder
    deployed: Deployed
    earlier: list[Deployed] = field(default_factory=list)
    candidate: str | None = None
    outcomes: list[bool] = field(default_factory=list)  # episodes of the deployed policy without help

    @staticmethod
    def load(folder: RunFolder) -> Deployment:
        """The state of a run. Without one, the run's own newest weights are deployed."""
        data = folder.read_json(DEPLOYMENT)
        if data is None:
            return Deployment(folder=folder, deployed=Deployed(weights=str(folder.path)))
        try:
            deployment = Deployment(
                folder=folder,
                deployed=_deployed(data["deployed"]),
                earlier=[_deployed(one) for one in data["earlier"]],
                candidate=None if data["candidate"] is None else _weights(data["candidate"]),
                outcomes=[_outcome(one) for one in data["outcomes"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{folder.path / DEPLOYMENT} is damaged: {one_line(error)}. Remove it to start again"
            ) from error
        deployment._check_trust()
        return deployment

    def _check_trust(self) -> None:
        """A folder from elsewhere must not decide which of this machine's runs moves an arm."""
        if is_trusted(self.folder.path):
            return
        for one in (self.deployed, *self.earlier):
            if not is_inside(one.weights, self.folder.path):
                raise PluginError(
                    f"{self.folder.path} was not made by you on this machine or was copied, and its {DEPLOYMENT} names "
                    f"weights outside it ({one.weights[:80]!r}). Read it. If you trust the folder, run `dovetail trust "
                    f"{self.folder.path}` once"
                )

    def propose(self, weights: str) -> None:
        """Make these weights the candidate."""
        if weights == self.deployed.weights:
            raise UsageError(f"{weights} is deployed already. Name another run, version or checkpoint")
        self.candidate = weights
        self._save("candidate", weights=weights)

    def decide(self, answer: Answer, *, rate: float | None) -> bool:
        """Deploy the candidate if the comparison's answer is that it is not worse. `rate` is the lower
        limit of its success rate there."""
        if self.candidate is None:
            raise UsageError("there is no candidate. Name one")
        if answer is Answer.NOT_WORSE:
            self._replace(Deployed(weights=self.candidate, expected_rate=rate))
            self._save("deployed", weights=self.deployed.weights, answer=answer.value)
            return True
        rejected, self.candidate = self.candidate, None
        self._save("rejected", weights=rejected, answer=answer.value)
        return False

    def approve(self) -> None:
        """Deploy the candidate because a person approved it, whatever the comparison said."""
        if self.candidate is None:
            raise UsageError("there is no candidate to approve. Name one")
        self._replace(Deployed(weights=self.candidate))
        self._save("deployed", weights=self.deployed.weights, answer="approved by a person")

    def roll_back(self, reason: str) -> None:
        """Return to the policy before the deployed one."""
        if not self.earlier:
            raise UsageError(
                f"{self.deployed.weights} is the first policy deployed. There is none to roll back to"
            )
        removed, self.deployed, self.outcomes = self.deployed, self.earlier.pop(), []
        self._save("rolled back", weights=removed.weights, to=self.deployed.weights, reason=reason)

    def observe(self, *, success: bool) -> RollbackTest | None:
        """Count an episode of the deployed policy without help. Roll back if it succeeds less often than expected.

        None without a comparison, which gives the expected rate."""
        self.outcomes.append(success)
        if self.deployed.expected_rate is None or not self.earlier:
            self._write()
            return None
        test = rollback_test(
            self.outcomes, expected_rate=self.deployed.expected_rate, false_alarm_rate=_FALSE_ALARM_RATE
        )
        if test.alarm:
            self.roll_back(
                f"{test.num_successes} of {test.num_episodes} episodes without help succeeded, "
                f"at least {test.expected_rate:.0%} were expected"
            )
        else:
            self._write()
        return test

    def to_json(self) -> dict[str, Any]:
        return {
            "deployed": asdict(self.deployed),
            "earlier": [asdict(one) for one in self.earlier],
            "candidate": self.candidate,
            "outcomes": self.outcomes,
        }

    def _replace(self, new: Deployed) -> None:
        self.earlier.append(self.deployed)
        self.deployed, self.candidate, self.outcomes = new, None, []

    def _save(self, change: str, **fields: Any) -> None:
        self._write()
        self.folder.event("deployment", change=change, **fields)

    def _write(self) -> None:
        self.folder.write_json(DEPLOYMENT, self.to_json())


def _deployed(data: Any) -> Deployed:
    rate = data["expected_rate"]
    if rate is not None and (type(rate) not in (int, float) or not 0.0 <= rate <= 1.0):
        raise ValueError("expected_rate should be null or a number from 0 to 1")
    return Deployed(weights=_weights(data["weights"]), expected_rate=rate)


def _weights(name: Any) -> str:
    """The name of weights in a file that may come from elsewhere. It is printed, and it is a path."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
        raise ValueError("weights should be named by a printable text")
    return name


def _outcome(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("outcomes should be true or false")
    return value
