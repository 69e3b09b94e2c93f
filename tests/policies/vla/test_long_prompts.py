"""A prompt that is longer than the model's tokens: cut with a warning, as in training, and never a part of the state."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from dovetail.core.errors import PolicyWarning, UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.families.pi05 import PI05
from dovetail.policies.vla.new_model import write_new_model
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.pi05_policy import Pi05Policy

ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={"joints": ArraySpec(shape=(3,)), "front": ArraySpec(shape=(16, 16, 3), dtype="uint8")},
    action=ArraySpec(shape=(2,), low=(-9.0,) * 2, high=(9.0,) * 2),
    action_kind="joint_target",
    control_hz=10.0,
)


def make(folder, policy, family):
    path = folder / family.name
    write_new_model(path, family, horizon=4)
    ones = {"q01": [-1.0] * 3, "q99": [1.0] * 3, "mean": [0.0] * 3, "std": [1.0] * 3}
    action = {name: value[:2] for name, value in ones.items()}
    (path / "stats.json").write_text(json.dumps({"observation.state": ones, "action": action}))
    settings = {"images": {"base_0_rgb": "front"}, "device": "cpu", "stats": str(path / "stats.json")}
    return policy(policy.Config(checkpoint=str(path), **settings), robot=ROBOT)


@pytest.fixture(scope="module")
def pi0(tmp_path_factory):
    return make(tmp_path_factory.mktemp("pi0"), Pi0Policy, PI0)


@pytest.fixture(scope="module")
def pi05(tmp_path_factory):
    return make(tmp_path_factory.mktemp("pi05"), Pi05Policy, PI05)


def act(policy, task, *, state=0.0, rows=1):
    seen = {
        "joints": np.full((rows, 3), state, np.float32),
        "front": np.zeros((rows, 16, 16, 3), np.uint8),
        "prompt": np.repeat(encode_prompt(task)[None], rows, axis=0),
    }
    return policy.act(seen, ActContext(seed=1)).actions


def warned(policy, *tasks, **given):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for task in tasks:
            act(policy, task, **given)
    return [str(one.message) for one in found if one.category is PolicyWarning]


def test_one_warning_for_each_prompt_says_how_many_tokens_are_cut(pi0):
    room = pi0._setup.checkpoint.sizes.num_prompt_tokens  # <bos>, text, newline
    assert warned(pi0, "7" * (room - 2)) == []
    found = warned(pi0, "7" * (room - 2), "7" * (room + 1), "7" * (room + 1), "8" * (room - 1), rows=2)
    assert len(found) == 2
    assert found[0].startswith(f"the prompt has {room + 3} tokens, and policy 'pi0' takes {room}: it is cut by 3,")
    assert "cut by 1," in found[1] and "\n" not in "".join(found)


def test_pi05_refuses_a_prompt_that_would_cut_its_state(pi05):
    """Whatever the state is: three values of one digit now may have three digits later."""
    tokenizer, room = pi05._tokenizer, pi05._setup.checkpoint.sizes.num_prompt_tokens
    longest = np.ones(3, np.float32)
    used = int(tokenizer.encode(pi05._prompt("7", longest))[1].sum())
    end = len(tokenizer._ids(PI05.after_state))
    fits = "7" * (room - used + 1)
    assert warned(pi05, fits) == []
    (message,) = warned(pi05, fits + "7" * end)  # only what follows the state
    assert f"cut by {end}," in message
    with pytest.raises(
        UsageError, match=rf"up to {room + end + 1} tokens.*takes {room}: the state would be cut off"
    ):
        act(pi05, fits + "7" * (end + 1), state=-1.0)


def test_state_of_pi05_is_in_the_tokens_of_the_longest_prompt(pi05):
    tokenizer, room = pi05._tokenizer, pi05._setup.checkpoint.sizes.num_prompt_tokens
    used = int(tokenizer.encode(pi05._prompt("7", np.ones(3, np.float32)))[1].sum())
    tokens, mask = tokenizer.encode(pi05._prompt("7" * (room - used + 1), np.ones(3, np.float32)))
    text = tokenizer._tokenizer.decode(tokens[mask].tolist())
    assert text.endswith("State: 255 255 255;\nAction: ")
