"""Settings of `robot.type: ros2`: what is refused before anything connects, and what is read of a message."""

import copy
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dovetail.core.errors import ConfigError, DovetailError
from dovetail.robots.drivers.ros2.driver import Ros2Robot
from dovetail.robots.drivers.ros2.messages import Codec, MessageError
from dovetail.robots.drivers.ros2.settings import Ros2Config, StateTopic
from dovetail.robots.drivers.ros2.stamps import CaptureClock
from dovetail.robots.drivers.ros2.topics import CommandBuilder, StateReader, robot_spec
from support.ros2_robots import igris_settings

POSE = {
    "name": "pose_arm",
    "state": [{"topic": "/pose", "msg_type": "PoseStamped", "fields": {"ee_pose": "pose"}}],
    "command": [
        {
            "topic": "/target",
            "msg_type": "geometry_msgs/PoseStamped",
            "fields": {"arm": "pose"},
            "constants": {"header.frame_id": "base"},
        }
    ],
    "action": [
        {
            "name": "arm",
            "kind": "ee_target",
            "unit": "m+rad",
            "frame": "base",
            "low": -1.0,
            "high": 1.0,
            "max_speed": 0.2,
            "measured": "ee_pose",
        }
    ],
}


def robot(change: dict[str, Any]) -> Ros2Robot:
    return Ros2Robot(Ros2Config.from_mapping({**igris_settings(0), **change}))


def changed(section: str, index: int, **values: Any) -> dict[str, Any]:
    topics = copy.deepcopy(igris_settings(0)[section])
    topics[index].update(values)
    return {section: topics}


def test_the_recipe_has_24_axes_with_the_left_side_first() -> None:
    spec = robot({}).spec
    assert [part.name for part in spec.parts] == ["left_arm", "right_arm", "left_hand", "right_hand"]
    assert spec.action.shape == (24,)
    assert spec.observation["joint_pos"].shape == (12,)
    assert spec.parts[0].max_speed[0] / spec.control_hz == pytest.approx(np.radians(5.0), rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("state", 0, msg_type="JointStat"), "'JointStat' is not supported"),
        (changed("state", 0, topic="joint_states"), "no full topic name"),
        (changed("state", 0, fields={"joint_pos": {"slice": [6, 6]}}), "0 <= first < end"),
        (changed("state", 0, fields={"joint_pos": {"attr": "positon", "slice": [0, 6]}}), "'positon'.*position"),
        (changed("state", 0, fields={"joint_pos": "position"}), "is a list. Add `slice"),
        (changed("state", 1, fields={"joint_pos": {"slice": [0, 12]}}), "two state topics have a field 'joint_pos'"),
        (changed("state", 1, msg_type="String"), "has no numbers: name it under `expect`"),
        (changed("state", 1, msg_type="Image"), "ros_image"),
        (changed("state", 0, expect={"nam": ["a"]}), "'nam' cannot be compared"),
        (changed("state", 0, sizes={"position": 6}), "ends after its size 6"),
        (changed("command", 0, fields={"left_arm": {"attr": "position", "slice": [6, 12]}}), "cover 0 to 12"),
        (changed("command", 1, fields={"left_hand": {"slice": [0, 6]}}), "'right_hand' is in 0 command topics"),
        (changed("command", 1, fields={"left_hnd": {"slice": [0, 6]}}), "no action part 'left_hnd'"),
        (changed("command", 1, fields={"left_hand": {"slice": [0, 5]}, "right_hand": {"slice": [5, 11]}}), "6 numbers"),
        (changed("action", 0, measured="joint_pos[0:5]"), "needs 6 measured values"),
        ({"dds": {"interface": 'lo"/><x'}}, "no interface or address"),
        ({"dds": {"domain_id": 233}}, "232"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_before_anything_connects(change: dict[str, Any], message: str) -> None:
    with pytest.raises((DovetailError, ValidationError), match=message):
        robot(change)


def state_reader(**values: Any) -> StateReader:
    topic = {
        "topic": "/s",
        "msg_type": "JointState",
        "fields": {"q": {"attr": "position", "slice": [[2, 4], [0, 2]]}},
    }
    return StateReader(StateTopic.from_mapping({**topic, **values}))


def joint_state(position: list[float], **values: Any) -> Any:
    message = Codec().blank("sensor_msgs/msg/JointState")
    message.position = np.array(position)
    message.name = values.get("name", [])
    return message


def test_slices_reorder_the_numbers_of_a_message() -> None:
    assert state_reader().read(joint_state([0, 1, 2, 3]))["q"].tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ([], "'position' has 0 numbers instead of 4"),
        ([0, 1, 2], "has 3 numbers"),
        ([0, 1, 2, 3, 4], "has 5 numbers"),
        ([0, 1, np.nan, 3], "not finite"),
        ([0, 1, 1e39, 3], "not finite"),
    ],
)
def test_a_missing_or_invalid_number_is_an_error_and_never_zero(position: list[float], message: str) -> None:
    with pytest.raises(MessageError, match=message):
        state_reader().read(joint_state(position))


def test_unexpected_joint_names_are_an_error() -> None:
    reader = state_reader(expect={"name": ["a", "b", "c", "d"]})
    reader.read(joint_state([0, 1, 2, 3], name=["a", "b", "c", "d"]))
    with pytest.raises(MessageError, match="'name' is"):
        reader.read(joint_state([0, 1, 2, 3], name=["b", "a", "c", "d"]))
    with pytest.raises(MessageError, match="'name' is") as error:
        reader.read(joint_state([0, 1, 2, 3], name=["\x1b[2J"] * 1000))
    assert str(error.value).isprintable() and len(str(error.value)) < 300


def test_a_pose_target_is_sent_as_quaternion() -> None:
    config = Ros2Config.from_mapping(POSE)
    builder = CommandBuilder(config.command[0], robot_spec(config))
    action = np.array([0.1, 0.2, 0.3, 0.0, 0.0, np.pi / 2], np.float32)
    message = builder.fill(Codec().blank("geometry_msgs/msg/PoseStamped"), action)
    assert message.header.frame_id == "base"
    assert message.pose.position.z == pytest.approx(0.3)
    assert (message.pose.orientation.w, message.pose.orientation.z) == pytest.approx((0.5**0.5, 0.5**0.5))
    pose = StateReader(config.state[0]).read(message)["ee_pose"]
    assert pose.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.5**0.5, 0, 0, 0.5**0.5])


def test_relative_motions_cannot_be_sent() -> None:
    action = [{**POSE["action"][0], "kind": "ee_delta", "low": -0.1, "high": 0.1}]  # type: ignore[index]
    with pytest.raises(ConfigError, match="ee_delta cannot be sent"):
        Ros2Robot(Ros2Config.from_mapping({**POSE, "action": action}))


def test_capture_times_follow_the_fastest_message() -> None:
    """The robot's clock is 5 s ahead. A message that was delayed by 80 ms gets its true age."""
    clock, ms, ahead = CaptureClock(), 1_000_000, 5_000_000_000
    assert clock.captured_ns(ahead, arrived_ns=1 * ms) == 1 * ms
    assert clock.captured_ns(ahead + 50 * ms, arrived_ns=131 * ms) == pytest.approx(51 * ms, abs=0.1 * ms)
    assert clock.captured_ns(ahead + 50 * ms, arrived_ns=140 * ms) is None  # the same message again
    assert clock.captured_ns(ahead + 40 * ms, arrived_ns=141 * ms) is None  # an older one
    assert clock.captured_ns(ahead + 200 * ms, arrived_ns=200 * ms) == 200 * ms  # never after the arrival
