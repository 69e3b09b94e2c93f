"""Find plugin classes: by a built-in name, an installed entry point, or `module:Class`.

    resolve("task", "peg_insertion")         built in; also `peg-insertion`
    resolve("task", "wipe_board")            a package with the entry point group `dovetail.task`
    resolve("task", "my_lab.tasks:Wipe")     any importable class

A module is imported when its plugin is resolved, not earlier: the control process must not load torch. The settings of
built-in plugins are found without their classes (`settings_of`), so that a wrong one is refused before torch and the
simulator are loaded. A module that is not installed is looked for in the current folder, after everything else: a file
there cannot replace an installed module. A stored config of an untrusted run folder never gets here with a `module:Class`
(see `trust`).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from dovetail.config._tree import normalize_name
from dovetail.config.model import Config
from dovetail.core import contracts
from dovetail.core.errors import PluginError, did_you_mean
from dovetail.core.own_modules import load_class

__all__ = [
    "BUILTIN",
    "KINDS",
    "Plugin",
    "build",
    "config_model",
    "installed_plugins",
    "is_builtin",
    "list_plugins",
    "locate",
    "resolve",
    "settings_of",
]

BUILTIN: dict[str, dict[str, str]] = {
    "task": {
        "push_cube": "dovetail.tasks.push_cube:PushCube",
        "push_by_prompt": "dovetail.tasks.push_by_prompt:PushByPrompt",
        "peg_insertion": "dovetail.tasks.peg_insertion:PegInsertion",
        "charger": "dovetail.tasks.charger:Charger",
        "pick_place": "dovetail.tasks.pick_place:PickPlace",
        "cap_tightening": "dovetail.tasks.cap_tightening:CapTightening",
        "table_cleanup": "dovetail.tasks.table_cleanup:TableCleanup",
        "table": "dovetail.tasks.table:TableTask",
        "igris_reach": "dovetail.tasks.igris_reach:IgrisReach",
    },
    "robot": {
        "sim": "dovetail.robots.sim.robot:SimRobot",
        "gym": "dovetail.robots.gym:GymRobot",
        "lerobot": "dovetail.robots.drivers.lerobot.driver:LeRobotRobot",
        "remote": "dovetail.robots.drivers.remote.driver:RemoteRobot",
        "franka": "dovetail.robots.drivers.franka.driver:FrankaRobot",
        "franka_emulated": "dovetail.robots.drivers.franka.emulated:EmulatedFranka",
        "ros2": "dovetail.robots.drivers.ros2.driver:Ros2Robot",
    },
    "camera": {
        "v4l2": "dovetail.robots.cameras.v4l2:V4l2Camera",
        "video": "dovetail.robots.cameras.video:VideoCamera",
        "realsense": "dovetail.robots.cameras.realsense:RealsenseCamera",
        "ros_image": "dovetail.robots.cameras.ros_image:RosImageCamera",
        "lerobot": "dovetail.robots.drivers.lerobot.camera:LeRobotCamera",
    },
    "operator": {
        "none": "dovetail.human.none:NoOperator",
        "scripted": "dovetail.human.scripted:ScriptedOperator",
        "browser": "dovetail.human.browser:BrowserOperator",
        "keyboard": "dovetail.human.keyboard:KeyboardOperator",
        "gamepad": "dovetail.human.gamepad:GamepadOperator",
        "spacemouse": "dovetail.human.spacemouse:SpaceMouseOperator",
        "pedal": "dovetail.human.pedal:PedalOperator",
        "leader": "dovetail.human.leader:LeaderOperator",
        "several": "dovetail.human.several:SeveralOperators",
    },
    "leader": {"lerobot": "dovetail.robots.drivers.lerobot.teleoperator:LeRobotTeleoperator"},
    "actor": {
        "sequential": "dovetail.actor.actors:SequentialActor",
        "naive": "dovetail.actor.actors:NaiveActor",
        "rtc": "dovetail.actor.actors:RtcActor",
        "soft": "dovetail.actor.actors:SoftActor",
    },
    "policy": {
        "gaussian_mlp": "dovetail.policies.gaussian_mlp:GaussianMLP",
        "flow": "dovetail.policies.flows.flow:Flow",
        "flow_actor": "dovetail.policies.flows.flow_actor:FlowActor",
        "steered": "dovetail.policies.flows.steered_flow:SteeredFlow",
        "valued_flow": "dovetail.policies.flows.valued_flow:ValuedFlow",
        "shared": "dovetail.policies.embodiments.shared_policy:SharedPolicy",
        "residual": "dovetail.policies.residual:ResidualPolicy",
        "rl_token": "dovetail.policies.rl_token:RlTokenPolicy",
        "act": "dovetail.policies.lerobot.act:Act",
        "diffusion": "dovetail.policies.lerobot.diffusion:Diffusion",
        "remote": "dovetail.policies.remote.policy:RemotePolicy",
        "openpi": "dovetail.policies.openpi.policy:OpenpiPolicy",
        "pi0": "dovetail.policies.vla.pi0_policy:Pi0Policy",
        "pi05": "dovetail.policies.vla.pi05_policy:Pi05Policy",
        "smolvla": "dovetail.policies.vla.smolvla_policy:SmolVLAPolicy",
        "valued_pi0": "dovetail.policies.vla.valued_policy:ValuedPi0Policy",
        "valued_pi05": "dovetail.policies.vla.valued_policy:ValuedPi05Policy",
        "valued_smolvla": "dovetail.policies.vla.valued_policy:ValuedSmolVLAPolicy",
        "vla": "dovetail.policies.vla.user_model_policy:UserModelPolicy",
        "actor_critic": "dovetail.policies.actor_critic:ActorCritic",
        "flow_actor_critic": "dovetail.policies.flows.flow_actor_critic:FlowActorCritic",
    },
    "labeler": {
        "outcome": "dovetail.labels.outcome:OutcomeLabeler",
        "vlm": "dovetail.labels.vlm:VLMLabeler",
        "human": "dovetail.labels.human:HumanLabeler",
        "classifier": "dovetail.labels.learned.classifier:ClassifierLabeler",
    },
    "replay": {"mapped": "dovetail.replay.mapped:MappedReplay"},
    "algorithm": {
        "imitation": "dovetail.learn.algorithms.imitation:Imitation",
        "sac": "dovetail.learn.algorithms.sac:SAC",
        "rlpd": "dovetail.learn.algorithms.rlpd:RLPD",
        "sac_flow": "dovetail.learn.algorithms.sac_flow:SACFlow",
        "dsrl": "dovetail.learn.algorithms.dsrl:DSRL",
        "residual": "dovetail.learn.algorithms.residual:ResidualRL",
        "rlt": "dovetail.learn.algorithms.rlt:RLT",
        "ppo": "dovetail.learn.algorithms.ppo:PPO",
        "hg_dagger": "dovetail.learn.algorithms.hg_dagger:HGDAgger",
        "hi_ors": "dovetail.learn.algorithms.hi_ors:HiORS",
        "recap": "dovetail.learn.algorithms.recap:RECAP",
    },
}

_SETTINGS: dict[
    str, dict[str, str]
] = {  # of classes whose modules load torch or MuJoCo; the others have `Class.Config`
    "task": {
        "push_cube": "dovetail.tasks.settings:PushCubeConfig",
        "push_by_prompt": "dovetail.tasks.settings:PushByPromptConfig",
        "peg_insertion": "dovetail.tasks.settings:InsertionConfig",
        "charger": "dovetail.tasks.settings:InsertionConfig",
        "pick_place": "dovetail.tasks.settings:PickPlaceConfig",
        "cap_tightening": "dovetail.tasks.settings:CapTighteningConfig",
        "table_cleanup": "dovetail.tasks.settings:TableCleanupConfig",
    },
    "robot": {
        "sim": "dovetail.robots.sim_settings:SimRobotConfig",
        "remote": "dovetail.robots.drivers.remote.settings:RemoteRobotConfig",
        "franka": "dovetail.robots.drivers.franka.settings:FrankaConfig",
        "franka_emulated": "dovetail.robots.drivers.franka.settings:EmulatedFrankaConfig",
        "ros2": "dovetail.robots.drivers.ros2.settings:Ros2Config",
        "lerobot": "dovetail.robots.drivers.lerobot.settings:LeRobotConfig",
    },
    "policy": {
        "gaussian_mlp": "dovetail.policies.settings:GaussianMLPConfig",
        "flow": "dovetail.policies.settings:FlowConfig",
        "flow_actor": "dovetail.policies.settings:FlowActorConfig",
        "steered": "dovetail.policies.settings:SteeredFlowConfig",
        "valued_flow": "dovetail.policies.settings:ValuedFlowConfig",
        "shared": "dovetail.policies.settings:SharedConfig",
        "residual": "dovetail.policies.settings:ResidualConfig",
        "rl_token": "dovetail.policies.settings:RlTokenConfig",
        "act": "dovetail.policies.lerobot.settings:ActConfig",
        "diffusion": "dovetail.policies.lerobot.settings:DiffusionConfig",
        "pi0": "dovetail.policies.vla.settings:Pi0Config",
        "pi05": "dovetail.policies.vla.settings:Pi05Config",
        "smolvla": "dovetail.policies.vla.settings:SmolVLAConfig",
        "valued_pi0": "dovetail.policies.vla.settings:ValuedPi0Config",
        "valued_pi05": "dovetail.policies.vla.settings:ValuedPi05Config",
        "valued_smolvla": "dovetail.policies.vla.settings:ValuedSmolVLAConfig",
        "vla": "dovetail.policies.vla.settings:UserModelConfig",
        "actor_critic": "dovetail.policies.settings:ActorCriticConfig",
        "flow_actor_critic": "dovetail.policies.settings:FlowActorCriticConfig",
    },
    "labeler": {"classifier": "dovetail.labels.learned.settings:ClassifierConfig"},
    "algorithm": {
        "imitation": "dovetail.learn.algorithms.settings:ImitationConfig",
        "sac": "dovetail.learn.algorithms.settings:SACConfig",
        "rlpd": "dovetail.learn.algorithms.settings:RLPDConfig",
        "sac_flow": "dovetail.learn.algorithms.settings:SACFlowConfig",
        "dsrl": "dovetail.learn.algorithms.settings:DSRLConfig",
        "residual": "dovetail.learn.algorithms.settings:ResidualRLConfig",
        "rlt": "dovetail.learn.algorithms.settings:RLTConfig",
        "ppo": "dovetail.learn.algorithms.settings:PPOConfig",
        "hg_dagger": "dovetail.learn.algorithms.settings:HGDAggerConfig",
        "hi_ors": "dovetail.learn.algorithms.settings:HiORSConfig",
        "recap": "dovetail.learn.algorithms.settings:RECAPConfig",
    },
}

_SETTINGS_OF_CLASS = {
    BUILTIN[kind][name]: model for kind, names in _SETTINGS.items() for name, model in names.items()
}

KINDS = tuple(BUILTIN)

_CONTRACTS: dict[str, type] = {
    "task": contracts.Task,
    "robot": contracts.Robot,
    "camera": contracts.Camera,
    "operator": contracts.Operator,
    "actor": contracts.Actor,
    "policy": contracts.Policy,
    "labeler": contracts.Labeler,
    "algorithm": contracts.Algorithm,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One row of `dovetail plugins`. `doc` and `error` are filled in by `list_plugins` only."""

    kind: str
    name: str  # as in a resolved config
    target: str  # module:Class
    origin: str  # "built-in", "entry point (package)" or "module"
    doc: str = ""
    error: str | None = None  # why the import fails


