"""Our extension of openpi's protocol: an observation may have a context, so that the server can guide a chunk.

A server that reads it states `context: true` in its metadata. Stock servers do not, and get observations without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActContext
from dovetail.policies.remote.requests import context_fields, read_context

__all__ = ["context_from_wire", "context_to_wire"]

_KEY = "dovetail_context"


def context_to_wire(context: ActContext, *, row: int) -> dict[str, Any]:
    """The part of an observation that carries the context of one row."""
    fields = context_fields(context)
    if context.prefix is not None:
        fields["prefix"] = np.asarray(context.prefix[row], np.float32)  # [H, A]
    return {_KEY: fields}


def context_from_wire(observation: Mapping[str, Any], spec: PolicySpec) -> ActContext | None:
    """The context of one row; None if the client sent none. Raise UsageError if it is not valid."""
    fields = observation.get(_KEY)
    if fields is None:
        return None
    if not isinstance(fields, Mapping):
        raise UsageError(f"'{_KEY}' should be a map, got {type(fields).__name__}")
    prefix = fields.get("prefix")
    if isinstance(prefix, np.ndarray):
        prefix = prefix[None]
    return read_context(fields, prefix, spec, num_rows=1)
