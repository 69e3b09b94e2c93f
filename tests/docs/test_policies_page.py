"""The components in docs/policies.md are correct, and its example works."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.config.schema import PluginSection
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import WeightSnapshot
from dovetail.runs.assembly.policy_components import build_policy

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
FILES = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def arm(name, num):
    return RobotSpec(
        name=name,
        embodiment=name,
        observation={
            "joint_pos": ArraySpec(shape=(num,)),
            "ee_pose": ArraySpec(shape=(7,)),
            "task_state": ArraySpec(shape=(12,)),
            "front": ArraySpec(shape=(32, 32, 3), dtype="uint8"),
        },
        action=ArraySpec(shape=(num,), low=(-1.0,) * num, high=(1.0,) * num),
        action_kind="joint_target",
        control_hz=10.0,
    )


class Chance:
    """A replay of random steps."""

    def size(self, view):
        return 10

    def sample(self, into, *, view, rng, window):
        for out in into.values():
            out[:] = rng.uniform(-1, 1, out.shape)


@pytest.mark.parametrize(
    "kind", ["gaussian_mlp", "flow", "steered", "flow_actor", "actor_critic", "flow_actor_critic", "valued_flow"]
)
def test_the_table_names_the_components(kind):
    (names,) = re.findall(rf"^\| `{kind}` \| (.*) \|$", PAGE, re.MULTILINE)
    extra = {"inputs": ["joint_pos", "front"]} if kind in ("flow", "steered", "valued_flow") else {}
    section = PluginSection.parse("policy", {"type": kind, **extra})
    policy = build_policy(section, robot=arm("franka_panda", 7), seed=0)
    flow = {"actor", "encoder"} if kind in ("steered", "valued_flow") else set()
    optional = {"path_noise"} if kind == "valued_flow" else set()  # with path_noise.type=learned
    assert set(policy.components) == (set(re.findall(r"`(\w+)`", names)) - {"flow"} - optional) | flow


def test_the_example_learns_from_both(tmp_path, monkeypatch):
    for name, code in FILES.findall(PAGE):
        (tmp_path / name).write_text(code)
    (yaml,) = re.findall(r"^```yaml\n(# arms\.yaml\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "arms.yaml").write_text(yaml)
    monkeypatch.syspath_prepend(str(tmp_path))
    section = load(["push-cube", str(tmp_path / "arms.yaml")]).policy
    robots = [arm("franka_panda", 7), arm("arx_x5", 6)]
    example = importlib.import_module("learn_from_both")
    weights = example.learn_from_both(section.config, [(robot, Chance()) for robot in robots], num_updates=2)
    for robot in robots:
        policy = build_policy(section, robot=robot, seed=1)
        before = policy.weights()["actor"]
        policy.load(WeightSnapshot(version=1, components=weights, hashes={}))
        assert not np.array_equal(before["0.weight"], policy.weights()["actor"]["0.weight"])
