"""Policy `openpi` against emulators of three servers: keys, images, errors, time-outs and restarts."""

from __future__ import annotations

import socket
import threading
import time
import warnings

import numpy as np
import pytest
from PIL import Image

from dovetail.actor.modes import Rtc
from dovetail.config.load import load
from dovetail.config.trust import check_stored
from dovetail.core.errors import ConfigError, PluginError, PolicyError, PolicyUnreachable, SpecMismatch, UsageError
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.openpi.policy import OpenpiConfig, OpenpiPolicy
from support.openpi_servers import DIALECTS, ROBOT, Dialect, emulating, observed, openpi_client

STILL = ActContext(deterministic=True)


@pytest.mark.parametrize("name", DIALECTS)
def test_each_dialect_answers_and_network_time_is_split(name):
    dialect = DIALECTS[name]()
    with emulating(dialect) as address, openpi_client(address, dialect=dialect) as policy:
        policy.warmup()
        for first in (0.5, -0.25):  # the first answer of a connection lacks prev_total_ms
            chunk = policy.act(observed(first), STILL)
            assert chunk.actions.dtype == np.float32
            np.testing.assert_array_equal(chunk.actions, [[[first, 1], [first, 2], [first, 3]]])
            assert chunk.policy_version == 0 and chunk.extras["network_s"].shape == (1,)
            assert (chunk.extras["server_s"][0] > 0) == dialect.has_timing
        seen = dialect.seen[-1]
        assert seen["task" if name == "sglang" else "prompt"] == "insert the peg"
        assert dialect.headers == [""]


def padded(frame):
    """openpi's helper, written out: 48x64 into 224x224."""
    ratio = max(frame.shape[1] / 224, frame.shape[0] / 224)
    height, width = int(frame.shape[0] / ratio), int(frame.shape[1] / ratio)
    image = Image.new("RGB", (224, 224), 0)
    small = Image.fromarray(frame).resize((width, height), resample=Image.BILINEAR)
    image.paste(small, (int((224 - width) / 2), int((224 - height) / 2)))
    return np.asarray(image)


def test_droid_keys_are_flat_and_images_are_openpis_bit_for_bit():
    dialect, seen = Dialect(), observed(0.5)
    with emulating(dialect) as address, openpi_client(address) as policy:
        policy.act(seen, STILL)
    (wire,) = dialect.seen
    assert set(wire) == {
        *("observation/exterior_image_1_left", "observation/wrist_image_left"),
        *("observation/joint_position", "observation/gripper_position", "prompt"),
    }
    np.testing.assert_array_equal(wire["observation/joint_position"], [0.5, 0.5, 0.25])
    np.testing.assert_array_equal(wire["observation/gripper_position"], np.float32([0.75]))
    np.testing.assert_array_equal(wire["observation/exterior_image_1_left"], padded(seen["front"][0]))
    np.testing.assert_array_equal(wire["observation/wrist_image_left"], padded(seen["wrist"][0]))


def test_aloha_images_are_nested_with_channels_first():
    dialect, seen = Dialect(state_key="state"), observed(0.5)
    keys = {"like": "aloha", "images": {"cam_high": "front"}, "constants": {"enable_cuda_graph": True}}
    with emulating(dialect) as address, openpi_client(address, keys=keys) as policy:
        policy.act(seen, STILL)
    wire = dialect.seen[0]
    assert set(wire) == {"state", "images", "prompt", "enable_cuda_graph"} and set(wire["images"]) == {"cam_high"}
    np.testing.assert_array_equal(wire["images"]["cam_high"], padded(seen["front"][0]).transpose(2, 0, 1))


def test_action_axes_are_reordered_and_limited():
    dialect = Dialect(infer=lambda wire: np.float32([[1, 20]] * 3))
    with emulating(dialect) as address, openpi_client(address, action_axes=["b", "a"]) as policy:
        np.testing.assert_array_equal(policy.act(observed(), STILL).actions[0, 0], [9, 1])


