"""The emulated Franka server: every endpoint, the impedance law, and the traps of the originals."""

import http.client
import json
import time

import numpy as np
import pytest

from dovetail.core.errors import RobotError, UsageError
from dovetail.emulators.emulator import EmulatorProcess, find_emulator
from dovetail.emulators.franka.emulator import FrankaEmulator, FrankaEmulatorConfig
from dovetail.robots.drivers.franka import emulator_token
from dovetail.robots.drivers.franka.emulator_token import HEADER, read_token

LIST_SIZES = {"pose": 7, "vel": 6, "force": 3, "torque": 3, "q": 7, "dq": 7}


class Client:
    def __init__(self, emulator):
        self.emulator = emulator
        host, port = emulator.address.split(":")
        self.http = http.client.HTTPConnection(host, int(port), timeout=60)

    def post(self, path, body=None, *, token=None, method="POST"):
        headers = {HEADER: token} if token else {}
        self.http.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
        response = self.http.getresponse()
        return response.status, response.read()

    def json(self, path, body=None):
        status, answer = self.post(path, body, token=self.emulator.token)
        assert status == 200, (path, status, answer)
        return json.loads(answer)

    def text(self, path, body=None):
        status, answer = self.post(path, body)
        assert status == 200, (path, status)
        return answer.decode()

    def advance(self, seconds):
        self.json("/emulator/advance", {"duration_ns": round(seconds * 1e9)})


@pytest.fixture
def emulate():
    """In lockstep, so that time passes only where a test says so."""
    opened = []

    def start(**settings):
        emulator = FrankaEmulator(FrankaEmulatorConfig(port=0, **{"lockstep": True, **settings}))
        emulator.start()
        opened.append(emulator)
        return Client(emulator)

    yield start
    for emulator in opened:
        emulator.close()


# ---- endpoints


def test_state_has_every_key_with_its_size(emulate):
    client = emulate()
    state = client.json("/getstate")
    assert {key: len(state[key]) for key in LIST_SIZES} == LIST_SIZES
    assert np.shape(state["jacobian"]) == (6, 7)
    assert isinstance(state["gripper_pos"], float)
    for path, key in (("/getpos", "pose"), ("/getvel", "vel"), ("/getforce", "force"), ("/gettorque", "torque")):
        assert client.json(path) == {key: state[key]}
    for key in ("q", "dq", "jacobian"):
        assert client.json(f"/get{key}") == {key: state[key]}
    assert client.json("/get_gripper") == {"gripper": state["gripper_pos"]}
    assert np.allclose(np.array(state["jacobian"]) @ state["dq"], state["vel"])


def test_quaternion_is_scalar_last_and_euler_angles_are_extrinsic(emulate):
    client = emulate()
    x, y, z, qx, qy, qz, qw = client.json("/getpos")["pose"]
    assert abs(qx) > 0.99 and abs(qw) < 0.01  # the gripper points down: half a turn about x
    euler = client.json("/getpos_euler")["pose"]
    assert euler[:3] == [x, y, z]
    assert abs(abs(euler[3]) - np.pi) < 0.01 and abs(euler[4]) < 0.01 and abs(euler[5]) < 0.01
    assert abs(qy) < 0.01 and abs(qz) < 0.01


def test_commands_answer_with_the_texts_of_the_original(emulate):
    client = emulate()
    pose = client.json("/getpos")["pose"]
    assert client.text("/pose", {"arr": pose}) == "Moved"
    assert client.text("/clearerr") == "Clear"
    assert client.text("/stopimp") and client.text("/startimp")
    assert client.text("/update_param", {"translational_stiffness": 1000}) == "Updated compliance parameters"
    load = {"mass": 0.1, "F_x_center_load": [0, 0, 0], "load_inertia": [0] * 9}
    assert client.text("/set_load", load) == "Set Load"
    assert client.text("/open_gripper") == "Opened"
    assert client.text("/close_gripper") == client.text("/close_gripper_slow") == "Closed"
    assert client.text("/move_gripper", {"gripper_pos": 100}) == "Moved Gripper"
    assert client.text("/activate_gripper") == "Activated" and client.text("/reset_gripper") == "Reset"


