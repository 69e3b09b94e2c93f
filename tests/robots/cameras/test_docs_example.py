"""The camera of docs/robots/cameras.md works as written."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dovetail.config.model import Config
from dovetail.core.specs import ArraySpec
from dovetail.robots.cameras.frames import Frame, ThreadedCamera
from dovetail.testing import check_camera

PAGE = Path(__file__).parents[3] / "docs" / "robots" / "cameras.md"


class LampCameraConfig(Config):
    """No settings."""


def test_own_camera_of_the_page_passes_the_conformance_suite():
    code = re.search(r"```python\n(class LampCamera.*?)```", PAGE.read_text(), re.DOTALL)
    names = {
        "ArraySpec": ArraySpec,
        "Frame": Frame,
        "Iterator": Iterator,
        "LampCameraConfig": LampCameraConfig,
        "ThreadedCamera": ThreadedCamera,
        "np": np,
        "threading": threading,
        "time": time,
    }
    exec(code[1], names)
    check_camera(lambda: names["LampCamera"](LampCameraConfig(), name="front"))
