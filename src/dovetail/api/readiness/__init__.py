"""Whether a machine has what a run needs. Each check returns findings. `dovetail doctor` prints all of them; the start of a
run refuses the first that fails."""

from dovetail.api.readiness.cameras import camera_findings, camera_names
from dovetail.api.readiness.finding import Finding
from dovetail.api.readiness.machine import machine_findings
from dovetail.api.readiness.people import (
    asks_person,
    console_is_needed,
    label_help,
    people_findings,
    refuse_unready,
    refuse_without_verdict,
    verdict_findings,
)
from dovetail.api.readiness.rendering import RenderingCheck
from dovetail.api.readiness.robot import robot_findings
from dovetail.api.readiness.services import service_findings

__all__ = [
    "Finding",
    "RenderingCheck",
    "asks_person",
    "camera_findings",
    "camera_names",
    "console_is_needed",
    "label_help",
    "machine_findings",
    "people_findings",
    "refuse_unready",
    "refuse_without_verdict",
    "robot_findings",
    "service_findings",
    "verdict_findings",
]