def test_wrong_requests_are_refused(emulate):
    client = emulate()
    assert client.post("/getstate", method="GET")[0] == 405
    assert client.post("/no_such_endpoint")[0] == 404
    assert client.post("/pose", {"arr": [1, 2]})[0] == 500
    assert client.post("/pose", {})[0] == 500
    assert emulate(server="serl").post("/set_load", {})[0] == 404


def test_own_endpoints_need_the_token(emulate):
    client = emulate()
    for token in (None, "wrong"):
        assert client.post("/emulator/state", token=token)[0] == 403
        assert client.post("/emulator/advance", {"duration_ns": 1_000_000}, token=token)[0] == 403
    assert read_token(client.emulator.address) == client.emulator.token
    assert client.json("/emulator/state")["time_ns"] == 0


def test_token_is_in_a_private_temporary_file(emulate, monkeypatch, tmp_path):
    monkeypatch.setattr(emulator_token, "user_folder", lambda: tmp_path / "user")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    client = emulate()
    (file,) = (tmp_path / "user" / "emulators").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "home").exists() and not (tmp_path / "state").exists()
    assert read_token(client.emulator.address) == client.emulator.token
    file.parent.chmod(0o755)
    with pytest.raises(RobotError, match="no emulator of this user"):
        read_token(client.emulator.address)
    file.parent.chmod(0o700)
    file.unlink()
    file.symlink_to(__file__)
    with pytest.raises(RobotError, match="no emulator of this user"):
        read_token(client.emulator.address)


def test_token_file_of_a_killed_emulator_is_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr(emulator_token, "user_folder", lambda: tmp_path / "user")
    first = emulator_token.make_token("127.0.0.1:1")
    assert emulator_token.make_token("127.0.0.1:1") == read_token("127.0.0.1:1") != first


def test_requests_for_unknown_paths_use_no_memory(emulate):
    client = emulate()
    for number in range(20):
        assert client.post(f"/no_such_endpoint_{number}")[0] == 404
        assert client.post(f"/emulator/no_{number}")[0] == 404
    assert not [path for path in client.emulator.endpoints.num_calls if "no_" in path]


def test_scene_of_another_task_is_refused(emulate):
    client = emulate()
    assert client.post("/emulator/reset", {"qpos": [0.0]}, token=client.emulator.token)[0] in (400, 500)
    state = {"qpos": [0.0], "qvel": [0.0], "act": [0.0], "ctrl": [0.0], "fixtures": []}
    status, answer = client.post("/emulator/reset", state, token=client.emulator.token)
    assert status == 400 and b"is the emulator's task the same?" in answer


# ---- the impedance law


def test_equilibrium_follows_its_target_with_the_filter_of_the_controller(emulate):
    client = emulate()
    law = client.emulator.arm._impedance
    pose = client.json("/getpos")["pose"]
    start = law._position.copy()
    client.text("/pose", {"arr": [pose[0] + 0.1, *pose[1:]]})
    client.advance(0.001)
    assert law._position[0] - start[0] == pytest.approx(0.005 * 0.1, rel=1e-3)
    client.advance(0.199)  # 200 cycles: 1 - 0.995^200 of the way
    assert law._position[0] - start[0] == pytest.approx(0.1 * (1 - 0.995**200), rel=1e-3)


def test_torque_changes_by_at_most_one_newton_meter_per_cycle(emulate):
    client = emulate()
    arm = client.emulator.arm
    client.text(
        "/update_param", {f"translational_clip_{sign}{axis}": 0.1 for sign in ("", "neg_") for axis in "xyz"}
    )
    pose = client.json("/getpos")["pose"]
    client.text("/pose", {"arr": [pose[0], pose[1] + 0.3, pose[2] + 0.3, *pose[3:]]})
    last, largest, highest = arm.world.data.qfrc_applied[:7].copy(), 0.0, 0.0
    for _ in range(300):
        arm.advance(1)
        torque = arm.world.data.qfrc_applied[:7].copy()
        largest, highest = max(largest, np.abs(torque - last).max()), max(highest, np.abs(torque).max())
        last = torque
    assert largest <= 1.0 + 1e-9
    assert highest > 5.0


