"""Time of one action chunk of ACT with random weights, from images in memory to actions in memory.

On a GPU: the published size, three cameras of 640 x 480 pixels, chunks of 100 actions. On a CPU: a small model.
`python -m dovetail.bench.vla.act [--quick]` prints the rows as JSON lines and needs neither the CLI nor Ray.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch

from dovetail.bench.rows import Row
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext, Array
from dovetail.learn.precision import compute_in_bf16
from dovetail.policies.lerobot.act import Act, ActConfig

__all__ = ["bench"]

_CAMERAS = ("front", "left", "right")
_CONTEXT = ActContext(deterministic=True)


def bench(*, quick: bool) -> Iterator[Row]:
    if torch.cuda.is_available():
        yield from _rows(
            "published size, GPU", _policy((480, 640)), torch.device("cuda"), num=10 if quick else 100
        )
    else:
        small = {"horizon": 20, "hidden": 64, "feedforward": 128, "num_style_layers": 1, "width": 16}
        yield from _rows("small, CPU", _policy((96, 128), **small), torch.device("cpu"), num=3 if quick else 20)


def _rows(name: str, policy: Act, device: torch.device, *, num: int) -> Iterator[Row]:
    policy.to(device)
    num_weights = sum(p.numel() for module in policy.components.values() for p in module.parameters())
    yield Row(name=f"act, {name}: weights", value=num_weights / 1e6, unit="million")
    rng = np.random.default_rng(0)
    seen = {key: _random(spec, rng) for key, spec in policy.spec.observation.items()}
    expected = policy.act(seen, _CONTEXT).actions
    baseline = f"act, {name}, float32"
    times = _times_ms(policy, seen, num)
    yield Row(name=baseline, value=statistics.median(times), unit="ms/chunk", samples=tuple(times))
    if device.type == "cuda":
        compute_in_bf16(policy.components.values())
        faster = _times_ms(policy, seen, num)
        ratio = statistics.median(faster) / statistics.median(times)
        row = f"act, {name}, bfloat16"
        value = statistics.median(faster)
        yield Row(name=row, value=value, unit="ms/chunk", baseline=baseline, ratio=ratio, samples=tuple(faster))
        found = policy.act(seen, _CONTEXT).actions
        error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        yield Row(name=f"{row}: difference of actions", value=100.0 * error, unit="%")


def _policy(camera: tuple[int, int], **sizes: int) -> Act:
    image = ArraySpec(shape=(*camera, 3), dtype="uint8")
    robot = RobotSpec(
        name="bench",
        embodiment="bench",
        observation={"joint_pos": ArraySpec(shape=(14,)), **dict.fromkeys(_CAMERAS, image)},
        action=ArraySpec(shape=(14,), low=(-1.0,) * 14, high=(1.0,) * 14),
        action_kind="joint_target",
        control_hz=50.0,
    )
    config = ActConfig.model_validate({"inputs": ("joint_pos", *_CAMERAS), **sizes})
    return Act(config, robot=robot, seed=0)


def _random(spec: ArraySpec, rng: np.random.Generator) -> Array:
    if spec.is_image:
        return rng.integers(0, 256, (1, *spec.shape), np.uint8)
    return rng.standard_normal((1, *spec.shape)).astype(np.float32)


def _times_ms(policy: Act, seen: dict[str, Array], num: int) -> list[float]:
    """The time of each chunk, after two that do not count."""
    times = []
    for _ in range(num + 2):
        start_s = time.perf_counter()
        policy.act(seen, _CONTEXT)
        times.append(1e3 * (time.perf_counter() - start_s))
    return times[2:]


if __name__ == "__main__":
    for row in bench(quick="--quick" in sys.argv):
        sys.stdout.write(json.dumps(row.to_json()) + "\n")
        sys.stdout.flush()
