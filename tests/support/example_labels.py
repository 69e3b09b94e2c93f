"""Example labels and their comparison."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dovetail.core.types import Labels

__all__ = ["assert_same_labels", "labels"]


def labels(episode_id: str = "e1", *, reward: float = 0.1, num_steps: int = 3, **other: Any) -> Labels:
    fields: dict[str, Any] = {
        "episode_id": episode_id,
        "rewards": np.full(num_steps, reward, np.float32),
        "discounts": np.ones(num_steps, np.float32),
        "success": True,
        "confidence": 0.75,
        "labeler": "outcome",
        "version": "1",
    }
    return Labels(**{**fields, **other})


def assert_same_labels(a: Labels | None, b: Labels | None) -> None:
    assert a is not None
    assert b is not None
    for field in dataclasses.fields(Labels):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == np.float32
            assert x.tobytes() == y.tobytes()
        else:
            assert x == y
