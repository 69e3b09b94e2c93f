"""Answers and greetings of a bridge that no bridge of ours sends."""

import socket

import numpy as np
import pytest

from dovetail.core.errors import RobotError
from dovetail.robots.drivers.lerobot._client import BridgeLink
from dovetail.robots.drivers.lerobot.camera import LeRobotCamera, LeRobotCameraConfig
from dovetail.robots.drivers.lerobot.dovetail_bridge.server import PROTOCOL, Server
from dovetail.robots.drivers.lerobot.dovetail_bridge.wire import Message, encode, receive
from dovetail.robots.drivers.lerobot.settings import LeRobotLeaderConfig
from dovetail.robots.drivers.lerobot.teleoperator import LeRobotTeleoperator

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
FEATURES = {f"{joint}.pos": "float" for joint in JOINTS}
HUGE = 10**400  # JSON has such numbers


@pytest.fixture
def link_with():
    """`link_with(message, ...)` is a connection on which these answers have arrived."""
    opened = []

    def make(*answers):
        ours, theirs = socket.socketpair()
        opened.extend((ours, theirs))
        theirs.sendall(b"".join(framed(answer) for answer in answers))
        theirs.shutdown(socket.SHUT_WR)
        return BridgeLink(ours, what="the bridge", log=lambda: "")

    yield make
    for end in opened:
        end.close()


def framed(message):
    return b"".join(bytes(part) for part in encode(message))


@pytest.mark.parametrize("feedback", [5, [["a"]], "shoulder_pan.pos", None])
def test_leader_without_valid_feedback_cannot_follow(link_with, feedback):
    features = {"action": FEATURES, "feedback": feedback, "torque": True, "version": "\x1b[2J" * 1000}
    leader = LeRobotTeleoperator(LeRobotLeaderConfig(python="p", teleoperator="so101_leader", follow=True))
    link = link_with(Message("ok", {"features": features}))
    leader._process.connect = lambda role, *, start: link
    with pytest.raises(RobotError, match="cannot follow") as error:
        leader.read()
    assert str(error.value).isprintable() and len(str(error.value)) < 300


@pytest.mark.parametrize("time_ns", [HUGE, -HUGE, -1, True, "now"])
def test_impossible_capture_time_is_a_lost_camera(link_with, time_ns):
    camera = LeRobotCamera(LeRobotCameraConfig(python="p", camera="mini", size=(8, 6)), name="front")
    frame = Message("ok", {"captured_ns": time_ns}, {"frame": np.zeros((6, 8, 3), np.uint8)})
    link = link_with(Message("ok"), Message("ok"), frame)
    camera._process.connect = lambda role, *, start: link
    with pytest.raises(RobotError, match=r"its capture time .* is wrong") as error:
        camera.start()
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("text", ["\x1b]0;owned\x07", "a\nb", "x" * 10_000, {"a": 1}, None])
def test_error_of_a_bridge_is_one_short_printable_line(link_with, text):
    link = link_with(Message("error", {"error": text}))
    with pytest.raises(RobotError) as error:
        link.request(Message("observe"), timeout_s=1.0)
    assert str(error.value).isprintable() and len(str(error.value)) <= 1000


def test_unknown_type_is_quoted_without_control_characters(link_with):
    with pytest.raises(RobotError, match="answered 'open' with") as error:
        link_with(Message("\x1b[2J")).request(Message("open"), timeout_s=1.0)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("token", ["\ud800", 5, None, ["x"], "x" * 1000])
def test_greeting_with_any_token_is_refused_and_raises_nothing(token):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hello = Message("hello", {"token": token, "role": "control", "protocol": PROTOCOL})
        ours.sendall(framed(hello))
        ours.shutdown(socket.SHUT_WR)
        Server(theirs, token="t" * 16, settings={})._serve_client(theirs)
        answer = receive(ours)
        assert answer is not None and answer.fields == {"error": "the token is wrong"}
