"""EmbodiChain's JSON training config as a config of Dovetail.

    imported = convert(tree, folder=path.parent)
    imported.recipe      the recipe whose task, robot and safety stand for the environment; None: there is none
    imported.tree        the other sections
    imported.mapped      lines such as `trainer.seed -> run.seed=42`
    imported.unmapped    lines such as `trainer.headless=true: a simulation has no window unless you add --viewer`

Both formats are read: with `runtime` and `env`, and the later one with `trainer` and a separate `gym_config`. What has no
counterpart is reported. What would change the learning without notice is refused: another algorithm, another kind of
network, an unknown setting of the algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.config import _yaml
from dovetail.config._tree import Node, from_plain, put
from dovetail.core.errors import ConfigError, did_you_mean

__all__ = ["Imported", "convert", "is_embodichain"]

_RECIPES = {"PushCubeRL": "push-cube-ppo", "PushCube": "push-cube-ppo"}
_ALGORITHM = {
    "learning_rate": "lr",
    "n_epochs": "num_epochs",
    "batch_size": "batch_size",
    "gamma": "gamma",
    "gae_lambda": "gae_lambda",
    "clip_coef": "clip_ratio",
    "ent_coef": "entropy_coef",
    "vf_coef": "value_coef",
    "max_grad_norm": "max_grad_norm",
}
_NO_EFFECT = {"rollout_time_first": "the order of steps in a rollout does not matter here"}
_DEFAULT_BATCH_SIZE = 64  # theirs; the other defaults are the same
_DEFAULT_ROLLOUT_STEPS = 2048
_CONTROL_HZ = 10.0  # of robot 'sim'
_RUN = {  # keys of `trainer` or `runtime` without a setting here
    "exp_name": "name the run with --name",
    "headless": "a simulation has no window unless you add --viewer",
    "events": "the report has a video, see run.video_episodes",
    "gpu_id": "see device",
    "enable_rt": "there is no ray tracing",
    "wandb_project_name": "see use_wandb",
    "num_eval_envs": "evaluations run one episode after another",
}
_ENV = {
    "obs_mode": "all low-dimensional observations are used, see policy.inputs",
    "action_scale": "see robot.max_step_m and robot.max_turn_rad",
    "joint_limits": "the arm has its own",
    "success_threshold": "our scene is smaller, so task.tolerance_m stays",
}


@dataclass(slots=True)
class Imported:
    tree: Node
    recipe: str | None = None
    mapped: list[str] = field(default_factory=list)
    unmapped: list[str] = field(default_factory=list)

    def set(self, theirs: str, ours: str, value: Any, where: str) -> None:
        self.tree = put(self.tree, ours.split("."), from_plain(value, where))
        self.mapped.append(f"{theirs} -> {ours}={_yaml.dump_inline(value)}")

    def leave(self, theirs: str, value: Any, why: str) -> None:
        shown = f"={_yaml.dump_inline(value)}" if not isinstance(value, Mapping | list) else ""
        self.unmapped.append(f"{theirs}{shown}: {why}")


def is_embodichain(tree: Node) -> bool:
    """Whether a parsed file has their sections: ours have `type` instead of `name`, and `runtime` is a word."""
    if not isinstance(tree.value, dict):
        return False
    algorithm, runtime = _mapping(tree, "algorithm"), tree.value.get("runtime")
    has_run = "trainer" in tree.value or (runtime is not None and isinstance(runtime.value, dict))
    return has_run and "name" in algorithm and "type" not in algorithm


def convert(tree: Node, *, folder: Path) -> Imported:
    """`folder` is that of the file: its `gym_config` may be in it."""
    try:
        return _convert(tree, folder)
    except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"{tree.where}: a setting of this EmbodiChain config has a wrong type ({what})"
        ) from error


def _convert(tree: Node, folder: Path) -> Imported:
    found = Imported(Node({}, tree.where))
    section = "trainer" if "trainer" in tree.value else "runtime"
    for key, node in tree.value.items():
        if key not in (section, "env", "policy", "algorithm"):
            raise ConfigError(f"{node.where}: unknown section '{key}' of an EmbodiChain config. Remove it")
    run = _plain(tree, section)
    env_id, env, num_envs = _environment(tree, run, folder)
    _convert_algorithm(tree, found)
    _convert_run(found, run, section, num_envs=num_envs, where=tree.value[section].where)
    _convert_environment(found, env_id, env, where=tree.where)
    _convert_policy(tree, found)
    for ours, value, why in (
        ("run.demos", 0, "EmbodiChain learns without demonstrations"),
        ("algorithm.normalize", False, "EmbodiChain does not normalize observations"),
    ):
        found.set(f"({why})", ours, value, tree.where)
    return found


# ---- sections


def _convert_algorithm(tree: Node, found: Imported) -> None:
    name = _mapping(tree, "algorithm")["name"]
    if str(name.value).lower() != "ppo":
        raise ConfigError(
            f"{name.where}: EmbodiChain's algorithm '{name.value}' is not available here, only 'ppo'. Choose one with "
            "`dovetail plugins --kind algorithm`"
        )
    found.set("algorithm.name", "algorithm.type", "ppo", name.where)
    given = _mapping(tree, "algorithm", "cfg")
    for key, node in given.items():
        if key in _NO_EFFECT:
            found.leave(f"algorithm.cfg.{key}", node.plain(), _NO_EFFECT[key])
        elif key in _ALGORITHM:
            found.set(f"algorithm.cfg.{key}", f"algorithm.{_ALGORITHM[key]}", node.plain(), node.where)
        else:
            hint = did_you_mean(key, _ALGORITHM)
            raise ConfigError(
                f"{node.where}: 'algorithm.cfg.{key}' is not known, and it may change the learning.{hint}"
            )
    if "batch_size" not in given:
        batch_size = _plain(tree, "trainer").get("batch_size", _DEFAULT_BATCH_SIZE)
        found.set("trainer.batch_size, or its default", "algorithm.batch_size", batch_size, tree.where)


def _convert_run(
    found: Imported, run: Mapping[str, Any], section: str, *, num_envs: int | None, where: str
) -> None:
    def put_in(key: str, ours: str, value: Any) -> None:
        found.set(f"{section}.{key}", ours, value, where)

    steps_key = next((key for key in ("buffer_size", "rollout_steps") if key in run), None)
    rollout_steps = run[steps_key] if steps_key else _DEFAULT_ROLLOUT_STEPS
    put_in(steps_key or "buffer_size, or its default", "algorithm.rollout_steps", rollout_steps)
    if num_envs is not None:
        found.set("num_envs", "algorithm.num_envs", num_envs, where)
    elif {"iterations", "eval_freq", "save_freq"} & run.keys():
        raise ConfigError(
            f"{where}: the number of environments is unknown, so steps cannot be counted. Set {section}.num_envs, or put "
            f"the file of {section}.gym_config beside this file"
        )
    per_rollout = int(rollout_steps) * (num_envs or 1)
    convert_key: dict[str, Callable[[Any], None]] = {
        "seed": lambda value: put_in("seed", "run.seed", value),
        "device": lambda value: put_in("device", "device", value),
        "cuda": lambda value: put_in("cuda", "device", "cuda" if value else "cpu"),
        "iterations": lambda value: put_in("iterations", "run.env_steps", int(value) * per_rollout),
        "use_wandb": lambda value: put_in(
            "use_wandb", "run.wandb", run.get("wandb_project_name", "embodychain-generic") if value else None
        ),
        # they evaluate after a rollout if the number of steps so far is a multiple of it
        "eval_freq": lambda value: _convert_evaluations(put_in, found, run, section, per_rollout=per_rollout),
        # they save then too; an update here is a rollout
        "save_freq": lambda value: put_in(
            "save_freq", "run.checkpoint_every_updates", math.lcm(int(value), per_rollout) // per_rollout
        ),
        "num_eval_episodes": lambda value: put_in(
            "num_eval_episodes x num_eval_envs", "run.scheduled_eval_episodes", value * run.get("num_eval_envs", 4)
        ),
        **dict.fromkeys(("buffer_type", "model_type"), lambda value: _convert_buffer(put_in, value, where=where)),
        "distributed": lambda value: _refuse_distributed(value, where=where),
    }
    counted = ("buffer_size", "rollout_steps", "num_envs", "gym_config", "batch_size", "enable_eval")
    for key, value in run.items():
        if key in convert_key:
            convert_key[key](value)
        elif key not in counted:
            found.leave(f"{section}.{key}", value, _RUN.get(key, "it has no counterpart"))


def _convert_evaluations(
    put_in: Callable[[str, str, Any], None],
    found: Imported,
    run: Mapping[str, Any],
    section: str,
    *,
    per_rollout: int,
) -> None:
    frequency = int(run["eval_freq"])
    if run.get("enable_eval") is False or frequency < 1:
        found.leave(f"{section}.eval_freq", frequency, "enable_eval is false")
    else:
        put_in("eval_freq", "run.eval_every_steps", math.lcm(frequency, per_rollout))


def _convert_buffer(put_in: Callable[[str, str, Any], None], kind: Any, *, where: str) -> None:
    if kind not in ("standard", "vla"):
        raise ConfigError(f"{where}: buffer_type should be 'standard' or 'vla', got {kind!r}")
    put_in("buffer_type", "algorithm.asynchronous", kind == "vla")


def _refuse_distributed(value: Any, *, where: str) -> None:
    if value:
        raise ConfigError(f"{where}: PPO runs in one learner here. Set distributed to false")


def _environment(
    tree: Node, run: Mapping[str, Any], folder: Path
) -> tuple[str | None, Mapping[str, Any], int | None]:
    """The environment's id, its settings, and how many there are; None where the file does not tell."""
    if "env" in tree.value:
        env = _plain(tree, "env")
        settings = env.get("cfg", {})
        return env.get("id"), settings, run.get("num_envs", settings.get("num_envs"))
    if "gym_config" not in run:
        return None, {}, run.get("num_envs")
    name = Path(str(run["gym_config"]))
    path = next((path for path in (name, folder / name.name) if path.is_file()), None)
    if path is None:
        return None, {}, run.get("num_envs")
    gym = _yaml.parse(path.read_text(encoding="utf-8"), name=str(path), is_json=True).plain()
    env = gym.get("env", {})
    return gym.get("id"), env.get("extensions", {}), run.get("num_envs", env.get("num_envs"))


