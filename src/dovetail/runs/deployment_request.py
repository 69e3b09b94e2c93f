"""A person approves or rejects the candidate of a run or rolls its deployed policy back, while the run is active or later.

A run folder has one writer. If no process works in it, the change is made at once. Otherwise a request is left in the
folder, and the run applies it between two episodes. A request names the policy that the person saw: if another one has
taken its place, it is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from dovetail.core.errors import DovetailError, RunFolderError, UsageError, one_line, shown
from dovetail.runs.deployment import Deployment, deployment_lock
from dovetail.runs.folder import RunFolder

__all__ = ["REQUEST", "Change", "apply_change", "check_change", "request_change", "take_request"]

REQUEST = "deployment_request.json"


class Change(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"
    ROLL_BACK = "roll back"


def request_change(folder: RunFolder, change: Change, *, seen: str, by: str) -> bool:
    """Make the change now (True), or ask the run that works in the folder (False). A run without a gate does not use its
    deployment, so it need not be asked.

    `seen` names the weights that the person decided about: the candidate to approve or reject, or the deployed policy to
    roll back.
    """
    check_change(Deployment.load(folder), change, seen=seen)
    if folder.config.deploy is None:
        with deployment_lock(folder):
            apply_change(Deployment.load(folder), change, seen=seen, by=by)
        return True
    try:
        folder.lock()
    except RunFolderError:
        folder.write_json(REQUEST, {"change": change.value, "seen": seen, "by": by})
        return False
    try:
        apply_change(Deployment.load(folder), change, seen=seen, by=by)
    finally:
        folder.unlock()
    return True


def check_change(deployment: Deployment, change: Change, *, seen: str) -> None:
    """Raise UsageError if the change is not possible, or is about other policies than the present ones."""
    if change is not Change.ROLL_BACK:
        if deployment.candidate is None:
            raise UsageError(f"there is no candidate to {change}")
        now, what = deployment.candidate, "candidate"
    else:
        if not deployment.earlier:
            raise UsageError("this is the first policy deployed. There is none to roll back to")
        now, what = deployment.deployed.weights, "deployed policy"
    if now != seen:
        raise UsageError(f"the {what} is {now} now, not {shown(seen, max_chars=300)}. Look again")


def apply_change(deployment: Deployment, change: Change, *, seen: str, by: str) -> None:
    check_change(deployment, change, seen=seen)
    if change is Change.APPROVE:
        deployment.approve(by=by)
    elif change is Change.REJECT:
        deployment.reject(by=by)
    else:
        deployment.roll_back(f"{by} rolled it back")


def take_request(folder: RunFolder, apply: Callable[[Change, str, str], None]) -> bool:
    """In the run: apply a request, if there is one, and remove it. Whether something was applied.

    A killed run repeats it; then it is refused, because the policies have changed."""
    data = _read(folder)
    if data is None:
        return False
    try:
        apply(Change(data["change"]), str(data["seen"]), str(data["by"]))
        return True
    except (KeyError, ValueError, UsageError) as error:
        asked = {key: shown(data.get(key)) for key in ("change", "seen", "by")}
        folder.event("deployment refused", reason=shown(one_line(error), max_chars=300), **asked)
        return False
    finally:
        (folder.path / REQUEST).unlink(missing_ok=True)


def _read(folder: RunFolder) -> dict[str, Any] | None:
    with contextlib.suppress(DovetailError):
        return folder.read_json(REQUEST)
    (folder.path / REQUEST).unlink(missing_ok=True)  # damaged
    return None
