"""Arms as they come: each is started where its place is, says what it is, and is checked before anything moves.

A run begins when those are there that it needs, `cluster.min_robots`. The others are taken in when their machine joins, or
when they have come up at last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayTaskError

from dovetail import __version__
from dovetail.config.load import robot_config
from dovetail.core.errors import DovetailError, FailureError, SpecMismatch, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.policies.embodiments.shared_policy import SharedConfig
from dovetail.runs.assembly.fleet import check_equal
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.cluster.connection import placed
from dovetail.runtime.ray.driver.health import last_words
from dovetail.runtime.ray.roles.handles import AWAY
from dovetail.runtime.ray.roles.robot import Arm

__all__ = ["ArmStartup"]

_TRY_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Coming:
    handle: Any
    facts: Any  # a reference: what it says of itself
    since_s: float
    why: str = ""  # it is not there yet


class ArmStartup:
    """`gather` them, then `look` for those who come later. `robots` are those that have come, by name; some of them may
    have left since, which is for HealthMonitor to say."""

    def __init__(self, folder: RunFolder, *, key: str, live: bool, make: Callable[..., Any]) -> None:
        """`make(arm, **options)` starts one."""
        self._folder, self._key, self._live, self._make = folder, key, live, make
        self._cluster = folder.config.cluster
        self._places = self._cluster.named_robots()
        self.robots: dict[str, Any] = {}
        self.specs: dict[str, RobotSpec] = {}
        self.missing: dict[str, str] = {}  # and why
        self._coming: dict[str, _Coming] = {}
        self._gathering, self._tried_s = True, 0.0

    def gather(self, look: Callable[[], None]) -> None:
        """Until those are there that the run needs. `look` is to call ours."""
        for name in self._places:
            self._try(name)
        needed = self._cluster.min_robots or len(self._places)
        if len(self._coming) < needed:
            raise UsageError(next(iter(self.missing.values())))
        limit_s = self._cluster.robot_limit_s
        until_s = time.monotonic() + limit_s
        while self._coming and time.monotonic() < until_s:
            look()
            time.sleep(0.02)
        if len(self.robots) < needed:
            late = ", ".join(f"'{name}'{one.why and f' ({one.why})'}" for name, one in self._coming.items())
            raise FailureError(
                f"robot {late} did not come up within {limit_s:g} s: see to it, raise cluster.robot_limit_s, or let the "
                "run begin without it (cluster.min_robots)"
            )
        self._gathering = False
        for name, why in self.missing.items():
            self._folder.event("robot missing", name=name, reason=why)

    def look(self) -> list[str]:
        """Who has come since the last look."""
        now_s = time.monotonic()
        if self.missing and now_s - self._tried_s > _TRY_S and not self._gathering:
            self._tried_s = now_s
            for name in list(self.missing):
                self._try(name)
        return [name for name in list(self._coming) if self._has_come(name)]

    def _try(self, name: str) -> None:
        place = self._places[name]
        try:
            options = placed(place, role=f"robots.{name}", config=self._cluster)
        except UsageError as error:
            self.missing[name] = str(error)
            return
        self.missing.pop(name, None)
        arm = Arm(
            name=name,
            config=robot_config(self._folder.config, name, place).model_dump(mode="json"),
            config_hash=self._folder.config_hash,
            run=self._folder.path.absolute(),
            key=self._key,
            live=self._live,
            first=name == next(iter(self._places)),
        )
        handle = self._make(arm, **options)
        self._coming[name] = _Coming(handle=handle, facts=handle.start.remote(), since_s=time.monotonic())

    def _has_come(self, name: str) -> bool:
        one = self._coming[name]
        if not ray.wait([one.facts], timeout=0)[0]:
            return False
        try:
            self._check(name, ray.get(one.facts))
        except AWAY as error:
            one.why = last_words(error)
            if getattr(error, "actor_init_failed", False):  # Ray does not try again
                if self._gathering:
                    raise FailureError(f"robot '{name}' cannot be started: {one.why}") from None
                self._refuse(name, one.why)
                return False
            if time.monotonic() - one.since_s > _TRY_S:  # it is started anew
                one.facts, one.since_s = one.handle.start.remote(), time.monotonic()
            return False
        except (RayTaskError, DovetailError) as error:
            cause = getattr(error, "cause", error)
            if self._gathering:
                raise _misfit(name, cause) from None
            self._refuse(name, str(cause))
            return False
        self.robots[name] = one.handle
        del self._coming[name]
        return True

    def _refuse(self, name: str, why: str) -> None:
        """One that came late: the others go on without it."""
        ray.kill(self._coming.pop(name).handle)
        self._folder.event("robot refused", name=name, reason=" ".join(why.split())[:300])

    def _check(self, name: str, facts: Mapping[str, Any]) -> None:
        """It fits the policy, which it has tried itself, and the others."""
        if facts["version"] != __version__:
            raise UsageError(f"it has dovetail {facts['version']}, and this is {__version__}: install one version")
        spec = RobotSpec.from_json(facts["robot"])
        if not isinstance(self._folder.config.policy.config, SharedConfig):
            check_equal({**self.specs, name: spec})
        self.specs[name] = spec
        self._folder.event("robot", name=name, task=facts["task"], robot=spec.name, embodiment=spec.embodiment)


def _misfit(name: str, cause: Exception) -> Exception:
    if not isinstance(cause, DovetailError):
        return cause
    kind = UsageError if isinstance(cause, UsageError | SpecMismatch) else FailureError
    return kind(f"robot '{name}': {cause}")
