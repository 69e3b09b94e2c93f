"""The hardware of the miniature: a folder with the arm's state, its commands, and the faults that a test asks for.

faults.json    {"observe": "raise", "send": "hang", ...}; words: raise, "raise once", hang, slow, nan, missing, text, exit
state.json     {"positions": {...}, "calibrated": true}
events.jsonl   what was called, with its monotonic time
"""

import json
import os
import time
from pathlib import Path

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


class ArmFolder:
    def __init__(self, path):
        self._path = Path(path)

    def state(self):
        try:
            return json.loads((self._path / "state.json").read_text())
        except FileNotFoundError:
            return {"positions": dict.fromkeys(JOINTS, 0.0) | {"gripper": 50.0}, "calibrated": True}

    def save(self, state):
        temporary = self._path / f"state.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(state))
        temporary.rename(self._path / "state.json")

    def note(self, what, **facts):
        with (self._path / "events.jsonl").open("a") as file:
            file.write(json.dumps({"what": what, "time_ns": time.monotonic_ns(), **facts}) + "\n")

    def misbehave(self, call):
        """Do what faults.json asks for; return a word that changes the answer."""
        while True:
            try:
                word = json.loads((self._path / "faults.json").read_text()).get(call)
            except (FileNotFoundError, ValueError):
                return None
            if word == "raise":
                raise ConnectionError(f"Failed to {call}\nThere is no status packet!")
            if word == "raise once":
                (self._path / "faults.json").unlink()
                raise ConnectionError(f"Failed to {call}: There is no status packet!")
            if word == "exit":
                os._exit(9)
            if word == "slow":
                time.sleep(0.4)
                return None
            if word != "hang":
                return word
            time.sleep(0.01)
