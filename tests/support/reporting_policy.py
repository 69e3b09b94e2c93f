"""A policy that writes where it computes into a file when it warms up, one line per policy."""

import json
import os
from pathlib import Path

import torch

from dovetail.policies.gaussian_mlp import GaussianMLP
from dovetail.policies.settings import GaussianMLPConfig

__all__ = ["ReportingPolicy", "read_reports"]


class ReportingConfig(GaussianMLPConfig):
    report: str
    """The file."""


class ReportingPolicy(GaussianMLP):
    Config = ReportingConfig

    def __init__(self, config, *, robot, seed=0):
        super().__init__(config, robot=robot, seed=seed)
        self._report, self._moved_to = config.report, None

    def to(self, device):
        self._moved_to = str(device)
        return super().to(device)

    def warmup(self):
        super().warmup()
        facts = {
            "pid": os.getpid(),
            "moved_to": self._moved_to,
            "device": str(next(self.components["actor"].parameters()).device),
            "num_threads": torch.get_num_threads(),
        }
        with open(self._report, "a") as file:
            file.write(json.dumps(facts) + "\n")


def read_reports(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()]