def test_arm_reaches_a_pose_and_stays(emulate):
    client = emulate()
    pose = client.json("/getpos")["pose"]
    wanted = [pose[0] + 0.03, pose[1] - 0.02, pose[2] - 0.03, *pose[3:]]
    client.text("/pose", {"arr": wanted})
    client.advance(3.0)
    state = client.json("/getstate")
    assert np.allclose(state["pose"][:3], wanted[:3], atol=2e-3)
    assert np.linalg.norm(state["vel"]) < 0.01


def test_push_against_the_table_is_limited_by_the_clip_and_measured_as_force(emulate):
    """Stiffness 2000 N/m times a clip of 0.01 m is 20 N, however deep the equilibrium is."""
    client = emulate()
    client.text("/close_gripper")
    pose = client.json("/getpos")["pose"]
    for depth in (0.05, -0.05):
        client.text("/pose", {"arr": [pose[0], pose[1], depth, *pose[3:]]})
        client.advance(4.0)
    force = np.array(client.json("/getstate")["force"])
    assert np.linalg.norm(force) == pytest.approx(20.0, rel=0.15)
    assert abs(force[2]) > 0.95 * np.linalg.norm(force)


def test_parameters_outside_their_range_are_clamped_silently(emulate):
    client = emulate()
    assert client.text("/update_param", {"rotational_clip_x": 0.5}) == "Updated compliance parameters"
    assert client.json("/emulator/state")["parameters"]["rotational_clip_x"] == 0.1


def test_a_pose_that_is_not_finite_makes_the_arm_fail_until_it_is_cleared(emulate):
    client = emulate()
    pose = client.json("/getpos")["pose"]
    assert client.text("/pose", {"arr": [float("nan"), *pose[1:]]}) == "Moved"
    assert client.json("/emulator/state")["has_error"]
    client.text("/pose", {"arr": [pose[0] + 0.02, *pose[1:]]})
    client.advance(1.0)
    assert np.allclose(client.json("/getpos")["pose"], pose, atol=1e-3)
    client.text("/clearerr")
    client.text("/pose", {"arr": [pose[0] + 0.02, *pose[1:]]})
    client.advance(2.0)
    assert client.json("/getpos")["pose"][0] - pose[0] > 0.015


def test_stopped_controller_holds_and_ignores_poses(emulate):
    client = emulate()
    pose = client.json("/getpos")["pose"]
    client.text("/stopimp")
    client.text("/pose", {"arr": [pose[0] + 0.02, *pose[1:]]})
    client.advance(1.0)
    assert np.allclose(client.json("/getpos")["pose"], pose, atol=1e-3)


# ---- grippers


@pytest.mark.parametrize(
    ("server", "gripper", "opened", "closed"),
    [
        ("serl", "robotiq", 0.0, 255.0),
        ("hil_serl", "robotiq", 1 - 175 / 255, 0.0),
        ("serl", "franka", 0.08, 0.0),
        ("hil_serl", "franka", 1.0, 0.0),
    ],
)
def test_gripper_position_means_something_else_in_each_server(emulate, server, gripper, opened, closed):
    client = emulate(server=server, gripper=gripper)
    slack = 0.03 * max(abs(opened - closed), 0.05)
    for path, expected in (("/close_gripper", closed), ("/open_gripper", opened)):
        client.text(path)
        client.advance(1.5)
        assert client.json("/getstate")["gripper_pos"] == pytest.approx(expected, abs=slack)


def test_hil_serl_hand_ignores_a_repeated_command_after_the_fingers_were_moved(emulate):
    client = emulate(server="hil_serl", gripper="franka")
    client.text("/close_gripper")
    client.advance(1.0)
    client.json("/emulator/misbehave", {"kind": "open_fingers"})
    client.advance(1.0)
    assert client.text("/close_gripper") == "Closed"
    client.advance(1.0)
    assert client.json("/get_gripper")["gripper"] > 0.9
    client.text("/open_gripper")
    client.text("/close_gripper")
    client.advance(1.0)
    assert client.json("/get_gripper")["gripper"] < 0.05


def test_move_gripper_of_the_hand_divides_by_2550(emulate):
    client = emulate(server="serl", gripper="franka")
    client.text("/move_gripper", {"gripper_pos": 102})
    client.advance(1.0)
    assert client.json("/get_gripper")["gripper"] == pytest.approx(0.04, abs=2e-3)


