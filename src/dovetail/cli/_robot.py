"""`dovetail robot show`, `move`, `spec` and `server-file` in a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

import typer
import yaml
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, say, split_arguments
from dovetail.config.schema import RunConfig
from dovetail.core.clock import SimulatedClock
from dovetail.core.contracts import Robot
from dovetail.core.disk import write_atomic
from dovetail.core.errors import ConfigError, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robot_host.arm_lock import ArmLock
from dovetail.robot_host.jog import Jog, plan_jog, run_jog
from dovetail.robot_host.jog_stop import JogStop
from dovetail.robot_host.robot_look import RobotLook
from dovetail.runs.assembly.robot_access import load_robot, open_workcell
from dovetail.runs.assembly.workcell import Workcell, build_driver

__all__ = ["move", "show", "write_server_file", "write_spec"]

_DRAW_S = 0.2
_ONCE_S = 1.0
_PICTURE_S = 1.0
_STOPPED = 130  # exit code
_CONNECT_S = 5.0


def _config(arguments: Sequence[str], arm: str | None) -> RunConfig:
    sources, overrides = split_arguments(arguments)
    if not sources:
        raise ConfigError("name a recipe or a config file with a `robot` section")
    return load_robot(sources, overrides, arm=arm)


# ---- show


def show(
    arguments: Sequence[str], *, arm: str | None, seconds: float | None, live: bool, pictures: Path | None
) -> None:
    config = _config(arguments, arm)
    with open_workcell(config, looks=True) as workcell, StopFlag() as stop:
        look = RobotLook(workcell.driver, workcell.clock)
        if not console.is_terminal and seconds is None:  # a file or pipe gets one table, not one per second
            seconds = _ONCE_S
        end_s = None if seconds is None else time.monotonic() + seconds
        spec = workcell.robot.spec
        look.tick()  # connects, which may take long
        link = look.link()
        look = RobotLook(workcell.driver, workcell.clock)
        look.tick()
        screen = Live(console=console, auto_refresh=False) if live and console.is_terminal else None
        drawn_s = saved_s = 0.0
        if screen is not None:
            screen.start()
        try:
            while not stop() and (end_s is None or time.monotonic() < end_s):
                observation = look.tick()
                now_s = time.monotonic()
                if screen is not None and now_s - drawn_s >= _DRAW_S:
                    screen.update(_view(spec, look, link), refresh=True)
                    drawn_s = now_s
                if pictures is not None and now_s - saved_s >= _PICTURE_S:
                    _save_pictures(pictures, spec, observation)
                    saved_s = now_s
        finally:
            if screen is not None:
                screen.stop()
        if screen is None:
            console.print(_view(spec, look, link))
        if pictures is not None and saved_s:
            say(f"pictures in {pictures / 'index.html'}")


def _view(spec: RobotSpec, look: RobotLook, link: str | None) -> Group:
    assert look.newest is not None
    lines: list[Text | Table] = [Text(f"robot '{spec.name}': {look.timing().line}")]
    if link is not None:
        lines.append(Text(link, style="bright_black"))
    if (problem := look.problem()) is not None:
        lines.append(Text(problem, style="red"))
    return Group(*lines, _parts_table(spec, look.newest), _observation_table(spec, look))


def _parts_table(spec: RobotSpec, observation: Observation) -> Table:
    table = _table("part", "axis", "measured", "low", "high", "unit")
    for part in spec.parts:
        key = part.measured_key
        value = observation.values.get(key) if key else None
        shown = value.reshape(-1)[part.measured_slice] if value is not None else None
        for number in range(part.num_axes):
            name = part.names[number] if part.names else str(number + 1)
            has = shown is not None and not part.frame and number < shown.size
            measured = f"{shown[number]:.4f}" if has and shown is not None else "-"
            limits = (f"{part.low[number]:g}", f"{part.high[number]:g}") if part.low else ("-", "-")
            table.add_row(part.name if number == 0 else "", f"{number + 1} {name}", measured, *limits, part.unit)
    return table


def _observation_table(spec: RobotSpec, look: RobotLook) -> Table:
    assert look.newest is not None
    timing, table = look.timing(), _table("observation", "array", "value")
    for key, array in spec.observation.items():
        value = look.newest.values.get(key)
        if value is None:
            text = "missing"
        elif value.ndim == 3:
            rate = timing.cameras_hz.get(key)
            times = "" if rate is None else f"{rate:.1f} Hz, {timing.cameras_age_ms[key]:.0f} ms old, "
            text = f"{times}mean {value.mean():.0f}"
        else:
            text = " ".join(f"{number:.3f}" for number in value.reshape(-1)[:12])
        table.add_row(key, array.describe(), text)
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in names:
        table.add_column(name, no_wrap=True, justify="right" if name in ("measured", "low", "high") else "left")
    return table


def _save_pictures(folder: Path, spec: RobotSpec, observation: Observation) -> None:
    """Write each camera's picture, and a page that shows them and reloads itself."""
    shown = {key: value for key, value in observation.values.items() if value.ndim == 3}
    if not shown:
        raise UsageError(f"robot '{spec.name}' has no cameras, so --pictures has nothing to write")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for key, value in shown.items():
            write_atomic(folder / f"{key}.png", _png(value))
        images = "".join(f'<figure><img src="{escape(key)}.png"><figcaption>{escape(key)}' for key in shown)
        page = (
            f'<!doctype html><meta http-equiv="refresh" content="1"><title>{escape(spec.name)}</title>{images}\n'
        )
        write_atomic(folder / "index.html", page.encode())
    except OSError as error:
        raise UsageError(f"cannot write pictures to {folder}: {error.strerror}") from error


