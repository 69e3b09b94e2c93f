"""What the pages say about who drives, and why nothing moves."""

from importlib.metadata import version

import pytest

MODULE = f"/static/{version('dovetail')}/words.js"
ME = {"session": 7, "browser": "ab"}
STATE = {"control": "policy", "reason": "", "may_drive": True, "driver": "", "driver_session": 0, "driver_browser": "",
         "episode": {}, "step": 3, "policy_version": 4, "facts": {}, "drive": {"parts": [], "refusal": ""}}  # fmt: skip
WORDS = [
    (None, "Not running", "Start it with: dovetail run --resume one"),
    ({}, "Policy", "version 4"),
    ({"may_drive": False}, "Policy", "takeover is disabled"),
    ({"control": "human", "driver": "Ada", "driver_session": 7}, "You drive", "The arm follows you"),
    (
        {"control": "human", "driver": "Ada", "driver_session": 8, "driver_browser": "ab"},
        "You drive in another tab",
        "",
    ),
    ({"control": "human", "driver": "Ada", "driver_session": 8}, "Ada drives", ""),
    ({"control": "human", "driver": "anonymous", "driver_session": 8}, "Another person drives", ""),
    ({"control": "human", "facts": {"operator": "scripted"}}, "The scripted operator drives", ""),
    (
        {"control": "fault", "reason": "STOP was pressed"},
        "Stopped",
        "STOP was pressed. Check the arm, then press Acknowledge",
    ),
    ({"control": "paused"}, "Paused", "press Start to continue, or take over"),
    (
        {"control": "paused", "episode": {"purpose": "demo"}, "step": 0},
        "Waiting for you",
        "starts when you take over",
    ),
    ({"control": "holding"}, "Holding", "the connection to the driver was lost"),
    ({"control": "idle", "reason": "cloning"}, "Between episodes", "The run is in phase: cloning"),
    ({"control": "idle", "facts": {"waiting": {"new": 2}}}, "Between episodes", "2 episodes wait for a label"),
]


@pytest.mark.extended
def test_words_say_who_drives_and_why_nothing_moves(console, page):
    console.enter(page)
    script = (
        f"async ([state, me]) => (await import('/static/{version('dovetail')}/words.js')).whoDrives(state, me)"
    )
    for change, title, detail in WORDS:
        found = page.evaluate(script, [None if change is None else {**STATE, **change}, ME])
        assert found["title"] == title and detail in found["detail"]
        moves = change is not None and change.get("control", "policy") in ("policy", "human")
        assert ("Nothing moves" in found["detail"]) == (not moves)


@pytest.mark.extended
def test_label_in_the_header_is_short(console, page):
    console.enter(page)
    script = f"async ([state, me]) => (await import('{MODULE}')).whoDrivesShort(state, me)"
    human = {**STATE, "control": "human", "driver_session": 8, "driver": "Ada"}
    for state, expected in (
        (human, "Ada"),
        ({**human, "driver_browser": "ab"}, "You, in another tab"),
        ({**human, "driver_session": 7}, "You"),
        ({**human, "driver_session": 0, "facts": {"operator": "scripted"}}, "Scripted operator"),
        (STATE, "Policy"),
    ):
        assert page.evaluate(script, [state, ME]) == expected


@pytest.mark.extended
def test_words_say_why_this_page_cannot_drive(console, page):
    console.enter(page)
    script = f"async ([state, facts]) => (await import('{MODULE}')).whyNotDrive(state, facts)"
    parts = [{"name": "arm", "kind": "joint_target"}]
    for change, linked, expected in (
        ({}, False, "not connected to the arm yet"),
        ({"control": "fault"}, True, "the arm is stopped: press Acknowledge first"),
        ({"may_drive": False}, True, "this is an evaluation: takeover is disabled"),
        (
            {"drive": {"parts": parts, "refusal": "robot 'x' has ..."}},
            True,
            "this arm cannot be driven: robot 'x' has ...",
        ),
        (
            {"drive": {"parts": [{"kind": "gripper"}], "refusal": ""}},
            True,
            "this robot has no part that can be driven",
        ),
        ({"drive": {"parts": parts, "refusal": ""}}, True, ""),
    ):
        assert page.evaluate(script, [{**STATE, **change}, {"linked": linked}]) == expected
