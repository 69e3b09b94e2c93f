"""The base of every config model: strict, frozen, no unknown keys.

A plugin is a class with a `Config` attribute (its model, defined beside it) and a constructor that takes the
config first and its handles by keyword:

    kind        handles given by the runtime
    task        -
    robot       task
    operator    task, robot (a RobotSpec)
    policy      robot (a RobotSpec), seed
    labeler     -
    replay      folder, keys (the observations worth keeping)
    actor       robot, task, operator, policy, clock, recorder, probe, should_stop;
                where somebody may look on, board and watch
    algorithm   policy, seed

Constructors do no I/O. `type` names the plugin and is removed before the rest is validated.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Config"]


class Config(BaseModel):
    """Unknown keys and wrong types are errors; a config never changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True)