def is_builtin(kind: str, name: str) -> bool:
    return normalize_name(name) in BUILTIN[kind]


def locate(kind: str, name: str) -> Plugin:
    """Find a plugin without importing it."""
    if kind not in BUILTIN:
        raise PluginError(f"there is no plugin kind '{kind}'.{did_you_mean(kind, KINDS)}")
    if ":" in name:
        return Plugin(kind=kind, name=name, target=name, origin="module")
    key = normalize_name(name)
    if key in BUILTIN[kind]:
        return Plugin(kind=kind, name=key, target=BUILTIN[kind][key], origin="built-in")
    installed = {normalize_name(plugin.name): plugin for plugin in _installed(kind)}
    if key in installed:
        return installed[key]
    if "." in name:
        module, _, attribute = name.rpartition(".")
        raise PluginError(f"no {kind} named '{name}'. For your own class, write '{module}:{attribute}'")
    valid = sorted([*BUILTIN[kind], *installed])
    near = did_you_mean(key, valid)
    names = "" if "Valid" in near else f" Valid: {', '.join(valid)}."
    raise PluginError(f"no {kind} named '{name}'.{near}{names} For your own class, write package.module:Class")


def resolve(kind: str, name: str) -> type:
    """The class of a plugin. It must have a `Config` model."""
    return _load(locate(kind, name))


