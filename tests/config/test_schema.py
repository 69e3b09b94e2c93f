"""The typed tree, used from Python."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dovetail.config.schema import PluginSection, RunConfig
from support import sample_plugins

SECTIONS: dict[str, Any] = {
    "task": "support.sample_plugins:Task",
    "robot": {"type": "support.sample_plugins:Robot"},
    "operator": "support.sample_plugins:Plain",
    "actor": "support.sample_plugins:Plain",
    "policy": {"type": "support.sample_plugins:Policy", "hidden": (8, 8)},
    "labels": ["support.sample_plugins:Plain"],
    "algorithm": "support.sample_plugins:Plain",
}


def test_a_section_holds_its_plugins_own_config() -> None:
    config = RunConfig.model_validate(SECTIONS)
    assert config.policy.type == "support.sample_plugins:Policy"
    assert config.policy.config == sample_plugins.Policy.Config(hidden=(8, 8))
    assert config.labels[0].kind == "labeler"


def test_build_gives_the_config_first_and_handles_by_keyword() -> None:
    policy = RunConfig.model_validate(SECTIONS).policy.build(seed=3)
    assert type(policy) is sample_plugins.Policy
    assert vars(policy.config)["hidden"] == (8, 8)
    assert policy.handles == {"seed": 3}


def test_sections_may_be_given_as_objects() -> None:
    section = PluginSection.parse("task", "support.sample_plugins:OtherTask")
    assert RunConfig.model_validate({**SECTIONS, "task": section}).task is section
    with pytest.raises(ValidationError, match="is a plugin of kind task, not robot"):
        RunConfig.model_validate({**SECTIONS, "robot": section})


def test_a_config_never_changes() -> None:
    config = RunConfig.model_validate(SECTIONS)
    with pytest.raises(ValidationError):
        config.run = config.run
    with pytest.raises(AttributeError):
        config.robot.type = "x"  # type: ignore[misc]


def test_no_task_only_with_a_robot_that_brings_its_own() -> None:
    brings = {"type": "support.sample_plugins:BringsTask", "id": "FetchReach-v4"}
    assert RunConfig.model_validate({**SECTIONS, "task": None, "robot": brings}).task is None
    with pytest.raises(ValidationError, match=r"robot 'support.sample_plugins:Robot' needs a task"):
        RunConfig.model_validate({**SECTIONS, "task": None})
    assert (
        RunConfig.model_validate({**SECTIONS, "robot": brings}).task is not None
    )  # replaces the robot's own task


def test_there_is_at_least_one_labeler() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        RunConfig.model_validate({**SECTIONS, "labels": []})