def _png(picture: Array) -> bytes:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    pixels = picture if picture.shape[-1] == 3 else picture[..., 0]
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


# ---- move


def move(
    arguments: Sequence[str], *, arm: str | None, part: str, axis: str, by: float, speed: float, yes: bool
) -> int:
    config = _config(arguments, arm)
    lock = ArmLock(config.robot)

    def plan(workcell: Workcell, seen: Observation) -> Jog:
        return plan_jog(workcell.robot.spec, seen, part=part, axis=axis, by=by, speed_share=speed)

    with contextlib.ExitStack() as stack:
        with open_workcell(config, looks=True) as workcell:  # an arm gets its torque after the question
            is_simulated = isinstance(workcell.clock, SimulatedClock)
            if not is_simulated:
                lock.acquire()
                stack.callback(lock.close)
            jog = plan(workcell, RobotLook(workcell.driver, workcell.clock).tick())
        say(f"{'simulated ' if is_simulated else ''}robot '{workcell.robot.spec.name}', {jog}")
        if not yes and not _is_confirmed():
            say("not moved")
            return 1
        workcell = stack.enter_context(open_workcell(config))
        emergency = stack.enter_context(_jog_stop(config, workcell))
        if not is_simulated:
            say(f"STOP: Ctrl-C, or in another terminal: dovetail stop {emergency.folder}")
        flag = stack.enter_context(StopFlag())
        stack.enter_context(flag.calling(emergency.on_signal))
        # the person may have waited: plan again from where the robot is now
        jog = plan(workcell, workcell.robot.observe())
        after = run_jog(workcell.robot, workcell.clock, jog, should_stop=lambda: flag() or emergency())
        emergency.stopped()
        if flag() or emergency():
            say("stopped" + (f" by {emergency.source}" if emergency.source else ""))
            return _STOPPED
        if jog.start is not None:
            say(f"moved from {jog.start:.4f} to {jog.measured(after):.4f} {jog.unit}")
        else:
            say(f"sent {by:+g} {jog.unit}; nothing measures this axis alone")
    return 0


def _jog_stop(config: RunConfig, workcell: Workcell) -> JogStop:
    def other() -> Robot:
        return build_driver(task=config.task, robot=config.robot)[0]

    def report(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    return JogStop(workcell.driver, other, name=workcell.robot.spec.name, report=report)


def _is_confirmed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask in. Add --yes to move without a question")
    say("No guard watches this motion: if the driver hangs, only the robot's own emergency stop is certain.")
    return typer.confirm("Keep clear, with a hand on the emergency stop. Move?", default=False)


# ---- a robot on another computer


def write_spec(address: str, *, token_file: Path | None, out: Path | None) -> None:
    from dovetail.robots.drivers.remote.connection import read_token_setting, spec_of
    from dovetail.robots.drivers.remote.settings import RemoteRobotConfig, RemoteSpecConfig

    token_env = RemoteRobotConfig.model_fields["token_env"].default
    try:
        RemoteRobotConfig.check_address(address)
    except ValueError as error:
        raise UsageError(f"the address {error}") from error
    token = read_token_setting(str(token_file) if token_file else None, token_env)
    found = spec_of(address, token, timeout_s=_CONNECT_S)
    name = RemoteSpecConfig.from_robot(found).name  # refuses an invalid one
    section = {"type": "remote", "address": address}
    if token_file is not None:
        section["token_file"] = str(token_file)
    text = f"# Robot '{name}' at {address}, written by `dovetail robot spec`.\n"
    text += yaml.safe_dump({"robot": {**section, **found}}, sort_keys=False, default_flow_style=None, width=115)
    if out is None:
        console.out(text, end="", highlight=False)
        return
    _write(out, text.encode())
    say(f"{out}: try it with `dovetail robot show {out}`")


def write_server_file(out: Path) -> None:
    from dovetail.robots.drivers.remote.server_file import server_file

    _write(out, server_file())
    say(f"{out}: copy it to the robot's computer and run there: python3 {out.name} my_arm:MyArm --host 0.0.0.0")


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomic(path, content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