def _convert_environment(found: Imported, env_id: str | None, env: Mapping[str, Any], *, where: str) -> None:
    found.recipe = _RECIPES.get(str(env_id))
    if env_id is not None and found.recipe is not None:
        found.mapped.append(
            f"env.id={env_id} -> task, robot and safety of recipe {found.recipe}: our scene and arm, not theirs"
        )
    else:
        found.unmapped.append(
            f"env.id={env_id or '(unknown)'}: name a recipe before this file, or set robot.type=gym and robot.id"
        )
    for key, value in env.items():
        if key == "num_envs":
            continue
        if key == "episode_length" and found.recipe is not None:
            found.set(f"env.{key}", "task.time_limit_s", value / _CONTROL_HZ, where)
        else:
            found.leave(f"env.{key}", value, _ENV.get(key, "it is for their environment"))


def _convert_policy(tree: Node, found: Imported) -> None:
    policy = _mapping(tree, "policy")
    name = policy.get("name", Node("actor_critic", tree.where))
    if name.value == "actor_critic":
        _convert_actor_critic(tree, found, where=name.where)
    elif name.value == "vla":
        _convert_vla(tree, found, where=name.where)
    else:
        raise ConfigError(
            f"{name.where}: EmbodiChain's policy '{name.value}' is not available here, only 'actor_critic' and 'vla'"
        )
    if "action_dim" in policy:
        found.leave("policy.action_dim", policy["action_dim"].plain(), "the robot decides it")
    for key, node in policy.items():
        if key not in ("name", "action_dim", "actor", "critic", "vla_config", "cfg") or (
            key == "cfg" and node.plain()
        ):
            raise ConfigError(
                f"{node.where}: 'policy.{key}' is not known, and it may change the learning. Remove it"
            )


