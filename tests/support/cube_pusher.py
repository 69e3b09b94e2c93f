"""Pushes the cube onto the mark with the keys of the page Take over, from the state that the page shows."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from playwright.sync_api import Page

__all__ = ["CubePusher"]

_UP_M, _DOWN_M = 0.075, 0.028
_KEYS = (("w", "s"), ("a", "d"), ("e", "q"))  # plus and minus of x, y, z in the base frame


class CubePusher:
    """`while not done(): pusher.step()`, with Space held. It moves slowly near the cube."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._down: set[str] = set()
        self._frame: np.ndarray | None = None  # orientation at the start of the episode

    def step(self) -> None:
        state = self._page.evaluate("window.dovetail.state")
        if state is None or not state["values"]:
            return
        if self._frame is None:
            self._frame = _matrix(state["values"]["ee_pose"][3:])
        self._press(self._choose_keys(state["values"]))
        time.sleep(0.03)

    def release_keys(self) -> None:
        self._press(set())

    def _choose_keys(self, values: Mapping[str, list[float]]) -> set[str]:
        assert self._frame is not None
        task = values["task_state"]
        cube = self._frame @ np.array(task[:3])  # from the TCP
        mark = (self._frame @ np.array((*task[3:5], 0.0)))[:2]  # from the cube
        height, way = 0.02 - cube[2], mark / max(float(np.linalg.norm(mark)), 1e-9)
        across, away = np.array((-way[1], way[0])), -cube[:2]
        behind, aside = float(away @ way), float(away @ across)
        if np.linalg.norm(mark) < 0.012:
            return set()  # done
        low = height < 0.045
        if low and behind < -0.02 and abs(aside) < 0.012:
            return {"Shift"} | self._toward(np.append(way - 40.0 * aside * across, 0.0) * 0.02, height, _DOWN_M)
        if low:
            return self._toward(np.append(0.02 * away / np.linalg.norm(away), 0.03), height, None)
        ready = cube[:2] - 0.055 * way
        if np.linalg.norm(ready) < 0.008:
            return self._toward(np.zeros(3), height, _DOWN_M)
        slowly = {"Shift"} if np.linalg.norm(ready) < 0.04 else set()
        return slowly | self._toward(np.append(ready, 0.0), height, _UP_M)

    def _toward(self, move: np.ndarray, height: float, wanted_height: float | None) -> set[str]:
        if wanted_height is not None:
            move = np.append(move[:2], wanted_height - height)
        most = max(float(np.abs(move[:2]).max()), 1e-9)
        keys = {
            pair[0] if move[axis] > 0 else pair[1]
            for axis, pair in enumerate(_KEYS[:2])
            if abs(move[axis]) > max(0.38 * most, 0.003)
        }
        return keys | ({_KEYS[2][0] if move[2] > 0 else _KEYS[2][1]} if abs(move[2]) > 0.008 else set())

    def _press(self, keys: set[str]) -> None:
        for key in self._down - keys:
            self._page.keyboard.up(key)
        for key in sorted(keys - self._down, key=len, reverse=True):  # Shift first
            self._page.keyboard.down(key)
        self._down = keys


def _matrix(quat: list[float]) -> np.ndarray:
    w, x, y, z = quat
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
