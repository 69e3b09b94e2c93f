"""Starts the arms of a run and checks that they fit. The run begins with `cluster.min_robots` arms; others join later."""

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
from dovetail.runtime.ray.cluster.connection import role_options
from dovetail.runtime.ray.driver.health import failure_reason
from dovetail.runtime.ray.roles.handles import UNREACHABLE
from dovetail.runtime.ray.roles.robot import Arm

__all__ = ["ArmStartup"]

_RETRY_S = 1.0


@dataclass(slots=True, kw_only=True)
class _StartingArm:
    handle: Any
    facts: Any  # reference of the result of `start`
    since_s: float
    why: str = ""  # it has not started yet


class ArmStartup:
    """`wait` for the arms that the run needs, then `poll` for later ones.

    `robots` are the handles of arms that have started, by name. Some may have left since: see HealthMonitor. `make(arm,
    **options)` starts an actor.
    """

    def __init__(
        self, folder: RunFolder, *, key: str, live: bool, stop_token: str, make: Callable[..., Any]
    ) -> None:
        self._folder, self._key, self._live, self._make = folder, key, live, make
        self._stop_token = stop_token
        self._cluster = folder.config.cluster
        self._places = self._cluster.named_robots()
        self.robots: dict[str, Any] = {}
        self.specs: dict[str, RobotSpec] = {}
        self.real_time = False  # whether an arm is on the real clock
        self.missing: dict[str, str] = {}  # name and reason
        self._starting: dict[str, _StartingArm] = {}
        self._waits, self._tried_s = True, 0.0

    def wait(self, on_poll: Callable[[], None]) -> None:
        """Wait for the arms that the run needs. `on_poll` must call `poll`."""
        for name in self._places:
            self._try(name)
        needed = self._cluster.min_robots or len(self._places)
        if len(self._starting) < needed:
            raise UsageError(next(iter(self.missing.values())))
        limit_s = self._cluster.robot_timeout_s
        until_s = time.monotonic() + limit_s
        while self._starting and time.monotonic() < until_s:
            on_poll()
            time.sleep(0.02)
        if len(self.robots) < needed:
            late = ", ".join(f"'{name}'{one.why and f' ({one.why})'}" for name, one in self._starting.items())
            raise FailureError(
                f"robot {late} did not start within {limit_s:g} s. Check it, raise cluster.robot_timeout_s, or set "
                "cluster.min_robots to begin without it"
            )
        self._waits = False
        for name, why in self.missing.items():
            self._folder.event("robot missing", name=name, reason=why)

    def poll(self) -> list[str]:
        """Names of the arms that have started since the last call."""
        now_s = time.monotonic()
        if self.missing and now_s - self._tried_s > _RETRY_S and not self._waits:
            self._tried_s = now_s
            for name in list(self.missing):
                self._try(name)
        return [name for name in list(self._starting) if self._has_started(name)]

    def _try(self, name: str) -> None:
        place = self._places[name]
        try:
            options = role_options(place, role=f"robots.{name}", config=self._cluster)
        except UsageError as error:
            self.missing[name] = str(error)
            return
        self.missing.pop(name, None)
        arm = Arm(
            name=name,
            config=robot_config(self._folder.config, name, place).model_dump(mode="json"),
            config_hash=self._folder.config_hash,
            run_id=self._folder.run_id(),
            run=self._folder.path.absolute(),
            key=self._key,
            live=self._live,
            first=name == next(iter(self._places)),
            stop_token=self._stop_token,
        )
        handle = self._make(arm, **options)
        self._starting[name] = _StartingArm(handle=handle, facts=handle.start.remote(), since_s=time.monotonic())

    def _has_started(self, name: str) -> bool:
        one = self._starting[name]
        if not ray.wait([one.facts], timeout=0)[0]:
            return False
        try:
            self._check(name, ray.get(one.facts))
        except UNREACHABLE as error:
            one.why = failure_reason(error)
            if getattr(error, "actor_init_failed", False):  # Ray does not try again
                if self._waits:
                    raise FailureError(f"robot '{name}' cannot be started: {one.why}") from None
                self._refuse(name, one.why)
            elif time.monotonic() - one.since_s > _RETRY_S:  # Ray restarts it
                one.facts, one.since_s = one.handle.start.remote(), time.monotonic()
            return False
        except (RayTaskError, DovetailError) as error:
            cause = getattr(error, "cause", error)
            if self._waits:
                raise _with_name(name, cause) from None
            self._refuse(name, str(cause))
            return False
        self.robots[name] = one.handle
        del self._starting[name]
        return True

    def _refuse(self, name: str, why: str) -> None:
        """Leave out a late arm that does not fit."""
        ray.kill(self._starting.pop(name).handle)
        self._folder.event("robot refused", name=name, reason=" ".join(why.split())[:300])

    def _check(self, name: str, facts: Mapping[str, Any]) -> None:
        """Check an arm against the others. It has already checked itself against the policy."""
        if facts["version"] != __version__:
            raise UsageError(
                f"it has dovetail {facts['version']} and the driver {__version__}. Install one version"
            )
        spec = RobotSpec.from_json(facts["robot"])
        if not isinstance(self._folder.config.policy.config, SharedConfig):
            check_equal({**self.specs, name: spec})
        self.specs[name] = spec
        self.real_time |= facts["real_time"]
        self._folder.event("robot", name=name, task=facts["task"], robot=spec.name, embodiment=spec.embodiment)


def _with_name(name: str, cause: Exception) -> Exception:
    if not isinstance(cause, DovetailError):
        return cause
    kind = UsageError if isinstance(cause, UsageError | SpecMismatch) else FailureError
    return kind(f"robot '{name}': {cause}")
