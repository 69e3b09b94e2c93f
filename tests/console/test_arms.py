"""A run with two arms on this machine: each is watched and driven under its name."""

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from dovetail.console.live_api import make_app
from dovetail.console.run_files import OpenRun
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Event
from dovetail.human.mailbox import MailboxReader
from dovetail.live.link import LiveLink
from dovetail.testing.fakes import FakeArm, FakeArmConfig, FakeBimanual, FakeBimanualConfig
from dovetail.testing.mobile_arm import FakeMobileArm, FakeMobileArmConfig
from support.made_runs import made_run
from support.waiting import wait_until

CARTESIAN = RobotSpec(
    name="cartesian",
    embodiment="toy",
    observation={"ee_pose": ArraySpec(shape=(7,)), "front": ArraySpec(shape=(6, 8, 3), dtype="uint8")},
    parts=(
        ActionPart(
            name="arm", kind="ee_delta", unit="m", names=("x", "y", "z"), low=(-0.1,) * 3, high=(0.1,) * 3,
            hold="zero", frame="base", measured="ee_pose", max_speed=(0.2,) * 3,
        ),
        ActionPart(
            name="hand", kind="gripper", unit="1", names=("grip",), low=(0.0,), high=(1.0,), hold="last", max_speed=(2.0,)
        ),
    ),
    control_hz=10.0,
)  # fmt: skip
JOINTS = RobotSpec(
    name="joints",
    embodiment="toy",
    observation={"joint_pos": ArraySpec(shape=(2,))},
    parts=(
        ActionPart(
            name="arm", kind="joint_target", unit="rad", names=("j1", "j2"), low=(-1.0,) * 2, high=(1.0,) * 2,
            max_speed=(1.0, 1.0), measured="joint_pos",
        ),
    ),
    control_hz=10.0,
)  # fmt: skip
POSES = RobotSpec(
    name="poses",
    embodiment="toy",
    observation={"ee_pose": ArraySpec(shape=(7,))},
    parts=(
        ActionPart(
            name="arm", kind="ee_target", unit="m", names=("x", "y", "z"), low=(-1.0,) * 3, high=(1.0,) * 3,
            max_speed=(1.0,) * 3, frame="base", measured="ee_pose",
        ),
    ),
    control_hz=10.0,
)  # fmt: skip


@pytest.fixture
def arms(tmp_path):
    """Links of `left`, the first arm, and `right`, as a run on Ray makes them."""
    run = made_run(tmp_path / "run").path
    (run / "robots" / "right").mkdir(parents=True)
    left = LiveLink(run, robot=CARTESIAN, arm="left")
    left.open()
    right = LiveLink(run / "robots" / "right", robot=JOINTS, arm="right", stop=left.stop)
    right.open()
    yield {"left": left, "right": right}
    right.close()
    left.close()


@pytest.fixture
def client(arms, tmp_path):
    with TestClient(make_app(OpenRun(tmp_path / "run"))) as client:
        yield client


def test_state_lists_both_arms_and_shows_the_chosen_one(client):
    for name, robot in (("left", "arm"), ("right", "arm")):
        answer = client.get(f"/api/state?arm={name}").json()
        assert [arm["name"] for arm in answer["arms"]] == ["left", "right"]
        assert all(arm["is_here"] for arm in answer["arms"])
        assert answer["state"]["arm"] == name
        assert answer["state"]["drive"]["parts"][0]["name"] == robot
    assert client.get("/api/state").json()["state"]["arm"] == "left"


def test_drive_message_reaches_the_named_arm_only(client, arms):
    with client.websocket_connect("/ws/drive?arm=right") as socket:
        socket.send_json({"n": 1, "t": 1.0, "held": True, "axes": [0.0, 0.5]})
        answer = socket.receive_json()
        command = MailboxReader(arms["right"].mailbox).command()
    assert answer["n"] == 1 and answer["session"] == command.session
    assert command.axes.tolist() == [0.0, 0.5, *(0.0,) * 6]  # and the Cartesian axes of its joints
    assert MailboxReader(arms["left"].mailbox).command() is None


def test_two_people_drive_one_arm_each(client, arms):
    with (
        client.websocket_connect("/ws/drive?arm=left") as left,
        client.websocket_connect("/ws/drive?arm=right") as right,
    ):
        left.send_json({"n": 1, "t": 1.0, "held": True, "axes": [0.1, 0.0, 0.0, 0.0]})
        right.send_json({"n": 1, "t": 1.0, "held": True, "axes": [0.2, 0.0]})
        assert "refused" not in left.receive_json() and "refused" not in right.receive_json()


