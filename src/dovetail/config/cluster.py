"""Who runs where, when everything runs at once: one typed section for a laptop and for a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dovetail.config.model import Config

__all__ = ["ClusterConfig", "Place"]

Amount = Annotated[float, Field(ge=0)]


class Place(Config):
    """Where a role may run. Nothing said: anywhere."""

    resources: dict[str, Amount] = {}
    """What a machine must offer, by the labels that it joined with: {training: 1}."""
    node: str | None = None
    """Only on the machine of this address or host name."""
    num_cpus: float = Field(default=0.0, ge=0)
    """Cores that are reserved for it; 0 reserves none."""
    num_gpus: float = Field(default=0.0, ge=0)


class ClusterConfig(Config):
    address: str | None = None
    """A Ray cluster that is there already, HOST:PORT; null: one on this machine alone, for this run alone."""
    num_robots: int = Field(default=1, ge=1, le=64)
    """Arms that practise the task, each as the `robot` section says."""
    robot: Place = Place()
    learner: Place = Place()
    """The store and its replay are where the learner is: batches come from memory that both map."""
    labeler: Place = Place()
    num_labelers: int = Field(default=1, ge=1, le=64)
    max_behind_steps: int = Field(default=200, ge=0)
    """Steps of practice that simulated arms may be ahead of the learner's updates, all together: beyond, they wait. Real
    arms never wait; there the update-to-data ratio alone paces the learner."""
    store_mb: int = Field(default=200, ge=80)
    """Memory that Ray shares between processes of one machine."""
    cut_off: str = "finish"
    label_timeout_s: float = 120.0
    weights: str = "fp32"

    def arms(self) -> dict[str, Place]:
        return {f"robot-{number}": self.robot for number in range(self.num_robots)}