def test_rows_of_a_batch_are_answered_in_order():
    batch = {key: np.concatenate((value, observed(2.0)[key])) for key, value in observed(1.0).items()}
    with emulating(Dialect()) as address, openpi_client(address) as policy:
        assert policy.act(batch, STILL).actions[:, 0, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((4, 2), np.float32), r"received 4 actions, expected 3\. Set policy\.horizon=4"),
        (np.zeros((3, 7), np.float32), r"7 axes, but robot 'arm' has 2"),
        (np.zeros(3, np.float32), r"received actions float32\[3\], expected floats \[3, 2\]"),
        (np.full((3, 2), np.nan, np.float32), "not finite"),
        (np.zeros((3, 2), np.complex64), "dtype '<c8'"),
        ([[1.0]], "received actions none"),
    ],
)
def test_wrong_answer_is_one_line(actions, message):
    with emulating(Dialect(infer=lambda wire: actions)) as address, openpi_client(address) as policy:
        with pytest.raises(PolicyError, match=rf"openpi server 127.0.0.1:\d+: .*{message}") as caught:
            policy.warmup()
        assert "\n" not in str(caught.value)


def test_traceback_becomes_one_line_and_the_next_call_connects_again():
    dialect = Dialect(infer=lambda wire: wire["observation/state"])
    with emulating(dialect) as address, openpi_client(address) as policy:
        with pytest.raises(PolicyError, match=r"reports: KeyError: 'observation/state'$") as caught:
            policy.act(observed(), STILL)
        assert "\n" not in str(caught.value) and "File" not in str(caught.value)
        dialect.infer = None
        assert policy.act(observed(0.5), STILL).actions[0, 0, 0] == 0.5


def test_stalled_server_is_a_time_out_and_its_late_answer_is_never_used():
    dialect = Dialect()
    with emulating(dialect) as address, openpi_client(address, timeout_s=0.2, connect_timeout_s=3.0) as policy:
        policy.warmup()
        dialect.stall_s = 0.6
        began_s = time.monotonic()
        with pytest.raises(PolicyError, match=r"no answer in time.*raise policy\.timeout_s"):
            policy.act(observed(1.0), STILL)
        assert time.monotonic() - began_s < 0.55  # it did not wait for the server, which answers no close either
        dialect.stall_s = 0.0
        assert policy.act(observed(2.0), STILL).actions[0, 0, 0] == 2.0


def test_second_answer_is_never_taken_for_that_of_the_next_observation():
    dialect = Dialect(num_answers=2)
    with emulating(dialect) as address, openpi_client(address) as policy:
        assert policy.act(observed(1.0), STILL).actions[0, 0, 0] == 1.0
        time.sleep(0.2)  # until the second one has arrived
        with pytest.raises(PolicyError, match="more than one answer to a request"):
            policy.act(observed(2.0), STILL)
        dialect.num_answers = 1
        assert policy.act(observed(3.0), STILL).actions[0, 0, 0] == 3.0


def test_client_continues_after_a_restart():
    with emulating(Dialect()) as address, openpi_client(address) as policy:
        policy.warmup()
    with pytest.raises(PolicyError, match=r"cannot connect|connection lost"):
        policy.act(observed(), STILL)
    with pytest.raises(PolicyError, match="cannot connect"):
        policy.reset()  # before the robot moves
    with emulating(Dialect(), port=int(address.rpartition(":")[2])):
        policy.reset()
        assert policy.act(observed(0.5), STILL).actions[0, 0, 0] == 0.5
        policy.close()


def test_pause_longer_than_the_time_out_keeps_the_connection():
    """A new connection would begin another episode at a server whose policy has history."""
    dialect = Dialect()
    with emulating(dialect) as address, openpi_client(address, timeout_s=0.3, first_timeout_s=5.0) as policy:
        policy.warmup()
        policy.act(observed(), STILL)
        assert policy._session._socket.socket.gettimeout() is None  # what ends the connection with websockets 15
        time.sleep(0.5)
        policy.act(observed(), STILL)
    assert len(dialect.headers) == 1