def build(kind: str, name: str, config: Config, /, **handles: Any) -> Any:
    """Construct a plugin. Raises PluginError if its constructor has other parameters, or if it lacks members of its
    contract."""
    plugin, what = resolve(kind, name), f"{kind} '{normalize_name(name)}'"
    try:
        inspect.signature(plugin).bind(config, **handles)
    except TypeError as problem:
        given = ", ".join(("config", *(("*", *handles) if handles else ())))
        raise PluginError(f"{what}: its constructor should take ({given}), but {problem}") from problem
    built = plugin(config, **handles)
    if kind in _CONTRACTS and (missing := _missing(built, _CONTRACTS[kind])):
        contract = f"dovetail.core.contracts.{_CONTRACTS[kind].__name__}"
        raise PluginError(f"{what} has no {', '.join(missing)}, which {contract} requires")
    return built


def _missing(built: object, contract: type) -> list[str]:
    """Look at the class, because reading a property of the object may run code."""
    if hasattr(type(built), "__getattr__"):  # a proxy of another object
        return []
    own = getattr(built, "__dict__", ())
    names = (name for name in dir(contract) if not name.startswith("_"))
    return [name for name in names if not hasattr(type(built), name) and name not in own]


def config_model(plugin: type) -> type[Config]:
    """The config model of a resolved class."""
    model: type[Config] = plugin.Config  # type: ignore[attr-defined]
    return model


