"""An emulated igris_b on loopback DDS, in a domain that no other test process uses."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import yaml

from dovetail.robots.drivers.ros2.dds import DdsNode, Publication
from dovetail.robots.drivers.ros2.messages import Codec
from dovetail.robots.drivers.ros2.settings import DdsConfig, QosConfig, Ros2Config

__all__ = ["EmulatorFaults", "free_domain", "igris_config", "igris_settings", "loopback"]


def free_domain() -> int:
    """A domain below 100 whose first discovery port is free: higher ones share ports with outgoing connections."""
    for number in range(99):
        domain_id = 1 + (os.getpid() * 7 + number) % 99
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", 7400 + 250 * domain_id + 10))
            except OSError:
                continue
            return domain_id
    raise AssertionError("no DDS domain is free")


def loopback(domain_id: int) -> DdsConfig:
    return DdsConfig(domain_id=domain_id, interface="lo", peers=("127.0.0.1",), multicast=False)


def igris_settings(domain_id: int) -> dict[str, Any]:
    """The robot of the recipe."""
    recipe = files("dovetail.config").joinpath("recipes/igris-b.yaml").read_text()
    settings: dict[str, Any] = yaml.safe_load(recipe)["robot"]
    settings.pop("type")
    settings["dds"]["domain_id"] = domain_id
    return settings


def igris_config(domain_id: int, changes: Mapping[str, Any] | None = None) -> Ros2Config:
    return Ros2Config.from_mapping({**igris_settings(domain_id), **(changes or {})})


class EmulatorFaults:
    """Asks an emulator in another process for faults."""

    def __init__(self, domain_id: int) -> None:
        self._codec = Codec()
        self._node = DdsNode(loopback(domain_id), self._codec)
        self._asked: Publication = self._node.publish(
            "/igris_b/packy/emulator", "std_msgs/msg/String", QosConfig()
        )
        self._node.start()

    def wait(self) -> None:
        assert self._node.wait(lambda: self._asked.num_subscribers > 0, timeout_s=0.01) or self._poll()

    def _poll(self) -> bool:
        import time

        until_s = time.monotonic() + 10.0
        while not self._asked.num_subscribers and time.monotonic() < until_s:
            time.sleep(0.02)
        return self._asked.num_subscribers > 0

    def ask(self, name: str, duration_s: float = 1e9) -> None:
        message = self._codec.blank("std_msgs/msg/String")
        message.data = f"{name} {duration_s}"
        self._asked.write(self._codec.encode(message, "std_msgs/msg/String"))

    def close(self) -> None:
        self._node.close()