def test_second_tab_of_a_browser_is_told_that_its_user_drives(client):
    message = {"t": 1.0, "held": True, "axes": [0.0, 0.1]}
    with (
        client.websocket_connect("/ws/drive?arm=right&browser=ab12") as one,
        client.websocket_connect("/ws/drive?arm=right&browser=ab12") as other,
        client.websocket_connect("/ws/drive?arm=right&browser=cd34") as stranger,
    ):
        for socket in (one, other, stranger):
            socket.send_json({"n": 1, **message})
            answer = socket.receive_json()
            expected = {one: None, other: "you are driving in another tab of this browser"}
            assert answer.get("refused") == expected.get(socket, "another person is driving")


def test_event_goes_to_the_named_arm(client, arms):
    assert client.post("/api/event", json={"event": "pause", "arm": "right"}).json() == {"sent": True}
    assert MailboxReader(arms["right"].mailbox).next_event().event is Event.PAUSE
    assert MailboxReader(arms["left"].mailbox).next_event() is None


def test_unknown_arm_is_refused_and_the_arms_are_named(client):
    answer = client.post("/api/event", json={"event": "pause", "arm": "middle"})
    assert answer.status_code == 404
    assert (
        answer.json()["detail"]
        == "arm 'middle' is not on this machine, or it has not started. Arms here: left, right"
    )
    assert client.get("/api/state?arm=middle").json()["state"] is None


def test_stop_reaches_the_mailboxes_of_both_arms(client, arms):
    client.post("/api/stop")
    assert all(link.mailbox.emergency for link in arms.values())
    client.post("/api/event", json={"event": "acknowledge", "arm": "right"})
    wait_until(lambda: not any(link.mailbox.emergency for link in arms.values()))
    assert not arms["left"].stop.emergency


def test_cameras_of_the_robot_come_before_those_of_the_simulated_scene(client):
    assert client.get("/api/cameras?arm=left").json() == {"cameras": ["front", "wrist"], "own": 1}
    assert client.get("/api/cameras?arm=right").json() == {"cameras": ["front", "wrist"], "own": 0}


def test_parts_of_the_action_tell_the_page_what_to_offer(client):
    left = client.get("/api/state?arm=left").json()["state"]["drive"]
    assert [(part["axes"], part["first"], part["is_cartesian"]) for part in left["parts"]] == [
        (["dx", "dy", "dz"], 0, True),
        (["grip"], 3, False),
    ]
    right = client.get("/api/state?arm=right").json()["state"]["drive"]
    assert right == {
        "parts": [
            {
                "name": "arm",
                "kind": "joint_target",
                "gripper": None,
                "first": 0,
                "axes": ["j1", "j2"],
                "is_cartesian": False,
            }
        ],
        "num_axes": 8,
        "refusal": "",
    }


def drive_of(folder, robot, **shown):
    link = LiveLink(made_run(folder).path, robot=robot)
    link.open()
    link.show_drive(**{"driven_parts": (), "cartesian_parts": (), **shown})
    try:
        with TestClient(make_app(OpenRun(folder))) as client:
            return client.get("/api/state").json()["state"]["drive"]
    finally:
        link.close()


def test_absolute_poses_are_driven_by_keys_and_sticks(tmp_path):
    drive = drive_of(tmp_path / "run", POSES)
    assert drive["refusal"] == ""
    assert [(part["axes"], part["is_cartesian"]) for part in drive["parts"]] == [(["dx", "dy", "dz"], True)]


def test_arm_with_known_geometry_is_driven_by_sticks_or_joint_by_joint(tmp_path):
    robot = FakeBimanual(FakeBimanualConfig()).spec
    drive = drive_of(tmp_path / "run", robot, cartesian_parts=("arm",))
    cartesian, joints = drive["parts"]
    assert (cartesian["name"], cartesian["first"], cartesian["is_cartesian"]) == ("arm", 24, True)
    assert (joints["name"], joints["first"], len(joints["axes"])) == ("arm, joints", 0, 24)
    assert drive["num_axes"] == 30


def test_mobile_base_is_driven_by_sticks_and_a_part_may_be_the_only_one(tmp_path):
    robot = FakeMobileArm(FakeMobileArmConfig()).spec
    arm, gripper, base = drive_of(tmp_path / "all", robot)["parts"]
    assert (base["axes"], base["is_cartesian"]) == (["dx", "dy"], True)
    assert arm["gripper"] == gripper["name"] == "gripper"
    only = drive_of(tmp_path / "one", robot, driven_parts=("base",))
    assert [part["name"] for part in only["parts"]] == ["base"] and only["num_axes"] == 11


def test_robot_that_cannot_be_driven_says_why(tmp_path):
    unknown = replace(FakeArm(FakeArmConfig()).spec, action_kind="gym", parts=())
    assert "of kind gym, which an operator cannot drive" in drive_of(tmp_path / "run", unknown)["refusal"]


def test_arm_that_ended_disappears(client, arms):
    arms["right"].close()
    wait_until(lambda: [arm["name"] for arm in client.get("/api/state").json()["arms"]][:1] == ["left"])
    wait_until(lambda: not any(one["is_here"] for one in client.get("/api/state").json()["arms"][1:]))
    arms["right"].open()
