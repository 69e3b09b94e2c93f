"""The keys of the terminal in `dovetail eval` and `dovetail compare`, for runs whose operator is the keyboard."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from dovetail.cli._terminal import say
from dovetail.config.schema import RunConfig
from dovetail.core.specs import RobotSpec
from dovetail.human.keyboard import ACKNOWLEDGE_KEY, JUDGING_HELP, TerminalKeys
from dovetail.human.mailbox import Mailbox
from dovetail.live.link import LiveLink
from dovetail.live.run_stop import RunStop
from dovetail.runs.assembly.operators import console_operator

__all__ = ["JudgingKeys"]


class JudgingKeys:
    """Context manager. As the `on_link` of an evaluation it lets the keys start, judge, pause and stop the arm."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._reads = self._said = False
        self._newest: tuple[LiveLink, RobotSpec, RunStop] | None = None

    def __enter__(self) -> JudgingKeys:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __call__(self, config: RunConfig, link: LiveLink, robot: RobotSpec, stop: RunStop) -> None:
        operator = console_operator(config.operator)
        if operator is None or operator.type != "keyboard":
            return
        self._newest = (link, robot, stop)
        if not self._said:
            self._said, self._reads = True, sys.stdin.isatty()
            say(
                JUDGING_HELP
                if self._reads
                else "there is no terminal for operator 'keyboard': judge in the console"
            )
            if self._reads:
                keys = TerminalKeys(self._mailbox, on_emergency=self._press_stop, announce=lambda line: None)
                self._stack.enter_context(keys)
        if self._reads:
            link.wait_after_faults(acknowledge_key=ACKNOWLEDGE_KEY)

    def _mailbox(self) -> tuple[Mailbox, RobotSpec] | None:
        assert self._newest is not None
        link, robot, _ = self._newest
        return (link.mailbox, robot) if link.is_open else None

    def _press_stop(self) -> None:
        assert self._newest is not None
        self._newest[2].press("keyboard")
