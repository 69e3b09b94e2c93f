"""Which policy is deployed: a candidate replaces it only through the gate, and it can be rolled back.

    deployment = Deployment.load(folder)          # deployment.json in a run folder
    deployment.propose("runs/second")             # a candidate
    deployment.decide(answer="not worse", ...)    # the gate: deployed if the answer allows it, else rejected
    deployment.observe(success=True)              # an episode without help; may roll back
    deployment.roll_back("reason")

Each change is written atomically, and added to the events of the run. If the run's config has a gate (`deploy`), versions of
its own weights are deployed: the deployed one is pinned, and those to which it can be rolled back are kept.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dovetail.config.trust import is_inside, is_trusted
from dovetail.core.disk import open_lock
from dovetail.core.errors import PluginError, StoreError, UsageError, one_line
from dovetail.core.rollback_test import RollbackTest, rollback_test
from dovetail.core.sequential_test import Answer
from dovetail.runs.folder import RunFolder
from dovetail.runs.paired_comparison import PairedComparison
from dovetail.weights.store import DiskWeightStore

__all__ = ["DEPLOYMENT", "Deployed", "Deployment", "deployment_lock"]

DEPLOYMENT = "deployment.json"
_LOCK = ".deployment.lock"
_FALSE_ALARM_RATE = 0.01
_MAX_NAME = 4096
_VERSION_FILE = re.compile(r"v(\d+)\.json")
_MAX_EARLIER = 5  # versions of the run that are kept for roll-backs


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A policy by the weights it names, and the lower limit of its success rate in its comparison, if there was one."""

    weights: str
    expected_rate: float | None = None
    version: int | None = None  # of the run's own weights, if its gate deployed them