def settings_of(kind: str, name: str) -> type[Config]:
    """The config model of a plugin. Loads neither torch nor the simulator for a built-in one."""
    plugin = locate(kind, name)
    target = _SETTINGS_OF_CLASS.get(plugin.target)
    if target is None:
        return config_model(_load(plugin))
    module, _, attribute = target.partition(":")
    model: type[Config] = getattr(importlib.import_module(module), attribute)
    return model


def installed_plugins() -> Iterator[Plugin]:
    """The plugins of other packages, without importing them."""
    for kind in KINDS:
        yield from (one for one in _installed(kind) if normalize_name(one.name) not in BUILTIN[kind])


def list_plugins() -> Iterator[Plugin]:
    """Every built-in or installed plugin, importable or not."""
    for kind, names in BUILTIN.items():
        for name in names:
            yield _described(locate(kind, name))
        for plugin in _installed(kind):
            if normalize_name(plugin.name) not in names:  # built-in names take precedence
                yield _described(plugin)


def _installed(kind: str) -> list[Plugin]:
    return [
        Plugin(
            kind=kind,
            name=entry.name,
            target=entry.value,
            origin=f"entry point ({entry.dist.name})" if entry.dist else "entry point",
        )
        for entry in sorted(entry_points(group=f"dovetail.{kind}"), key=lambda entry: entry.name)
    ]


def _described(plugin: Plugin) -> Plugin:
    doc, error = "", None
    try:
        found = _load(plugin)
        docs = [found.__doc__, importlib.import_module(found.__module__).__doc__]
        in_file = [one for one in BUILTIN[plugin.kind].values() if one.startswith(f"{found.__module__}:")]
        if plugin.origin == "built-in" and len(in_file) < 2:  # alone in its file, whose docstring describes it
            docs.reverse()
        doc = next((text.strip().splitlines()[0] for text in docs if text and text.strip()), "")
    except PluginError as problem:
        error = str(problem)
    return Plugin(
        kind=plugin.kind, name=plugin.name, target=plugin.target, origin=plugin.origin, doc=doc, error=error
    )


def _load(plugin: Plugin) -> type:
    what = f"{plugin.kind} '{plugin.name}'"
    found = load_class(plugin.target, what=what, is_own=plugin.origin == "module")
    _check_config(what, plugin.target, found)
    return found


def _check_config(what: str, target: str, found: type) -> None:
    model = getattr(found, "Config", None)
    if not (isinstance(model, type) and issubclass(model, Config)):
        raise PluginError(
            f"{what}: '{target}' has no config model; give the class a `Config` attribute that is a subclass "
            "of dovetail.config.model.Config"
        )
    if "type" in model.model_fields:
        raise PluginError(f"{what}: rename the field 'type' of '{target}.Config', because `type` names the plugin")
