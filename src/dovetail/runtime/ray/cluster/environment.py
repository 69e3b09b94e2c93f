"""What Ray is told by the environment: quiet, quick to notice a death, and open to nobody without the token."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from dovetail.config.cluster import Detection

__all__ = ["scoped", "settings"]


def settings(detection: Detection, *, token: Path, loopback: bool) -> dict[str, str | None]:
    """Variables for Ray's processes and for who starts them; None: not to be there.

    A death is noticed by the head alone, so that its settings count for all.
    """
    return {
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": f"{1000 * detection.period_s:.0f}",
        "RAY_health_check_timeout_ms": f"{1000 * detection.timeout_s:.0f}",
        "RAY_health_check_failure_threshold": f"{detection.failures}",
        # who waits for a head that is gone ends then; after a minute, otherwise
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5" if loopback else "60",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_AUTH_TOKEN": None,  # would come first
        "RAY_AUTH_MODE": "token",
        # Ray would replace 127.0.0.1 by an address that others reach, except where it thinks that there are no clusters
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if loopback else "1",
        "RAY_usage_stats_enabled": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_task_events_report_interval_ms": "0",  # the head would remember every call: 8 MB a minute
        "RAY_worker_niceness": "0",  # 15 otherwise: an arm would wait for whatever else runs
        "OMP_NUM_THREADS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_ADDRESS": None,  # would come before ours
    }


@contextlib.contextmanager
def scoped(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set and unset while this lasts, and put back after."""
    before = {name: os.environ.get(name) for name in variables}
    _apply(variables)
    try:
        yield
    finally:
        _apply(before)


def _apply(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
