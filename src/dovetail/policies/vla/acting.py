"""The acting half of a vision-language-action policy: observations to chunks, with real-time chunking."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import PolicyWarning, SpecMismatch, UsageError
from dovetail.core.prompts import decode_prompt
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.checkpoints.axes import ActionAxes, StateAxes, match_cameras
from dovetail.policies.checkpoints.normalization import Normalization
from dovetail.policies.device import find_device
from dovetail.policies.flows.guidance import prefix_weights
from dovetail.policies.inputs import check_inputs, zero_inputs
from dovetail.policies.random_draws import normal, seeded_generator
from dovetail.policies.vla.axis_names import names_in_another_order, relative_axes, state_names
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint
from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.family import Family, FlowNetwork
from dovetail.policies.vla.fitted_statistics import without_statistics
from dovetail.policies.vla.new_model import cached_new_model
from dovetail.policies.vla.prompts import PromptTokenizer
from dovetail.policies.vla.sampler import Commitment, Inputs, Sampler, compiled_parts
from dovetail.policies.vla.settings import VlaConfig

__all__ = ["ActingVla", "Setup"]

_FIXED_SEED = 0  # for deterministic_noise=fixed
_POSITIVE = 1
_ADVANTAGE_WORDS = {1: ", advantage: positive", -1: ", advantage: negative", 0: ""}  # behind the task


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The checkpoint and how the robot fits it. No weights."""

    checkpoint: Checkpoint
    state: Normalization
    action: Normalization
    state_axes: StateAxes
    action_axes: ActionAxes
    cameras: Mapping[str, str]


