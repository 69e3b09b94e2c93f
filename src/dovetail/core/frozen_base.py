"""Frozen components in a version of weights: only their sha256, so that a version costs what is trained.

A policy that froze a component from a checkpoint publishes `base_reference(digest)` instead of its arrays. Stores, files and
wires carry it like any other component. A policy that loads the version has read the same checkpoint; `load` compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from dovetail.core.errors import StoreError
from dovetail.core.types import Array

__all__ = ["base_reference", "check_base", "referenced_base"]

_KEY = "base_sha256"
_NUM_BYTES = 32
_DIGEST = re.compile(r"[0-9a-f]{64}")


def base_reference(digest: str) -> dict[str, Array]:
    """What a version contains instead of a component with this sha256 (64 hexadecimal digits)."""
    assert _DIGEST.fullmatch(digest)
    return {_KEY: np.frombuffer(bytes.fromhex(digest), np.uint8)}


def referenced_base(arrays: Mapping[str, Array]) -> str | None:
    """The sha256 that a component refers to. None: it has arrays of its own."""
    if arrays.keys() != {_KEY}:
        return None
    digest = arrays[_KEY]
    return digest.tobytes().hex() if digest.dtype == np.uint8 and digest.shape == (_NUM_BYTES,) else None


def check_base(expected: str, own: str | None, *, component: str, misfit: str) -> None:
    """Raise StoreError unless the policy has the frozen component that the weights were trained with."""
    if own is None:
        raise StoreError(
            f"{misfit}component '{component}' is not in them, because it was frozen (sha256 {expected[:12]}). Set "
            f"policy.components.{component} to that checkpoint and frozen: true"
        )
    if own != expected:
        raise StoreError(
            f"{misfit}they were trained with another frozen component '{component}' (sha256 {expected[:12]}) than the one "
            f"that was loaded (sha256 {own[:12]}). Use the checkpoint of that run"
        )
