"""`dovetail bench learn_speed` with Stable-Baselines3 and TorchRL beside it, given our networks and batches."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from benchmarks import _learn_peers
from dovetail.bench import learn_speed
from dovetail.bench._learn_ours import CAMERAS
from dovetail.bench.learn_speed import Peers, Sizes, Update
from dovetail.bench.rows import Row
from dovetail.core.errors import UsageError

__all__ = ["InstalledPeers", "bench"]


def bench(*, quick: bool, sizes: Sizes | None = None) -> Iterator[Row]:
    peers = InstalledPeers()
    if not (peers.has_sb3 or peers.has_torchrl):
        raise UsageError("neither Stable-Baselines3 nor TorchRL is installed: pip install -e '.[bench]'")
    yield from learn_speed.bench(quick=quick, sizes=sizes, peers=peers)


class InstalledPeers(Peers):
    """Those of the two libraries that are installed."""

    def __init__(self) -> None:
        self.has_sb3 = importlib.util.find_spec("stable_baselines3") is not None
        self.has_torchrl = importlib.util.find_spec("torchrl") is not None

    def sac(self, batch: Mapping[str, Tensor], *, hidden: Sequence[int], critics: int) -> dict[str, Update]:
        found: dict[str, Update] = {}
        if self.has_sb3:
            found["SB3"] = _learn_peers.sb3_sac(batch, hidden=hidden, critics=critics)
            found["SB3, its own nets (ReLU, no LayerNorm)"] = _learn_peers.sb3_sac(
                batch, hidden=hidden, critics=critics, own_nets=True
            )
        if self.has_torchrl:
            found["TorchRL"] = _learn_peers.torchrl_sac(batch, hidden=hidden, critics=critics)
        return found

    def image_sac(self, batch: Mapping[str, Tensor], *, hidden: Sequence[int]) -> dict[str, Update]:
        if not self.has_sb3:
            return {}
        return {"SB3": _learn_peers.sb3_image_sac(batch, hidden=hidden, cameras=CAMERAS)}

    def ppo(self, rollout: Mapping[str, Tensor], *, hidden: Sequence[int], batch_size: int) -> dict[str, Update]:
        found: dict[str, Update] = {}
        if self.has_sb3:
            found["SB3"] = _learn_peers.sb3_ppo(rollout, hidden=hidden, batch_size=batch_size)
        if self.has_torchrl:
            found["TorchRL"] = _learn_peers.torchrl_ppo(rollout, hidden=hidden, batch_size=batch_size)
        return found