@dataclass(kw_only=True)
class Deployment:
    """The deployed policy, those before it, and a candidate. See the module."""

    folder: RunFolder
    deployed: Deployed
    earlier: list[Deployed] = field(default_factory=list)
    candidate: str | None = None
    candidate_version: int | None = None  # of the run's own weights
    comparison: PairedComparison | None = None  # of the candidate, in a run with a gate
    num_compared: int = 0  # candidates of the gate so far
    compare_at: int = 0  # online episodes of the run at which the next comparison is due
    outcomes: list[bool] = field(default_factory=list)  # episodes of the deployed policy without help
    watched: list[str] = field(default_factory=list)  # ids of these episodes, if the run counted them
    last: dict[str, Any] = field(default_factory=dict)  # the last decision, with its comparison
    change: dict[str, Any] = field(default_factory=dict)  # the last change and its number, as in its event

    @staticmethod
    def load(folder: RunFolder) -> Deployment:
        """The state of a run. Without one, the run's own newest weights are deployed."""
        data = folder.read_json(DEPLOYMENT)
        if data is None:
            return Deployment(folder=folder, deployed=Deployed(weights=str(folder.path)))
        try:
            compared = data.get("comparison")
            deployment = Deployment(
                folder=folder,
                deployed=_deployed(data["deployed"]),
                earlier=[_deployed(one) for one in data["earlier"]],
                candidate=None if data["candidate"] is None else _weights(data["candidate"]),
                candidate_version=_version_number(data.get("candidate_version")),
                comparison=None if compared is None else PairedComparison.from_json(compared),
                num_compared=_count(data.get("num_compared", 0)),
                compare_at=_count(data.get("compare_at", 0)),
                outcomes=[_outcome(one) for one in data["outcomes"]],
                watched=[_weights(one) for one in data.get("watched", ())],
                last=_facts(data.get("last", {})),
                change=_facts(data.get("change", {})),
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

    # ---- changes

    def begin(self, version: int, *, compare_at: int) -> None:
        """Deploy the first version of a run with a gate."""
        self.deployed, self.compare_at = self._version(version), compare_at
        self._save("first", weights=self.deployed.weights, version=version)

    def propose(self, weights: str) -> None:
        """Make these weights the candidate."""
        if weights == self.deployed.weights:
            raise UsageError(f"{weights} is deployed already. Name another run, version or checkpoint")
        self._clear_candidate()
        self.candidate, self.candidate_version = weights, self._own_version(weights)
        self._save("candidate", weights=weights)

    def propose_version(self, version: int, comparison: PairedComparison) -> None:
        """Make a version of the run's own weights the candidate, and begin to compare it."""
        self.candidate, self.candidate_version = self._version(version).weights, version
        self.comparison, self.num_compared = comparison, self.num_compared + 1
        self._save("candidate", weights=self.candidate, version=version)

    def add_pairs(self, comparison: PairedComparison) -> None:
        """Store the comparison so far: a resumed run continues it."""
        self.comparison = comparison
        self._write()

    def decide(self, answer: Answer, *, rate: float | None) -> bool:
        """Deploy the candidate if the comparison's answer is that it is not worse. `rate` is the lower
        limit of its success rate there."""
        self._require_candidate("Name one")
        if answer is Answer.NOT_WORSE:
            self._deploy(rate, answer=answer.value)
            return True
        self._reject(answer=answer.value)
        return False

    def approve(self, *, by: str = "a person") -> None:
        """Deploy the candidate because a person approved it, whatever the comparison said."""
        self._require_candidate("Name one to approve")
        finished = self.comparison is not None and self.comparison.is_finished
        rate = self.comparison.expected_rate if self.comparison is not None and finished else None
        self._deploy(rate, answer=f"approved by {by}")

    def reject(self, *, by: str = "a person") -> None:
        """Drop the candidate because a person rejected it."""
        self._require_candidate("There is nothing to reject")
        self._reject(answer=f"rejected by {by}")

    def wait_for_person(self) -> None:
        """The comparison is finished, and a person decides."""
        assert self.comparison is not None
        self._save("waits for a person", weights=self.candidate, **self.comparison.facts())

    def withdraw(self) -> None:
        """Drop a candidate without an answer: a newer one follows, or what it was compared with is no longer deployed."""
        self._reject(answer="withdrawn")

    def roll_back(self, reason: str) -> None:
        """Return to the policy before the deployed one."""
        if not self.earlier:
            raise UsageError(
                f"{self.deployed.weights} is the first policy deployed. There is none to roll back to"
            )
        removed, self.deployed, self.outcomes, self.watched = self.deployed, self.earlier.pop(), [], []
        facts = {
            "weights": removed.weights,
            "version": removed.version,
            "to": self.deployed.weights,
            "reason": reason,
        }
        self.last = {"change": "rolled back", **facts}
        self._save("rolled back", **facts)

    def observe(self, *, success: bool, episode_id: str | None = None) -> RollbackTest | None:
        """Count an episode of the deployed policy without help. Roll back if it succeeds less often than expected.

        None without a comparison, which gives the expected rate."""
        self.outcomes.append(success)
        if episode_id is not None:
            self.watched.append(episode_id)
        test = self.rollback_test if self.earlier else None
        if test is not None and test.alarm:
            self.roll_back(
                f"{test.num_successes} of {test.num_episodes} episodes without help succeeded, "
                f"at least {test.expected_rate:.0%} were expected"
            )
        else:
            self._write()
        return test

    @property
    def rollback_test(self) -> RollbackTest | None:
        """The evidence against the deployed policy; None if no comparison gives the rate that is expected."""
        if self.deployed.expected_rate is None:
            return None
        gate = self.folder.config.deploy
        return rollback_test(
            self.outcomes,
            expected_rate=self.deployed.expected_rate,
            false_alarm_rate=_FALSE_ALARM_RATE if gate is None else gate.false_alarm_rate,
        )

    # ---- on disk

    def to_json(self) -> dict[str, Any]:
        return {
            "deployed": asdict(self.deployed),
            "earlier": [asdict(one) for one in self.earlier],
            "candidate": self.candidate,
            "candidate_version": self.candidate_version,
            "comparison": None if self.comparison is None else self.comparison.to_json(),
            "num_compared": self.num_compared,
            "compare_at": self.compare_at,
            "outcomes": self.outcomes,
            "watched": self.watched,
            "last": self.last,
            "change": self.change,
        }

    def pin(self) -> None:
        """Pin the deployed version of a run with a gate, and keep the versions that may be needed again."""
        if self.deployed.version is None or self.folder.config.deploy is None:
            return
        store = DiskWeightStore(self.folder.weights)
        known = [self.deployed.version, self.candidate_version, *(one.version for one in self.earlier)]
        store.keep_versions([version for version in known if version is not None])
        if store.pinned() != self.deployed.version:
            store.pin(self.deployed.version)

    def _own_version(self, weights: str) -> int | None:
        """The version if the weights are some of a run with a gate."""
        path = Path(weights)
        named = _VERSION_FILE.fullmatch(path.name)
        is_own = path.parent.resolve() == self.folder.weights.resolve()
        return int(named[1]) if named and is_own and self.folder.config.deploy is not None else None

    def _version(self, version: int) -> Deployed:
        return Deployed(weights=str(self.folder.weights / f"v{version:08d}.json"), version=version)

    def _require_candidate(self, what_to_do: str) -> None:
        if self.candidate is None:
            raise UsageError(f"there is no candidate. {what_to_do}")

    def _deploy(self, rate: float | None, *, answer: str) -> None:
        assert self.candidate is not None
        self.earlier.append(self.deployed)
        if self.candidate_version is not None:
            self.earlier = self.earlier[-_MAX_EARLIER:]
        self.deployed = Deployed(weights=self.candidate, expected_rate=rate, version=self.candidate_version)
        self.outcomes, self.watched = [], []
        self._finish("deployed", self.candidate, answer=answer)

    def _reject(self, *, answer: str) -> None:
        assert self.candidate is not None
        self._finish("rejected", self.candidate, answer=answer)

    def _finish(self, change: str, weights: str, *, answer: str) -> None:
        compared = {} if self.comparison is None else self.comparison.facts()
        named = {"weights": weights, "version": self.candidate_version}
        self.last = {"change": change, **named, **compared, "answer": answer}
        self._clear_candidate()
        self._save(change, **{key: value for key, value in self.last.items() if key != "change"})

    def _clear_candidate(self) -> None:
        self.candidate = self.candidate_version = self.comparison = None

    def _save(self, change: str, **fields: Any) -> None:
        self.change = {"number": self.change.get("number", 0) + 1, "change": change, **fields}
        self._write()
        self.pin()
        self.folder.event("deployment", **self.change)

    def recover(self) -> None:
        """Finish a change that a killed process left between its file, its pin and its event."""
        self.pin()
        known = {event.get("number") for event in self.folder.events("deployment")}
        if self.change and self.change["number"] not in known:
            self.folder.event("deployment", **self.change)

    def _write(self) -> None:
        self.folder.write_json(DEPLOYMENT, self.to_json())


@contextmanager
def deployment_lock(folder: RunFolder) -> Iterator[None]:
    """Be the only process that changes what is deployed in a run without a gate. The lock ends with the process.

    The lock of the run folder is not used: the run itself may be active, and does not use its deployment."""
    with _open_lock(folder.path / _LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process changes what is deployed in {folder.path}: `dovetail deploy` or the console. Wait for its "
                "end or press Ctrl-C there, then repeat this"
            ) from error
        yield


def _open_lock(path: Path) -> BinaryIO:
    try:
        return open_lock(path)
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}. Check who may write to the run folder"
        ) from error


def _deployed(data: Any) -> Deployed:
    rate = data["expected_rate"]
    if rate is not None and (type(rate) not in (int, float) or not 0.0 <= rate <= 1.0):
        raise ValueError("expected_rate should be null or a number from 0 to 1")
    version = _version_number(data.get("version"))
    return Deployed(weights=_weights(data["weights"]), expected_rate=rate, version=version)


def _weights(name: Any) -> str:
    """The name of weights in a file that may come from elsewhere. It is printed, and it is a path."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
        raise ValueError("weights should be named by a printable text")
    return name


def _outcome(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("outcomes should be true or false")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("counts should be whole numbers")
    return value


def _version_number(value: Any) -> int | None:
    return None if value is None else _count(value)


def _facts(value: Any) -> dict[str, Any]:
    """The facts of a change. They are shown, and `number` is counted on."""
    if not isinstance(value, dict) or type(value.get("number", 0)) is not int:
        raise ValueError("the last change should be a map with a number")
    return value
