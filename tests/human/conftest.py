"""Readings of devices last longer here: on a loaded machine, the emulators' threads may pause for a quarter second."""

import pytest

from dovetail.human.mailbox import EXPIRY_S

LONG_S = 1.0


@pytest.fixture(autouse=True)
def readings_last_longer(monkeypatch):
    assert EXPIRY_S == 0.25
    for module in ("device", "spacemouse"):
        monkeypatch.setattr(f"dovetail.human.{module}.EXPIRY_S", LONG_S)