def test_server_without_a_gripper_fails_to_give_its_state(emulate):
    client = emulate(gripper="none")
    assert client.post("/getstate")[0] == client.post("/get_gripper")[0] == client.post("/open_gripper")[0] == 500
    assert len(client.json("/getq")["q"]) == 7


def test_slow_close_takes_longer(emulate):
    client = emulate()
    client.text("/close_gripper_slow")
    client.advance(1.0)
    assert 0.5 < client.json("/get_gripper")["gripper"] < 0.9


# ---- joint reset


def test_joint_reset_takes_20_to_41_seconds_and_ends_at_the_target(emulate):
    client = emulate()
    before = client.json("/emulator/state")["time_ns"]
    assert client.text("/jointreset") == "Reset Joint"
    seconds = (client.json("/emulator/state")["time_ns"] - before) * 1e-9
    assert 20.0 <= seconds <= 41.0
    assert np.allclose(client.json("/getq")["q"], client.emulator.config.reset_joints, atol=0.02)


@pytest.mark.extended
def test_state_is_stale_during_a_joint_reset(emulate):
    client = emulate(lockstep=False, time_scale=10.0)
    other = Client(client.emulator)
    before = client.json("/getstate")["q"]
    client.http.request("POST", "/jointreset")
    time.sleep(0.7)
    first = other.json("/getstate")
    moved = None
    for _ in range(3):
        time.sleep(0.2)
        assert other.json("/getstate") | {"gripper_pos": 0} == first | {"gripper_pos": 0}
        moved = other.json("/emulator/state")["qpos"][:7]
    assert np.abs(np.array(moved) - before).max() > 0.05
    assert client.http.getresponse().read() == b"Reset Joint"
    assert np.abs(np.array(other.json("/getstate")["q"]) - before).max() > 0.1


# ---- time


def test_lockstep_time_passes_only_on_request(emulate):
    client = emulate()
    client.json("/getstate")
    time.sleep(0.05)
    assert client.json("/emulator/state")["time_ns"] == 0
    client.advance(0.0105)
    client.advance(0.0005)
    assert client.json("/emulator/state")["time_ns"] == 11_000_000


def test_real_time_runs_at_its_scale(emulate):
    client = emulate(lockstep=False)
    assert client.post("/emulator/advance", {"duration_ns": 1}, token=client.emulator.token)[0] == 400
    first, began_s = client.json("/emulator/state")["time_ns"], time.monotonic()
    time.sleep(0.5)
    passed_s = (client.json("/emulator/state")["time_ns"] - first) * 1e-9
    assert passed_s == pytest.approx(time.monotonic() - began_s, rel=0.4)  # the machine may be busy


# ---- process and misbehavior


@pytest.mark.parametrize("keep_alive", [True, False])
def test_connection_stays_open_only_with_keep_alive(emulate, keep_alive):
    client = emulate(keep_alive=keep_alive)
    client.json("/getq")
    assert (client.http.sock is not None) is keep_alive


def test_misbehavior_hits_the_given_endpoint_and_number_of_answers(emulate):
    client = emulate(misbehave="error:/getq:2")
    assert client.post("/getpos")[0] == 200
    assert [client.post("/getq")[0] for _ in range(3)] == [500, 500, 200]
    with pytest.raises(UsageError, match="no misbehavior 'halve'"):
        client.emulator.misbehave("halve")


def test_taken_port_is_an_error_in_one_line(emulate):
    port = int(emulate().emulator.address.split(":")[1])
    with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{port}: .*Set port=0"):
        FrankaEmulator(FrankaEmulatorConfig(port=port)).start()


def test_emulator_runs_as_a_process_of_its_own():
    assert find_emulator("franka") is FrankaEmulator
    with EmulatorProcess("franka", "port=0", "gripper=robotiq") as process:
        assert process.lines[0].startswith("http://127.0.0.1:")
        assert "robot.gripper=hil_serl_robotiq" in process.lines[1]
        host, port = process.lines[0].removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("POST", "/getq")
        assert len(json.loads(connection.getresponse().read())["q"]) == 7
        connection.close()
