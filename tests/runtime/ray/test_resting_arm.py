"""An arm that rests after a fault for which it does not wait: each acknowledgement is tried. Without Ray."""

from __future__ import annotations

from types import SimpleNamespace

from dovetail.core.errors import StoreError
from support.waiting import wait_until


def test_arm_continues_after_an_acknowledgement_although_an_earlier_one_failed(make, monkeypatch):
    role = make()

    def cannot_be_built():
        raise StoreError("the disk is still full")

    def acknowledge_once(problem):
        wait_until(lambda: role._stopped_at)
        role._stop.acknowledge()
        wait_until(lambda: role.problem == problem)

    monkeypatch.setattr(role, "_runner", cannot_be_built)
    role.problem = "the disk is full"
    acknowledge_once("the disk is still full")
    monkeypatch.setattr(role, "_runner", lambda: SimpleNamespace(acknowledge=lambda: None))
    acknowledge_once(None)
