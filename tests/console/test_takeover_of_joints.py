"""Take over an arm with joint actions in a real Chromium: by sticks (inverse kinematics) and joint by joint."""

from pathlib import Path

import pytest

import dovetail.robots.sim as sim
from support.console_process import end_console, start_console
from support.live_run import end_run, start_run, until
from support.takeover_page import has_control, read_state

PANDA = Path(sim.__file__).parent / "arms" / "panda.xml"


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """The console of a run that waits for a demonstration."""
    runs = tmp_path_factory.mktemp("runs")
    kinematics = f"{{file: {PANDA}, end_effector: tcp, angle: radian}}"
    operator = f"operator={{type: browser, kinematics: {kinematics}}}"
    process = start_run(runs, "robot.action=joint", "safety.workspace=null", operator)
    try:
        console = start_console(runs / "arm")
        yield console
        end_console(console)
    finally:
        end_run(process)


def enter(arm, page):
    arm.enter(page, "/takeover")
    page.wait_for_selector("body[data-drives]")
    page.wait_for_function("window.dovetail.state?.may_drive")


@pytest.mark.extended
def test_sticks_move_the_end_effector_of_an_arm_with_joint_actions(arm, page):
    enter(arm, page)
    box = page.locator("#dt-stick-right").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)  # up
    before = until(has_control(arm, "human"), what="the operator to drive")["values"]["ee_pose"]
    until(lambda: read_state(arm)["values"]["ee_pose"][2] > before[2] + 0.03, what="the arm to rise")
    after = read_state(arm)["values"]["ee_pose"]
    page.mouse.up()
    assert abs(after[0] - before[0]) < 0.01 and abs(after[1] - before[1]) < 0.01  # straight up


@pytest.mark.extended
def test_bracket_chooses_the_joints_and_a_button_moves_one(arm, page):
    enter(arm, page)
    assert page.locator(".dt-stickbox-left").is_visible() and not page.locator("#dt-jogs").is_visible()
    page.keyboard.press("]")
    page.wait_for_selector("#dt-jogs:not([hidden])")
    button = page.locator('[aria-label="joint1 plus: hold to move"]').bounding_box()
    page.mouse.move(button["x"] + button["width"] / 2, button["y"] + button["height"] / 2)
    page.mouse.down()
    before = until(has_control(arm, "human"), what="the operator to drive")["values"]["joint_pos"]
    until(lambda: read_state(arm)["values"]["joint_pos"][0] > before[0] + 0.1, what="the joint to turn")
    after = read_state(arm)["values"]["joint_pos"]
    page.mouse.up()
    assert max(abs(a - b) for a, b in zip(after[1:], before[1:], strict=True)) < 0.02
