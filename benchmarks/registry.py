"""The names of the benchmarks. A shorter name runs a group: `learn` runs every `learn_...`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dovetail.bench.registry import Entry

__all__ = ["BENCHMARKS"]

BENCHMARKS: Mapping[str, Entry] = MappingProxyType(
    {
        "experts": Entry(
            "benchmarks.experts", "scripted experts and open-loop replay of their actions, per task and arm"
        ),
        "replay_peers": Entry("benchmarks.replay_peers", "`dovetail bench replay`, with TorchRL"),
        "chunk_modes": Entry("benchmarks.chunk_modes", "modes of chunked acting under inference delay"),
        "learn_peers": Entry(
            "benchmarks.learn_peers", "`dovetail bench learn_speed`, with Stable-Baselines3 and TorchRL"
        ),
        "learn_lift": Entry("benchmarks.learn_lift", "improvement of weak policies by HG-DAgger, Hi-ORS and DSRL"),
        "learn_minutes": Entry("benchmarks.learn_minutes", "robot time to 95 %, three seeds, with SB3's SAC"),
        "learn_ppo": Entry("benchmarks.learn_ppo", "PPO on push_cube: time to 95 %, synchronous and asynchronous"),
        "gym_peers": Entry(
            "benchmarks.gym_peers",
            "`dovetail run --gym` against SB3's SAC and PPO: four environments, three seeds",
        ),
        "arms": Entry("benchmarks.arms", "two arms that share one policy: robot time, against each arm alone"),
        "pipeline_ratio": Entry(
            "benchmarks.pipeline_ratio", "Ray against inline: seconds per episode at the same utd"
        ),
        "pipeline_free": Entry(
            "benchmarks.pipeline_free", "Ray against inline: a learner without an update limit"
        ),
        "pipeline_solved": Entry(
            "benchmarks.pipeline_solved", "Ray against inline: time to 95 % on peg_insertion"
        ),
        "pipeline_publish": Entry(
            "benchmarks.pipeline_publish", "Ray: from publishing weights to their use on an arm"
        ),
        "pipeline_ingest": Entry(
            "benchmarks.pipeline_ingest", "Ray: 1 to 32 arms into one store, beside a learner"
        ),
        "ablation": Entry(
            "benchmarks.ablation", "the demo with cloning only, without RL, without a person, and with both"
        ),
        "residual": Entry(
            "benchmarks.residual", "residual learning on a frozen flow, next to HG-DAgger, RLPD and DSRL: 30 runs"
        ),
        "demo": Entry("benchmarks.demo", "`make demo` for five seeds, and the same inline"),
    }
)
