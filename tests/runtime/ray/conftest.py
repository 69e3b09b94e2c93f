"""The role of an arm, without Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dovetail.config.load import load
from dovetail.runtime.ray.roles import robot as robot_role
from dovetail.runtime.ray.roles.robot import Arm, RobotRole
from support.toy_run import TOY


@pytest.fixture
def make(tmp_path, monkeypatch):
    """`make(real_time=..., setting=value)`: the role of an arm that is built, of a run in which the driver has called it."""
    monkeypatch.setattr(RobotRole, "_follow_weights", lambda role: None)
    (tmp_path / "toy.yaml").write_text(TOY)
    roles = []

    def build(*, real_time: bool = True, stop_token: str = "", robot: str = "", **cluster) -> RobotRole:
        overrides = [f"cluster.{name}={value}" for name, value in cluster.items()]
        overrides += [f"robot={robot}"] if robot else []
        config = load([str(tmp_path / "toy.yaml")], overrides).model_dump(mode="json")
        arm = Arm(name="left", config=config, config_hash="h", run=tmp_path, key="k", stop_token=stop_token)
        role = RobotRole(arm, store=None, weights=None)
        roles.append(role)
        role._assembly = SimpleNamespace(real_time=real_time, close=lambda: None)
        role.report()
        return role

    monkeypatch.setattr(robot_role.tempfile, "gettempdir", lambda: str(tmp_path))
    yield build
    for role in roles:
        role.close()
