"""Episodes with a camera image that becomes bright on success."""

from __future__ import annotations

import base64
import dataclasses
import io
from typing import Any

import numpy as np
from PIL import Image

from dovetail.core.specs import ArraySpec
from dovetail.core.types import Episode, Observation, Outcome, Segment

__all__ = ["camera_episode", "picture_part"]


def camera_episode(
    make_episode: Any, outcome: Outcome = Outcome.TIMEOUT, *, end: float = 1.0, prompt: str = ""
) -> Episode:
    """Ten steps that grow bright evenly, from black to `end`."""
    plain = make_episode(outcome, num_steps=10)
    levels = np.linspace(0, 255 * end, 11).astype(np.uint8)
    pictures = np.broadcast_to(levels[:, None, None, None], (11, 8, 8, 3)).copy()
    columns = {**plain.segments[0].columns, "observation/front": pictures[:-1]}
    last = Observation(time_ns=0, values={"state": np.zeros(1, np.float32), "front": pictures[-1]})
    segment = Segment(episode_id="e1", first=0, final=True, columns=columns, last_observation=last)
    observation = {**plain.robot.observation, "front": ArraySpec(shape=(8, 8, 3), dtype="uint8")}
    robot = dataclasses.replace(plain.robot, observation=observation)
    return dataclasses.replace(plain, robot=robot, segments=(segment,), prompt=prompt)


def picture_part(level: int) -> dict[str, Any]:
    """A gray image as a part of a chat message."""
    file = io.BytesIO()
    Image.new("RGB", (20, 12), (level,) * 3).save(file, "JPEG")
    url = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}
