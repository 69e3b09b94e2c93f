"""Find and build LeRobot devices by their type name, plugins included. Works with lerobot 0.4.4 and 0.6.

LeRobot registers a device's config class when the module is imported, so its modules are imported until the name is known.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["DeviceError", "build", "lerobot_version", "one_line"]

_KINDS = {  # kind: package, module and class of its config, module and function that builds it
    "robot": ("lerobot.robots", "lerobot.robots.config", "RobotConfig", "make_robot_from_config"),
    "teleoperator": (
        "lerobot.teleoperators",
        "lerobot.teleoperators.config",
        "TeleoperatorConfig",
        "make_teleoperator_from_config",
    ),
    "camera": ("lerobot.cameras", "lerobot.cameras.configs", "CameraConfig", "make_cameras_from_configs"),
}


class DeviceError(Exception):
    """A problem with the device, in one line, for the person at the robot."""


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:600] if text else type(error).__name__


def lerobot_version() -> str:
    try:
        return importlib.import_module("importlib.metadata").version("lerobot")  # type: ignore[no-any-return]
    except Exception:  # a copy of the sources has no version
        return "unknown"


def build(kind: str, type_name: str, config: Mapping[str, Any], imports: Iterable[str]) -> Any:
    """Build a device without connecting it."""
    for module in imports:
        try:
            importlib.import_module(module)
        except Exception as error:  # a foreign module
            raise DeviceError(f"cannot import '{module}' of `imports`: {one_line(error)}") from error
    package, config_module, config_class, maker = _KINDS[kind]
    try:
        base: Any = vars(importlib.import_module(config_module))[config_class]
        utils: Any = importlib.import_module(f"{package}.utils")
    except Exception as error:  # whatever is wrong with the environment
        raise DeviceError(f"cannot import LeRobot: {one_line(error)}. Set `python` to its interpreter") from error
    _register(kind, type_name, package, base)
    for name, camera in _cameras(config):
        camera_base: Any = vars(importlib.import_module("lerobot.cameras.configs"))["CameraConfig"]
        if not isinstance(camera.get("type"), str):
            raise DeviceError(f"camera '{name}' has no `type`, such as opencv")
        _register("camera", camera["type"], "lerobot.cameras", camera_base)
    try:
        decoded = importlib.import_module("draccus").decode(base, {"type": type_name, **config})
    except Exception as error:  # draccus has many exceptions
        raise DeviceError(f"LeRobot refuses the config of '{type_name}': {one_line(error)}") from error
    try:
        if kind == "camera":
            return utils.make_cameras_from_configs({"camera": decoded})["camera"]
        return vars(utils)[maker](decoded)
    except Exception as error:  # a constructor of LeRobot or a plugin
        raise DeviceError(f"LeRobot cannot build '{type_name}': {one_line(error)}") from error


def _cameras(config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    cameras = config.get("cameras")
    return list(cameras.items()) if isinstance(cameras, Mapping) else []


def _register(kind: str, type_name: str, package: str, base: Any) -> None:
    """Import modules until `type_name` is registered: LeRobot's own by similar names first, then the plugins."""
    if type_name in base.get_known_choices():
        return
    folder = importlib.import_module(package)
    names = [module.name for module in pkgutil.iter_modules(folder.__path__) if module.ispkg]
    names.sort(key=lambda name: -difflib.SequenceMatcher(a=name, b=type_name).ratio())
    for name in names[:4]:
        with contextlib.suppress(Exception):  # a device whose packages are missing
            importlib.import_module(f"{package}.{name}")
        if type_name in base.get_known_choices():
            return
    with contextlib.suppress(ImportError):
        importlib.import_module("lerobot.utils.import_utils").register_third_party_plugins()
    if type_name in base.get_known_choices():
        return
    problems = []
    for name in names:
        try:
            importlib.import_module(f"{package}.{name}")
        except Exception as error:  # as above
            problems.append(f"{name}: {one_line(error)}")
        if type_name in base.get_known_choices():
            return
    known = ", ".join(sorted(base.get_known_choices()))
    failed = f" Not importable: {'; '.join(problems[:3])}." if problems else ""
    raise DeviceError(f"LeRobot {lerobot_version()} has no {kind} '{type_name}'. It has {known}.{failed}")
