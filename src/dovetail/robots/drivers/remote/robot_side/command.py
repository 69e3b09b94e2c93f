"""`python dovetail_robot.pyz MODULE:CLASS`: serve a robot until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from .description import InvalidSpec
from .handshake import WrongToken, make_token
from .server import RobotServer

__all__ = ["PORT", "main", "serve"]

PORT = 7412
TOKEN_FILE = "robot.token"
_log = logging.getLogger("dovetail_robot")


def serve(
    robot: Any,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token_file: str = TOKEN_FILE,
    watchdog_s: float | None = None,
) -> None:
    """Serve a robot until Ctrl-C or SIGTERM, then stop it. Call it from the main thread."""
    token = make_token(Path(token_file))
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with RobotServer(robot, token=token, host=host, port=port, watchdog_s=watchdog_s) as server:
        _log.info("robot '%s' at %s", server.robot.description.spec["name"], server.address)
        _log.info("token in %s: copy it to the computer of Dovetail", os.path.abspath(token_file))
        _log.info("the robot stops if no command comes for %.2f s", server.robot.watchdog_s)
        while not ended.wait(0.2):  # with a timeout, because a wait without one delays signals on some systems
            pass
    _log.info("the robot was stopped")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dovetail_robot", description="Serve a robot for Dovetail.")
    parser.add_argument("robot", metavar="MODULE:CLASS", help="the robot's class, called without arguments")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all networks")
    parser.add_argument("--port", type=int, default=PORT, help=f"port, default {PORT}; 0: a free one")
    parser.add_argument("--token-file", default=TOKEN_FILE, help="file with the token; created if it is missing")
    parser.add_argument("--watchdog-s", type=float, help="stop the robot without a command for so long")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    module, _, name = options.robot.partition(":")
    if not module or not name:
        parser.error(f"write the robot as MODULE:CLASS, got '{options.robot}'")
    sys.path.insert(0, os.getcwd())
    try:
        robot = vars(importlib.import_module(module))[name]()
    except (ImportError, KeyError) as error:
        parser.error(f"cannot load {options.robot}: {type(error).__name__}: {error}")
    try:
        serve(
            robot,
            host=options.host,
            port=options.port,
            token_file=options.token_file,
            watchdog_s=options.watchdog_s,
        )
    except (InvalidSpec, WrongToken, OSError, ValueError) as error:
        _log.error("error: %s", " ".join(str(error).split()))
        return 1
    return 0