class ActingVla:
    """The Policy contract without `load`.

    The constructor reads nothing. `spec` reads the folder's description and checks it against the robot. `warmup` reads the
    weights, compiles and captures, so that the first chunk is as fast as the others.
    """

    Config: ClassVar[type[VlaConfig]]
    family: ClassVar[Family]

    def __init__(self, config: VlaConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self._config, self._robot, self._seed = config, robot, seed
        self._version = 0
        self._is_warming_up = False

    @cached_property
    def spec(self) -> PolicySpec:
        setup, robot = self._setup, self._robot
        keys = (*setup.state_axes.keys, *dict.fromkeys(setup.cameras.values()))
        return PolicySpec(
            name=self.family.name,
            observation={key: robot.observation[key] for key in keys},
            action=robot.action,
            action_kind=robot.action_kind,
            parts=robot.parts,
            horizon=setup.checkpoint.sizes.horizon,
            guidable=True,
            prompted=True,
        )

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        """A chunk for each row. With a prefix, the chunk continues it; NaN actions of the prefix are unknown."""
        setup = self._setup
        if not self._is_warming_up and not np.isfinite(setup.action.shift).all():
            raise UsageError(
                "the policy has no statistics before demonstrations are recorded (policy.fit_stats). Set "
                "run.untrained_episodes=0 and run.demos, or policy.stats"
            )
        observations = check_inputs(observations, self.spec, features=self.feature_specs)
        state = setup.state_axes.read(observations)
        num_rows = len(state)
        inputs = self._acting_inputs(observations, state, self._noise(num_rows, context)).without_padding()
        drawn, extras = self._draw(self._steered(inputs, context), state, context)
        normalized = drawn.cpu().numpy()[..., : setup.action.size]
        actions = setup.action_axes.to_robot(setup.action.revert(normalized), state)
        low, high = self._robot.action.bounds
        return ActionChunk(
            actions=np.clip(actions, low, high), observed_ns=0, policy_version=self._version, extras=extras
        )

    def _draw(self, inputs: Inputs, state: Array, context: ActContext) -> tuple[Tensor, dict[str, Array]]:
        """Normalized chunks [B, H, A], and what else an algorithm needs to know of them."""
        return self._sampler(inputs, self._commitment(state, context)), {}

    @property
    def feature_specs(self) -> Mapping[str, ArraySpec]:
        """See CachesFeatures: cameras whose images may be features already."""
        return {}

    def warmup(self) -> None:
        inputs = zero_inputs(self.spec)
        self._is_warming_up = True
        try:
            chunk = self.act(inputs, ActContext(deterministic=True))
            self.act(inputs, ActContext(deterministic=True, prefix=chunk.actions, delay=1))
        finally:
            self._is_warming_up = False

    def reset(self) -> None:
        """Start a new episode. Nothing to do: the policy has no state between calls."""

    # ---- built at first use

    @cached_property
    def _setup(self) -> Setup:
        config = self._config
        stats = None if config.stats is None else Path(config.stats).expanduser()
        adapter = None if config.adapter is None else Path(config.adapter).expanduser()
        if config.new is not None:
            folder = cached_new_model(self.family, config.new, num_actions=self._robot.action.shape[0])
        else:
            assert config.checkpoint is not None, "the settings are checked"
            folder = Path(config.checkpoint).expanduser()
        checkpoint = open_checkpoint(folder, self.family, stats=stats, adapter=adapter)
        if config.fit_stats:
            checkpoint = without_statistics(checkpoint, config, self._robot)
        state, action = checkpoint.state, checkpoint.action
        if state is None or action is None:
            raise SpecMismatch(_no_statistics(checkpoint))
        sizes = checkpoint.sizes
        for what, size, limit in (
            ("state", state.size, sizes.state_size),
            ("action", action.size, sizes.action_size),
        ):
            if size > limit:
                raise SpecMismatch(
                    f"the statistics of {checkpoint.folder} have {size} {what} axes, but its weights take at most {limit}. "
                    "Use the statistics of this checkpoint (policy.stats)"
                )
        cameras = match_cameras(
            self._robot,
            config.images,
            cameras=checkpoint.cameras,
            max_absent=checkpoint.max_absent_cameras,
        )
        names = config.action_axes or names_in_another_order(checkpoint, config, self._robot)
        relative = relative_axes(checkpoint, config, self._robot, names)
        return Setup(
            checkpoint=checkpoint,
            state=state,
            action=action,
            state_axes=StateAxes.of(
                self._robot, config.state, state_names(checkpoint, config, self._robot, names), size=state.size
            ),
            action_axes=ActionAxes.of(self._robot, names, size=action.size, relative=relative),
            cameras=cameras,  # others are masked and need not be computed: the result is the same
        )

    @cached_property
    def _device(self) -> torch.device:
        return find_device(self._config.device, setting="policy.device")

    @cached_property
    def _tokenizer(self) -> PromptTokenizer:
        checkpoint = self._setup.checkpoint
        path = self._config.tokenizer
        return PromptTokenizer(
            checkpoint.folder if path is None else Path(path).expanduser(),
            num_tokens=checkpoint.sizes.num_prompt_tokens,
            vocabulary=checkpoint.sizes.vocabulary,
            bos=self.family.bos,
            origin=self.family.tokenizer_origin,
            may_cut=not self._config.advantage_input,
        )

    @cached_property
    def network(self) -> FlowNetwork:
        """The network with the folder's weights, all frozen."""
        precision = self._config.precision
        if precision == "auto":
            precision = "bfloat16" if self._device.type == "cuda" else "float32"
        return self._load_network(getattr(torch, precision))

    def _load_network(self, dtype: torch.dtype) -> FlowNetwork:
        return self._setup.checkpoint.load(device=self._device, dtype=dtype)

    def _acting_network(self) -> FlowNetwork:
        return self.network

    @cached_property
    def _sampler(self) -> Sampler:
        config, is_gpu = self._config, self._device.type == "cuda"
        execution = config.execution if config.execution != "auto" else "compiled_graph" if is_gpu else "eager"
        if execution != "eager" and not is_gpu:
            raise UsageError(f"policy.execution={execution} needs a GPU. Set policy.execution=eager")
        network = self._acting_network()
        return Sampler(
            network,
            num_steps=config.num_flow_steps or self._setup.checkpoint.sizes.num_flow_steps,
            parts=compiled_parts(network) if execution == "compiled_graph" else None,
            graph=execution != "eager",
            guidance=config.guidance,
            advantage_guidance=config.advantage_guidance if config.advantage_input else 1.0,
        )

    # ---- numpy to tensors

    def _acting_inputs(self, observations: Mapping[str, Array], state: Array, noise: Tensor) -> Inputs:
        """With a positive advantage if the policy reads one. Its guidance also needs the rows without it, before them."""
        if not self._config.advantage_input:
            return self._inputs(observations, state, noise)
        num_rows = len(state)
        if self._config.advantage_guidance == 1.0:
            return self._inputs(observations, state, noise, advantage=np.full(num_rows, _POSITIVE))
        twice = {key: np.concatenate((value, value)) for key, value in observations.items()}
        advantage = np.repeat((0, _POSITIVE), num_rows)
        return self._inputs(twice, np.concatenate((state, state)), torch.cat((noise, noise)), advantage=advantage)

    def _inputs(
        self, observations: Mapping[str, Array], state: Array, noise: Tensor, *, advantage: Array | None = None
    ) -> Inputs:
        """`advantage` [B] is 1 (positive), -1 (negative) or 0 (none); by default none."""
        setup, device = self._setup, self._device
        sizes = setup.checkpoint.sizes
        images = [self._prepared(observations[camera]) for camera in setup.cameras.values()]
        normalized = setup.state.apply(state)
        words = [""] * len(state) if advantage is None else [_ADVANTAGE_WORDS[int(one)] for one in advantage]
        tasks = [decode_prompt(task) for task in observations["prompt"]]
        if not self._config.advantage_input:  # else the tokenizer refuses to cut
            for task in set(tasks):
                self._check_length(task)
        encoded = [
            self._tokenizer.encode(self._prompt(task + more, of_row))
            for task, more, of_row in zip(tasks, words, normalized, strict=True)
        ]
        tokens, masks = (np.stack(part) for part in zip(*encoded, strict=True))
        return Inputs(
            images=torch.stack(images, dim=1),
            camera_mask=torch.ones(len(state), len(images), dtype=torch.bool, device=device),
            tokens=torch.from_numpy(tokens).to(device),
            token_mask=torch.from_numpy(masks).to(device),
            state=self._padded(normalized, sizes.state_size),
            noise=noise,
        )

    def _prepared(self, frames: Array) -> Tensor:
        """Images uint8 [B, H, W, 3] as the vision tower takes them; what it made before stays as it is."""
        if frames.dtype != np.uint8:
            return torch.from_numpy(np.array(frames)).to(self._device)
        checkpoint = self._setup.checkpoint
        return self.family.prepare_images(
            frames,
            size=checkpoint.sizes.image_size,
            with_pil=checkpoint.resizes_with_pil,
            device=self._device,
        )

    def _prompt(self, task: str, state: Array) -> str:
        """The text for the tokenizer, from the task and the normalized state [S]."""
        return self.family.prompt(task, state, self._setup.checkpoint.cleans_prompt)

    @cached_property
    def _check_length(self) -> Callable[[str], None]:
        """Checks each task once."""
        return lru_cache(maxsize=256)(self._check_task_length)

    def _check_task_length(self, task: str) -> None:
        """Warn if a part of the prompt will be cut, and refuse to cut the state, if it is text."""
        longest = np.ones(self._setup.state.size, np.float32)  # the last bin has three digits
        tokenizer, end = self._tokenizer, self.family.after_state
        text = self._prompt(task, longest)
        if (num_cut := tokenizer.num_cut(text)) == 0:
            return
        limit = self._setup.checkpoint.sizes.num_prompt_tokens
        if end is not None and tokenizer.num_cut(text.removesuffix(end)):
            raise UsageError(
                f"the prompt and the state have up to {limit + num_cut} tokens, and policy '{self.family.name}' takes "
                f"{limit}: the state would be cut off. Shorten the prompt: {task[:80]!r}"
            )
        warnings.warn(
            f"the prompt has {limit + num_cut} tokens, and policy '{self.family.name}' takes {limit}: it is cut by "
            f"{num_cut}, as in training. Shorten it: {task[:80]!r}",
            PolicyWarning,
            stacklevel=2,
        )

    def _padded(self, values: Array, size: int, fill: float = 0.0) -> Tensor:
        """The last axis padded to the size that the network takes."""
        width = [(0, 0)] * (values.ndim - 1) + [(0, size - values.shape[-1])]
        return torch.from_numpy(np.pad(values, width, constant_values=fill)).to(self._device)

    def _whole(self, actions: Array) -> Array:
        """Actions [B, N, A] cut or padded with NaN to the network's horizon."""
        horizon = self._setup.checkpoint.sizes.horizon
        whole = np.full((len(actions), horizon, actions.shape[2]), math.nan, np.float32)
        whole[:, : actions.shape[1]] = actions[:, :horizon]
        return whole

    def _noise(self, num_rows: int, context: ActContext) -> Tensor:
        sizes = self._setup.checkpoint.sizes
        shape = (sizes.horizon, sizes.action_size)
        generator = seeded_generator(context.seed)
        if not context.deterministic:
            return normal((num_rows, *shape), generator=generator, device=self._device)
        if generator is None or self._config.deterministic_noise == "fixed":
            generator = seeded_generator(_FIXED_SEED)
        return normal((1, *shape), generator=generator, device=self._device).expand(num_rows, -1, -1)

    def _steered(self, inputs: Inputs, context: ActContext) -> Inputs:
        """The inputs with the noise that the chunk shall start from."""
        return inputs

    def _commitment(self, state: Array, context: ActContext) -> Commitment | None:
        """The committed actions in the network's space. Padded axes and unknown actions have weight 0."""
        if context.prefix is None:
            return None
        setup, sizes = self._setup, self._setup.checkpoint.sizes
        prefix = np.asarray(context.prefix, np.float32)
        if prefix.ndim != 3 or prefix.shape[0] != len(state) or prefix.shape[2] != setup.action.size:
            raise UsageError(
                f"the prefix should be [{len(state)}, H, {setup.action.size}], got {list(prefix.shape)}"
            )
        normalized = setup.action.apply(setup.action_axes.to_checkpoint(self._whole(prefix), state))
        target = self._padded(normalized, sizes.action_size, fill=math.nan)
        weights = prefix_weights(
            self._config.guidance.schedule,
            delay=context.delay,
            execution_horizon=context.horizon,
            chunk_length=sizes.horizon,
        )
        return Commitment(target, weights.to(self._device)[None, :, None] * target.isfinite())


def _no_statistics(checkpoint: Checkpoint) -> str:
    if checkpoint.assets:
        names = ", ".join(checkpoint.assets)
        return f"{checkpoint.folder} has statistics of several robots. Choose one with policy.stats: {names}"
    return (
        f"{checkpoint.folder} has no statistics of states and actions, so its actions have no unit. Set policy.stats to a "
        "stats.json (LeRobot) or norm_stats.json (openpi) of its training data. A run that trains it can compute them: "
        "policy.fit_stats=true"
    )
