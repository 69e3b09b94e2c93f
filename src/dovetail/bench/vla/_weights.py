"""New weights for all of pi0 while it acts through all processes of a robot. Taking them must not cost a tick."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np

from dovetail.bench.vla._folder import write_folder
from dovetail.config.load import load
from dovetail.config.schema import PluginSection
from dovetail.core.errors import FailureError
from dovetail.core.images import seen_robot
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Purpose
from dovetail.policies.components import NORMALIZER
from dovetail.policies.vla.networks.paligemma import PaliGemmaNetwork
from dovetail.policies.vla.policy import VlaPolicy
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.policy_components import build_acting_policy
from dovetail.runs.roles.robot import order_episode
from dovetail.weights.store import DiskWeightStore

__all__ = ["taken_while_acting"]

_CONTROL_HZ = 50
_NUM_STATE, _NUM_ACTIONS = 10, 7  # ee_pose and goal of the fake arm
_CONFIG = """
task: {{type: "dovetail.testing.fakes:FakeTask", max_steps: {num_ticks}, tolerance: 0.0}}
robot: {{type: "dovetail.testing.live:LiveArm", control_hz: {control_hz}, image_size: [{size}, {size}]}}
actor: {{type: rtc, layout: processes, swap_weights: chunk, execution_horizon: 16}}
policy:
  type: pi0
  checkpoint: {folder}
  stats: {folder}/stats.json
  images: {{base_0_rgb: front}}
  state: [ee_pose, goal]
  device: {device}
  execution: {execution}
algorithm: imitation
"""


def taken_while_acting(
    network: PaliGemmaNetwork, *, device: str, seconds: float, num_versions: int
) -> dict[str, float]:
    """Telemetry of one episode during which `num_versions` versions of all weights are published, with `version_gb`."""
    size = network.sizes.vision.image_size
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-weights-") as scratch:
        folder, store = Path(scratch) / "pi0", Path(scratch) / "weights"
        write_folder(folder, network, num_state=_NUM_STATE, num_actions=_NUM_ACTIONS)
        path = Path(scratch) / "config.yaml"
        path.write_text(
            _CONFIG.format(
                num_ticks=round(_CONTROL_HZ * seconds),
                control_hz=_CONTROL_HZ,
                size=size,
                folder=folder,
                device=device,
                execution="graph" if device.startswith("cuda") else "eager",
            )
        )
        config = load([path])
        assembly = build_assembly(config)
        try:
            weights = _weights_of(assembly.robot.spec, config.policy, image_size=size)
            publisher = threading.Thread(target=_publish, args=(store, weights, num_versions))
            actor = assembly.actor_for(Purpose.ONLINE, weights=store)
            order = order_episode(assembly, purpose=Purpose.ONLINE, index=0, config_hash="bench")
            publisher.start()
            actor.run(order)
            publisher.join()
            if actor.fault is not None:
                raise FailureError(actor.fault)
            found = dict(actor.telemetry())
            if "weights_swaps" not in found:
                raise FailureError(f"the policy took no new weights in {found.get('ticks', 0.0):.0f} ticks")
        finally:
            assembly.close()
    found["version_gb"] = sum(array.nbytes for arrays in weights.values() for array in arrays.values()) / 1e9
    return found


def _weights_of(robot: RobotSpec, section: PluginSection, *, image_size: int) -> dict[str, dict[str, Array]]:
    """All weights of the policy, in memory."""
    policy = build_acting_policy(section, robot=seen_robot(robot, image_size), seed=0)
    assert isinstance(policy, VlaPolicy)
    return {name: dict(arrays) for name, arrays in policy.weights().items()}


def _publish(folder: Path, weights: dict[str, dict[str, Array]], num_versions: int) -> None:
    """Every version differs in each component, because a component that did not change is not written again."""
    store = DiskWeightStore(folder)
    for _ in range(num_versions):
        for name, arrays in weights.items():
            if name != NORMALIZER:
                next(iter(arrays.values())).reshape(-1).view(np.uint8)[0] ^= 1  # the last bit of one number
        store.publish(weights)
