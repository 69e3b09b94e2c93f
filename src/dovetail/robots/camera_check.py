"""Finds cameras that stopped: an old or impossible capture time, a camera that disappeared, a picture that repeats."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.safety import SafetyConfig
from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import ConfigError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Observation

__all__ = ["CameraCheck"]

_AHEAD_NS = 50_000_000  # a capture time may be so far ahead of the clock
_REPEAT_S = 1.0  # a real sensor has noise, so that no two pictures are equal
_SAMPLE = 16  # compare each 16th row and column first


class CameraCheck:
    """Looks at the pictures and capture times of one robot, once per observation."""

    def __init__(self, spec: RobotSpec, config: SafetyConfig, *, simulated: bool) -> None:
        stale_s, stop_s = config.camera_stale_after_s, config.camera_stop_after_s
        if stop_s < stale_s:
            raise ConfigError(
                f"safety.camera_stop_after_s ({stop_s}) is below safety.camera_stale_after_s ({stale_s})"
            )
        self._stale_ns, self._stop_ns = int(stale_s * NS_PER_S), int(stop_s * NS_PER_S)
        repeat_s = config.camera_repeat_after_s
        if repeat_s is None and not simulated:
            repeat_s = _REPEAT_S
        self._repeat_ns = None if repeat_s is None else int(repeat_s * NS_PER_S)
        self._pictures = {
            key: _Picture()
            for key, array in spec.observation.items()
            if array.dtype != "float32" and len(array.shape) == 3
        }
        self._good_ns: dict[str, int] = {}  # when each camera last had a possible capture time

    def check(self, observation: Observation, now_ns: int) -> tuple[bool, str | None]:
        """Whether the robot must hold, and the reason to stop it, with the camera's name."""
        hold, fault, longest_ns = False, None, 0
        captured_ns = observation.captured_ns
        for key in (*captured_ns, *(key for key in self._good_ns if key not in captured_ns)):
            time_ns = captured_ns.get(key)
            if time_ns is not None and time_ns <= now_ns + _AHEAD_NS:
                self._good_ns[key] = now_ns
                age_ns, text = now_ns - time_ns, f"the newest frame of '{key}' is {{}} s old"
                hold |= age_ns > self._stale_ns
            else:
                age_ns = now_ns - self._good_ns.setdefault(key, now_ns)
                hold, text = True, f"camera '{key}' has had no capture time for {{}} s"
                if time_ns is not None:
                    ahead_s = (time_ns - now_ns) / NS_PER_S
                    text = f"the capture time of '{key}' has been ahead of the clock for {{}} s, now by {ahead_s:.3g} s"
            if age_ns > self._stop_ns and age_ns > longest_ns:
                longest_ns, fault = age_ns, text.format(f"{age_ns / NS_PER_S:.2f}")
        if self._repeat_ns is not None:
            for key, picture in self._pictures.items():
                value = observation.values.get(key)
                if value is None or value.ndim != 3:
                    continue  # the observation is invalid
                age_ns = picture.repeated_ns(value, captured_ns.get(key), now_ns)
                hold |= age_ns > self._repeat_ns
                if age_ns > self._repeat_ns + self._stop_ns - self._stale_ns and fault is None:
                    fault = f"the picture of '{key}' has not changed in any bit for {age_ns / NS_PER_S:.2f} s"
        return hold, fault


@dataclass(slots=True)
class _Picture:
    """The last picture of one camera. Different pictures cost a small sample; only equal samples are compared in full."""

    sample: bytes = b""
    whole: bytes = b""  # empty: the sample was new
    captured_ns: int | None = None
    since_ns: int = 0

    def repeated_ns(self, picture: Array, captured_ns: int | None, now_ns: int) -> int:
        """For how long the camera has delivered equal pictures."""
        if captured_ns is not None and captured_ns == self.captured_ns:
            return (
                0 if not self.whole else now_ns - self.since_ns
            )  # the same frame again; its age is checked elsewhere
        self.captured_ns = captured_ns
        sample = picture[::_SAMPLE, ::_SAMPLE].tobytes()
        if sample != self.sample:
            self.sample, self.whole, self.since_ns = sample, b"", now_ns
            return 0
        whole = picture.tobytes()
        if whole != self.whole:
            self.whole, self.since_ns = whole, now_ns
        return now_ns - self.since_ns
