"""When inference counts as hung: with a policy server only after a request to it has timed out, because that means hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.actor.actors import ActorConfig
from dovetail.config.policy_server import LearningServerConfig
from dovetail.config.schema import PluginSection, RunConfig
from dovetail.core.abilities import ConfiguresServer

__all__ = ["patient_actor"]

_SPARE_S = 1.0


def patient_actor(config: RunConfig) -> PluginSection:
    """The actor section. Its `inference_timeout_s` is longer than any request to the servers of this config."""
    section, actor = config.actor, config.actor.config
    longest_s = max(map(_longest_request_s, _servers(config)), default=0.0)
    if not isinstance(actor, ActorConfig) or longest_s + _SPARE_S <= actor.inference_timeout_s or not longest_s:
        return section
    patient = actor.model_copy(update={"inference_timeout_s": longest_s + _SPARE_S})
    return dataclasses.replace(section, config=patient)


def _servers(config: RunConfig) -> Iterator[ConfiguresServer]:
    """The servers of the policy, of its base, and of a run that learns through a server."""
    base: Any = getattr(config.policy.config, "base", None)
    named = isinstance(base, Mapping) and "type" in base
    of_base = PluginSection.parse("policy", base).config if named else None
    for settings in (config.policy_server, config.policy.config, of_base):
        if isinstance(settings, ConfiguresServer):
            yield settings


def _longest_request_s(server: ConfiguresServer) -> float:
    weights_s = server.weights_timeout_s if isinstance(server, LearningServerConfig) else 0.0
    return server.connect_timeout_s + server.timeout_s + weights_s
