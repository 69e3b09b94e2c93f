"""The server of a robot's computer as one file, `dovetail_robot.pyz`: a zip file that Python runs."""

from __future__ import annotations

import io
import zipfile
from importlib import resources

__all__ = ["PACKAGE", "server_file"]

PACKAGE = "dovetail_robot"
_START = b"#!/usr/bin/env python3\n"
_MAIN = f"import sys\n\nfrom {PACKAGE}.command import main\n\nsys.exit(main())\n"
_DATE = (1980, 1, 1, 0, 0, 0)  # equal files for equal versions


def server_file() -> bytes:
    """The file's content. It contains `robot_side` as package `dovetail_robot`, which a robot's script can also import."""
    folder = resources.files("dovetail.robots.drivers.remote.robot_side")
    sources = {f"{PACKAGE}/{one.name}": one.read_bytes() for one in folder.iterdir() if one.name.endswith(".py")}
    buffer = io.BytesIO(_START)
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted({**sources, "__main__.py": _MAIN.encode()}.items()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