def _convert_actor_critic(tree: Node, found: Imported, *, where: str) -> None:
    found.set("policy.name", "policy.type", "actor_critic", where)
    for network, ours in (("actor", "policy.hidden"), ("critic", "policy.value_hidden")):
        given = _plain(tree, "policy", network)
        inner = given.get("network_cfg", given)
        if given.get("type", "mlp") != "mlp" or "hidden_sizes" not in inner:
            raise ConfigError(f"{where}: policy.{network} should be an mlp with hidden_sizes")
        found.set(f"policy.{network}.hidden_sizes", ours, inner["hidden_sizes"], where)
        for key, value in inner.items():
            if key == "activation":
                found.set(
                    f"policy.{network}.{key}", f"policy.components.{network}.{key}", str(value).lower(), where
                )
            elif key not in ("type", "hidden_sizes", "network_cfg"):
                found.leave(
                    f"policy.{network}.{key}", value, "layers are linear, LayerNorm and the activation here"
                )
    found.set("(their log_std starts at 0)", "policy.initial_std", 1.0, where)


def _convert_vla(tree: Node, found: Imported, *, where: str) -> None:
    given = _plain(tree, "policy", "vla_config")
    if "model_class" not in given:
        raise ConfigError(
            f"{where}: policy.vla_config.model_class is missing: policy 'vla' needs a class of yours"
        )
    module, _, name = str(given["model_class"]).rpartition(".")
    found.set("policy.name", "policy.type", "vla", where)
    theirs = "policy.vla_config"
    found.set(f"{theirs}.model_class", "policy.model_class", f"{module}:{name}", where)
    for key, ours in (("model_config", "policy.model_config"), ("model_path", "policy.checkpoint")):
        if given.get(key):
            found.set(f"{theirs}.{key}", ours, given[key], where)
    if unknown := sorted(given.keys() - {"model_class", "model_config", "model_path"}):
        raise ConfigError(
            f"{where}: '{theirs}.{unknown[0]}' is not known, and it may change the policy. Remove it"
        )


# ---- the tree


def _mapping(tree: Node, *path: str) -> dict[str, Node]:
    """The mapping at a path; empty if there is none."""
    for key in path:
        if not isinstance(tree.value, dict) or key not in tree.value:
            return {}
        tree = tree.value[key]
    return tree.value if isinstance(tree.value, dict) else {}


def _plain(tree: Node, *path: str) -> dict[str, Any]:
    return {key: node.plain() for key, node in _mapping(tree, *path).items()}
