"""`dovetail serve --keys`: observations as openpi's stock environments and SGLang's clients send them reach the policy."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect

from dovetail.cli._serving import _read_keys
from dovetail.core.errors import ConfigError, SpecMismatch, UsageError
from dovetail.core.prompts import decode_prompt
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import ActContext, ActionChunk
from dovetail.policies.openpi.keys import key_map
from dovetail.policies.openpi.packing import pack, unpack
from dovetail.serve.openpi_server import OpenpiServer

TOKEN = b"a-token-for-tests-long-enough"
CAMERA = ArraySpec(shape=(224, 224, 3), dtype="uint8")
OWN_KEYS = """
keys:
  like: droid
  images: {observation/exterior_image_1_left: left_camera}
  state: {observation/joint_position: [joint_pos], observation/gripper_position: ["hand[1:2]", "hand[0:1]"]}
"""


class RecordingPolicy:
    """Returns zeros and keeps the inputs."""

    def __init__(self, observation: dict[str, ArraySpec]) -> None:
        self.spec = PolicySpec(
            name="recording",
            observation=observation,
            action=ArraySpec(shape=(7,), low=(-1.0,) * 7, high=(1.0,) * 7),
            action_kind="joint_target",
            horizon=3,
            prompted=True,
        )

    def act(self, observations: Any, context: ActContext) -> ActionChunk:
        self.inputs = dict(observations)
        actions = np.zeros((len(observations["prompt"]), 3, 7), np.float32)
        return ActionChunk(actions=actions, observed_ns=0, policy_version=1)

    def reset(self) -> None:
        raise AssertionError("the protocol has no resets")


def image(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (224, 224, 3), dtype=np.uint8)


def numbers(count: int) -> Any:
    return np.arange(count, dtype=np.float64) / 8  # the stock environments send float64


ALOHA = ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")
# What is sent, and what the policy gets of it.
STOCK: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "droid": (
        {
            "observation/exterior_image_1_left": image(1),
            "observation/wrist_image_left": image(2),
            "observation/joint_position": numbers(7),
            "observation/gripper_position": numbers(1),
        },
        {"front": image(1), "wrist": image(2), "joint_pos": numbers(7), "gripper": numbers(1)},
    ),
    "aloha": (
        {
            "state": numbers(14),
            "images": {name: image(i).transpose(2, 0, 1) for i, name in enumerate(ALOHA)},  # channels first
        },
        {"joint_pos": numbers(14), **{name: image(i) for i, name in enumerate(ALOHA)}},
    ),
    "libero": (
        {"observation/state": numbers(8), "observation/image": image(1), "observation/wrist_image": image(2)},
        {"state": numbers(8), "front": image(1), "wrist": image(2)},
    ),
    "lerobot": (
        {
            "observation.state": numbers(7),
            "observation.images.front": image(1),
            "observation.images.wrist": image(2),
            "enable_prefix_cache": True,
        },
        {"joint_pos": numbers(7), "front": image(1), "wrist": image(2)},
    ),
    "own.yaml": (
        {
            "observation/exterior_image_1_left": image(1),
            "observation/joint_position": numbers(7),
            "observation/gripper_position": np.array([0.5, 0.25]),
        },
        {"left_camera": image(1), "joint_pos": numbers(7), "hand": np.array([0.25, 0.5])},
    ),
}


@pytest.mark.parametrize("keys", STOCK)
def test_stock_observation_reaches_the_policy_unchanged(
    keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(OWN_KEYS)
    sent, expected = STOCK[keys]
    observation = {
        name: CAMERA if value.ndim == 3 else ArraySpec(shape=value.shape) for name, value in expected.items()
    }
    policy, given = RecordingPolicy(observation), _read_keys(keys, protocol="openpi")
    assert given is not None
    server = OpenpiServer(policy, token=TOKEN, keys=key_map(given))
    address, stopped = server.listen(), threading.Event()
    thread = threading.Thread(target=server.run, args=(stopped.is_set,))
    thread.start()
    try:
        headers = {"Authorization": f"Api-Key {TOKEN.decode()}"}
        with connect(f"ws://{address}/", additional_headers=headers, compression=None) as connection:
            connection.recv(timeout=10)
            connection.send(pack({**sent, "task" if keys == "lerobot" else "prompt": "fold the shirt"}))
            assert unpack(connection.recv(timeout=10))["actions"].shape == (3, 7)
    finally:
        stopped.set()
        thread.join(10)
    assert decode_prompt(policy.inputs.pop("prompt")[0]) == "fold the shirt"
    assert policy.inputs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(policy.inputs[name][0], value)


def test_unknown_keys_are_one_line_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--keys driod is no file and none of droid, .*Did you mean 'droid'"):
        _read_keys("driod", protocol="openpi")
    with pytest.raises(UsageError, match="--keys is for --protocol openpi"):
        _read_keys("droid", protocol="dovetail")
    file = tmp_path / "keys.yaml"
    file.write_text("keys: {imagess: {}}")
    with pytest.raises(ConfigError, match="imagess"):
        _read_keys(str(file), protocol="openpi")


@pytest.mark.parametrize(
    ("num_axes", "because"),
    [(1, r"needs the numbers hand\[1:2\]"), (3, "needs observation 'hand', which the keys do not give")],
)
def test_keys_that_do_not_fit_the_policy_are_refused_before_the_server_listens(
    tmp_path: Path, num_axes: int, because: str
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN_KEYS)
    given = _read_keys(str(file), protocol="openpi")
    assert given is not None
    policy = RecordingPolicy({"left_camera": CAMERA, "hand": ArraySpec(shape=(num_axes,))})
    with pytest.raises(SpecMismatch, match=because):
        OpenpiServer(policy, token=TOKEN, keys=key_map(given))
