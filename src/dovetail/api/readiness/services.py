"""Checks of servers, ports and accounts that a config names."""

from __future__ import annotations

import importlib.util
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

from dovetail.api.readiness.finding import Finding
from dovetail.config.schema import RunConfig
from dovetail.core.errors import UsageError
from dovetail.labels.vlm import VLMConfig

__all__ = ["service_findings"]

_TIMEOUT_S = 2.0


def service_findings(config: RunConfig, *, console_port: int | None = None) -> Iterator[Finding]:
    for section in config.labels:
        if isinstance(section.config, VLMConfig):
            yield _label_server(section.config)
    if config.run.wandb is not None:
        yield Finding(
            name="wandb",
            ok=importlib.util.find_spec("wandb") is not None,
            detail=f"project {config.run.wandb}",
            remedy="pip install wandb",
        )
    if console_port is not None:
        yield _port("console port", console_port, remedy="Choose another with --console-port")
    if config.runtime == "ray" and config.cluster.machines:
        yield from _cluster_ports(config)


def _cluster_ports(config: RunConfig) -> Iterator[Finding]:
    """The ports of this machine in the cluster. They are taken while it runs."""
    from dovetail.runtime.ray.cluster.joining import this_machine

    try:
        name = this_machine(config.cluster)
    except UsageError as error:
        yield Finding(name="cluster", ok=False, detail=str(error), needed=False)
        return
    machine = config.cluster.machines[name]
    advice = (
        f"Unless the cluster runs already (dovetail cluster status FILE), change cluster.machines.{name}.ports"
    )
    for role in ("head", "node", "objects", "agent")[not machine.head :]:
        yield _port(f"port '{role}'", getattr(machine.ports, role), remedy=advice, needed=False)


def _label_server(config: VLMConfig) -> Finding:
    """Whether the server answers at all. It may refuse to list its models."""
    name = "label server"
    if config.model_folder is not None:
        ok = config.model_folder.is_dir()
        remedy = "Download the model, or set the labeler's model_folder"
        return Finding(name=name, ok=ok, detail=f"model in {config.model_folder}", remedy=remedy)
    if config.key_env is not None and not os.environ.get(config.key_env):
        detail = f"the variable {config.key_env} with the key for {config.url} is not set"
        return Finding(name=name, ok=False, detail=detail, remedy=f"export {config.key_env}=KEY")
    try:
        with urllib.request.urlopen(f"{config.url.rstrip('/')}/models", timeout=_TIMEOUT_S):
            pass
    except urllib.error.HTTPError:
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        remedy = "Start it, or set the labeler's url. Without it, episodes wait for their labels"
        return Finding(name=name, ok=False, detail=f"no answer from {config.url} ({reason})", remedy=remedy)
    return Finding(name=name, ok=True, detail=f"{config.url} answers")


def _port(name: str, port: int, *, remedy: str, needed: bool = True) -> Finding:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            detail = f"{port}: {error.strerror}"
            return Finding(name=name, ok=False, detail=detail, remedy=remedy, needed=needed)
    return Finding(name=name, ok=True, detail=f"{port} is free", needed=needed)
