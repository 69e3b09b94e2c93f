"""Run folders whose config names robots, cameras, leaders and operators: programs, servers, devices and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hostile.folders import CODE, Place, add_case, put, set_config
from hostile.watch import forbidden

Sections = Mapping[str, Any]

JOINT = {
    "name": "arm",
    "kind": "joint_target",
    "unit": "rad",
    "axes": ["j1"],
    "low": -1.0,
    "high": 1.0,
    "max_speed": 1.0,
    "measured": "joint_pos",
}
STATE = {"topic": "/arm/state", "msg_type": "JointState", "fields": {"joint_pos": {"attr": "position", "size": 1}}}
COMMAND = {"topic": "/arm/command", "msg_type": "JointState", "fields": {"arm": "position"}}
TABLE = {"type": "table", "prompt": "put the block into the box"}


def _program(place: Place) -> str:
    """An interpreter that leaves a trace."""
    put(place.run / "python", "#!/bin/sh\ntouch ../code-ran\n")
    (place.run / "python").chmod(0o755)
    put(place.run / "evil_plugin.py", CODE)
    return str(place.run / "python")


def _lerobot(place: Place, **more: Any) -> dict[str, Any]:
    return {"type": "lerobot", "python": _program(place), **more}


def _so101(place: Place, **more: Any) -> dict[str, Any]:
    return _lerobot(place, robot="so101_follower", config={"port": "/dev/ttyACM0", "id": "a"}, **more)


def _ros2(**dds: Any) -> dict[str, Any]:
    return {"type": "ros2", "dds": dds, "state": [STATE], "command": [COMMAND], "action": [JOINT]}


def _remote(place: Place, **more: Any) -> dict[str, Any]:
    address = {"address": forbidden().address, "token_file": str(place.secret)}
    spec = {"name": "x", "control_hz": 10.0, "observation": {"joint_pos": {"shape": [1]}}, "action": [JOINT]}
    return {"type": "remote", **address, **spec, **more}


def _franka(**more: Any) -> dict[str, Any]:
    return {"type": "franka", "address": forbidden().address, "gripper": "none", **more}


def _leader(leader: Any, **more: Any) -> dict[str, Any]:
    return {"type": "leader", "leader": leader, **more}


def _url() -> str:
    return f"http://{forbidden().address}/video.mjpg"


def _including_model(place: Place) -> str:
    put(place.run / "arm.xml", f'<mujoco><include file="{place.secret}"/><worldbody/></mujoco>')
    return str(place.run / "arm.xml")


def _kinematics(place: Place) -> dict[str, Any]:
    return {"file": _including_model(place), "end_effector": "hand"}


def _robot(section: Callable[[Place], Any]) -> Callable[[Place], Sections]:
    return lambda place: {"robot": section(place), "task": TABLE}


def _camera(section: Callable[[Place], Any]) -> Callable[[Place], Sections]:
    return lambda place: {"cameras": {"front": section(place)}}


def _operator(section: Callable[[Place], Any]) -> Callable[[Place], Sections]:
    return lambda place: {"operator": section(place)}


NAMED: dict[str, Callable[[Place], Sections]] = {
    "lerobot-interpreter": _robot(_so101),
    "lerobot-interpreter-of-one-arm": lambda p: {
        "cluster": {"robots": {"left": {"robot": _so101(p)}}},
    },
    "lerobot-imports": _robot(lambda p: _so101(p, imports=["evil_plugin"])),
    "lerobot-environment": _robot(lambda p: _so101(p, env={"LD_PRELOAD": str(p.secret)})),
    "ros2-peers": _robot(lambda p: _ros2(domain_id=7, peers=["192.0.2.1"], multicast=False)),
    "ros2-interface": _robot(lambda p: _ros2(interface="lo")),
    "ros2-default-domain": _robot(lambda p: _ros2()),
    "franka-address": _robot(lambda p: _franka()),
    "franka-right-address": _robot(lambda p: _franka(address="127.0.0.1:1", right_address=forbidden().address)),
    "franka-default-address": _robot(lambda p: {"type": "franka", "gripper": "none"}),
    "franka-emulated": lambda p: {"robot": {"type": "franka-emulated", "address": forbidden().address}},
    "franka-emulated-token": lambda p: {"robot": {"type": "franka_emulated", "token": "guess"}},
    "remote-robot": _robot(_remote),
    "remote-robot-variable": _robot(lambda p: _remote(p, token_file=None, token_env="HOME")),
    "camera-of-a-machine": _camera(lambda p: {"type": "v4l2", "device": "/dev/video0"}),
    "camera-short": _camera(lambda p: "v4l2"),
    "camera-stream": _camera(lambda p: {"type": "video", "url": _url()}),
    "camera-file": _camera(lambda p: {"type": "video", "url": str(p.secret)}),
    "camera-file-in-the-run": _camera(lambda p: {"type": "video", "url": str(p.run / "v.mkv")}),
    "camera-realsense": _camera(lambda p: {"type": "realsense", "serial": "123456789012"}),
    "camera-ros": _camera(lambda p: {"type": "ros_image", "topic": "/camera/image"}),
    "camera-lerobot": _camera(lambda p: _lerobot(p, camera="opencv")),
    "camera-of-an-arm": lambda p: {
        "cluster": {"robots": {"left": {"cameras": {"front": {"type": "video", "url": _url()}}}}}
    },
    "leader-lerobot": _operator(lambda p: _leader(_lerobot(p, teleoperator="so101_leader"))),
    "leader-code": _operator(lambda p: _leader({"type": "evil_plugin:Leader"})),
    "leader-in-several": _operator(
        lambda p: {"type": "several", "operators": [_leader(_lerobot(p, teleoperator="so101_leader"))]}
    ),
    "gamepad": _operator(lambda p: {"type": "gamepad"}),
    "pedal-in-several": _operator(lambda p: {"type": "several", "operators": [{"type": "pedal"}]}),
    "kinematics": _operator(lambda p: {"type": "browser", "kinematics": _kinematics(p)}),
    "kinematics-list": _operator(lambda p: {"type": "browser", "kinematics": [_kinematics(p)]}),
    "kinematics-in-several": _operator(
        lambda p: {"type": "several", "operators": [{"type": "browser", "kinematics": _kinematics(p)}]}
    ),
    "pi0-checkpoint": lambda p: {
        "policy": {"type": "pi0", "checkpoint": str(p.secret_folder), "images": {"front": "base_0_rgb"}}
    },
    "act-checkpoint": lambda p: {"policy": {"type": "act", "checkpoint": str(p.secret_folder)}},
    "pi0-statistics": lambda p: {
        "policy": {
            "type": "pi0",
            "checkpoint": str(p.run),
            "images": {"front": "base_0_rgb"},
            "stats": str(p.secret),
        }
    },
}
DEFAULT = ("lerobot-interpreter", "camera-stream")  # in `make test`


def _build(sections: Callable[[Place], Sections]) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        named = sections(place)
        set_config(place.run, lambda config: config.update(named))

    return build


for what, sections in NAMED.items():
    commands = ("eval", "serve", "ls", "verify", "export", "report", "console", "resume", "video", "relabel", "rm")
    add_case(
        f"config-names-{what}",
        _build(sections),
        *commands,
        level="default" if what in DEFAULT else "extended",
        in_run=True,
        refusal="was not made by you on this machine or was copied, and its config names",
    )