def test_connection_that_ends_during_the_upgrade_means_hold():
    """As through a tunnel whose other end has no server, or a server that is killed meanwhile."""

    def close_at_once(listener):
        connection, _ = listener.accept()
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=close_at_once, args=(listener,))
        thread.start()
        with (
            openpi_client(f"127.0.0.1:{listener.getsockname()[1]}") as policy,
            pytest.raises(PolicyUnreachable, match="connection lost"),
        ):
            policy.act(observed(), STILL)
        thread.join()


def test_api_key_is_sent_from_a_private_file(tmp_path):
    file, dialect = tmp_path / "key", Dialect()
    file.write_text("sesame\n")
    with emulating(dialect) as address, openpi_client(address, api_key_file=str(file)) as policy:
        file.chmod(0o644)
        with pytest.raises(UsageError, match="can be read by other users"):
            policy.warmup()
        file.chmod(0o600)
        policy.warmup()
    assert dialect.headers == ["Api-Key sesame"]


def test_wrong_path_and_other_servers_are_named():
    with (
        emulating(Dialect(path="/openpi/policy")) as address,
        openpi_client(address) as policy,
        pytest.raises(PolicyError, match=r"no path / \(HTTP 404\)\. Set policy\.path"),
    ):
        policy.warmup()


def test_stock_server_gets_no_context_and_a_warning_says_that_chunks_are_not_guided():
    dialect = Dialect()
    guided = ActContext(deterministic=True, prefix=np.zeros((1, 3, 2), np.float32), delay=1, horizon=2)
    with emulating(dialect) as address, openpi_client(address) as policy:
        Rtc().check(policy.spec)
        with pytest.warns(UserWarning, match=r"cannot guide chunks: actor\.type=rtc acts as actor\.type=naive"):
            chunk = policy.act(observed(4.0), guided)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            policy.act(observed(4.0), guided)  # said once
    assert chunk.actions[0, :, 0].tolist() == [4.0, 4.0, 4.0]
    assert not any("context" in key for seen in dialect.seen for key in seen)


def test_weights_are_refused():
    policy = OpenpiPolicy(OpenpiConfig(address="gpu:8000", keys="droid", horizon=3), robot=ROBOT)
    with pytest.raises(UsageError, match="cannot load weights"):
        policy.load(WeightSnapshot(version=1, components={}, hashes={}))


def test_robot_without_a_needed_observation_is_refused_by_name():
    config = OpenpiConfig(address="gpu:8000", keys="libero", horizon=3)
    with pytest.raises(
        SpecMismatch, match="'observation/state' is made of 'state', which robot 'arm' does not have"
    ):
        _ = OpenpiPolicy(config, robot=ROBOT).spec


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("keys=droit", "keys"),
        ("keys={like: droid, imagess: {}}", "unknown key"),
        ("address=gpu", "host:port"),
        ("path=openpi", "path"),
        ("keys={state: {s: ['joint_pos[3:1]']}}", r"joint_pos or gripper\[0:1\]"),
    ],
)
def test_wrong_setting_is_refused(setting, message):
    policy = "policy={type: openpi, address: 'gpu:8000', keys: droid, horizon: 3}"
    with pytest.raises(ConfigError, match=message):
        load(["peg-insertion"], [policy, f"policy.{setting}"])


def test_stored_config_of_a_stranger_names_no_key_file(tmp_path):
    with pytest.raises(PluginError, match="a file with a key"):
        check_stored({"policy": {"type": "openpi", "api_key_file": "/home/x/key"}}, tmp_path)


def test_calls_from_two_threads_do_not_mix():
    with emulating(Dialect()) as address, openpi_client(address) as policy:
        policy.warmup()
        found: dict[float, float] = {}

        def call(first: float) -> None:
            found[first] = float(policy.act(observed(first), STILL).actions[0, 0, 0])

        threads = [threading.Thread(target=call, args=(float(i),)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {float(i): float(i) for i in range(8)}
