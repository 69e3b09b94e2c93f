"""Environment variables for Ray: little output, fast failure detection, access only with the token."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from dovetail.config.cluster import Detection

__all__ = ["environment_variables", "ray_variables"]


def ray_variables(detection: Detection, *, token: Path, loopback: bool) -> dict[str, str | None]:
    """Variables for Ray's processes and for the process that starts them; None removes one.

    Only the head detects failures, so its `detection` settings hold for the cluster.
    """
    return {
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": f"{1000 * detection.period_s:.0f}",
        "RAY_health_check_timeout_ms": f"{1000 * detection.timeout_s:.0f}",
        "RAY_health_check_failure_threshold": f"{detection.failures}",
        # a process without a head ends after this time; the default is a minute
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5" if loopback else "60",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_AUTH_TOKEN": None,  # would have precedence
        "RAY_AUTH_MODE": "token",
        # "1" makes Ray replace 127.0.0.1 by the machine's network address
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if loopback else "1",
        "RAY_usage_stats_enabled": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_task_events_report_interval_ms": "0",  # otherwise the head stores every call: 8 MB per minute
        # otherwise the end of an arm's role kills control and guard at once, and nothing stops the arm
        "RAY_kill_child_processes_on_worker_exit": "0",
        "RAY_process_group_cleanup_enabled": "0",
        "RAY_worker_niceness": "0",  # the default of 15 lets an arm wait for other processes
        "OMP_NUM_THREADS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_ADDRESS": None,  # would have precedence
    }


@contextlib.contextmanager
def environment_variables(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables, or remove those that are None, inside the `with` block."""
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
