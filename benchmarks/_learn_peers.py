"""One update of the same algorithm in Stable-Baselines3 and TorchRL, with our networks and batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from dovetail.policies.images.encoders import EncoderConfig, ImageEncoder
from dovetail.policies.networks import mlp
from dovetail.policies.tanh_gaussian import LOG_STD_MAX, LOG_STD_MIN, soft_clamp

__all__ = ["sb3_image_sac", "sb3_ppo", "sb3_sac", "torchrl_ppo", "torchrl_sac"]

Update = Callable[[], object]


def plain_mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Our layers, as a plain `nn.Sequential`."""
    return nn.Sequential(*mlp(sizes))


class _EmptyEnv(gym.Env[Any, Any]):
    """The two spaces only; a step does nothing."""

    def __init__(self, features: int, actions: int) -> None:
        self.observation_space: gym.Space[Any]
        self.observation_space = gym.spaces.Box(-10.0, 10.0, (features,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (actions,), np.float32)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, False, False, {}


# ---- Stable-Baselines3


def sb3_sac(batch: Mapping[str, Tensor], *, hidden: Sequence[int], critics: int, own_nets: bool = False) -> Update:
    """`own_nets`: the networks SB3 builds itself, with ReLU and without LayerNorm."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    features, actions = batch["observation/state"].shape[1], batch["action"].shape[1]
    settings = {"net_arch": list(hidden), "n_critics": critics}
    model: Any = SAC(
        "MlpPolicy", _EmptyEnv(features, actions), policy_kwargs=settings, buffer_size=1, device="cpu"
    )
    if not own_nets:
        model.actor.latent_pi = plain_mlp((features, *hidden, 1))[:-1]
        for side in (model.critic, model.critic_target):
            for number in range(critics):
                network = plain_mlp((features + actions, *hidden, 1))
                setattr(side, f"qf{number}", network)
                side.q_networks[number] = network
        model.critic_target.load_state_dict(model.critic.state_dict())
        for network in (model.actor, model.critic):
            network.optimizer = torch.optim.Adam(network.parameters(), lr=3e-4)
    model._logger = Logger(None, [])
    samples = ReplayBufferSamples(
        batch["observation/state"],
        batch["action"],
        batch["next/state"],
        torch.zeros(len(batch["reward"]), 1),
        batch["reward"][:, None],
    )
    model.replay_buffer.sample = lambda *_, **__: samples
    return lambda: model.train(gradient_steps=1, batch_size=len(batch["reward"]))


def sb3_image_sac(batch: Mapping[str, Tensor], *, hidden: Sequence[int], cameras: Sequence[str]) -> Update:
    """Our encoders as its feature extractor. SB3 makes one for the actor and one for the critics."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples

    class Encoders(BaseFeaturesExtractor):  # type: ignore[misc, unused-ignore]
        def __init__(self, space: gym.spaces.Dict) -> None:
            config = EncoderConfig()
            super().__init__(space, config.features * len(cameras) + 64)
            self.encoders = nn.ModuleList(
                ImageEncoder(num_channels=3, num_features=config.features) for _ in cameras
            )
            self.state = nn.Sequential(nn.Linear(features, 64), nn.LayerNorm(64), nn.Tanh())

        def forward(self, seen: dict[str, Tensor]) -> Tensor:
            images = [
                encoder(seen[key].permute(0, 2, 3, 1)) for encoder, key in zip(self.encoders, cameras, strict=True)
            ]
            return torch.cat([self.state(seen["state"]), *images], 1)

    features, actions = batch["observation/state"].shape[1], batch["action"].shape[1]
    env = _EmptyEnv(features, actions)
    size = batch[f"observation/{cameras[0]}"].shape[1]
    image = gym.spaces.Box(0, 255, (3, size, size), np.uint8)
    env.observation_space = gym.spaces.Dict({"state": env.observation_space, **dict.fromkeys(cameras, image)})
    settings = {"net_arch": list(hidden), "features_extractor_class": Encoders, "normalize_images": False}
    model: Any = SAC("MultiInputPolicy", env, policy_kwargs=settings, buffer_size=1, device="cpu")
    model._logger = Logger(None, [])

    def side(name: str) -> dict[str, Tensor]:
        images = {key: batch[f"{name}/{key}"].permute(0, 3, 1, 2).contiguous() for key in cameras}
        return {"state": batch[f"{name}/state"], **images}

    rewards = batch["reward"][:, None]
    samples = DictReplayBufferSamples(
        side("observation"), batch["action"], side("next"), torch.zeros_like(rewards), rewards
    )
    model.replay_buffer.sample = lambda *_, **__: samples
    return lambda: model.train(gradient_steps=1, batch_size=len(rewards))


def sb3_ppo(rollout: Mapping[str, Tensor], *, hidden: Sequence[int], batch_size: int) -> Update:
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import DummyVecEnv

    states, drawn = rollout["observation/state"], rollout["action"]
    (num_envs, num_steps, actions), features = drawn.shape, states.shape[-1]
    envs: list[Callable[[], gym.Env[Any, Any]]] = [lambda: _EmptyEnv(features, actions)] * num_envs
    model: Any = PPO(
        "MlpPolicy",
        DummyVecEnv(envs),
        n_steps=num_steps,
        batch_size=batch_size,
        n_epochs=1,
        policy_kwargs={"net_arch": list(hidden)},
        device="cpu",
    )
    extractor = model.policy.mlp_extractor
    extractor.policy_net = plain_mlp((features, *hidden, 1))[:-1]
    extractor.value_net = plain_mlp((features, *hidden, 1))[:-1]
    model.policy.optimizer = torch.optim.Adam(model.policy.parameters(), lr=3e-4, eps=1e-5)
    model._logger = Logger(None, [])
    buffer = model.rollout_buffer
    for step in range(num_steps):
        buffer.add(
            states[:, step].numpy(),
            drawn[:, step].numpy(),
            rollout["reward"][:, step].numpy(),
            np.zeros(num_envs),
            torch.zeros(num_envs),
            rollout["log_prob"][:, step],
        )

    def update() -> None:
        buffer.generator_ready = True  # it is flattened already
        buffer.advantages = buffer.advantages.reshape(num_steps, num_envs)
        for name in ("values", "returns"):
            setattr(buffer, name, getattr(buffer, name).reshape(num_steps, num_envs))
        buffer.compute_returns_and_advantage(torch.zeros(num_envs), np.zeros(num_envs))
        for name in ("values", "advantages", "returns"):
            setattr(buffer, name, buffer.swap_and_flatten(getattr(buffer, name)))
        model.train()

    for name in ("observations", "actions", "log_probs"):
        setattr(buffer, name, buffer.swap_and_flatten(getattr(buffer, name)))
    return update


# ---- TorchRL


class _Heads(nn.Module):
    """Mean and standard deviation, within our limits."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.net = plain_mlp(sizes)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(seen).chunk(2, dim=-1)
        return mean, soft_clamp(log_std, LOG_STD_MIN, LOG_STD_MAX).exp()


class _Critic(nn.Module):
    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.net = plain_mlp(sizes)

    def forward(self, seen: Tensor, action: Tensor) -> Tensor:
        value: Tensor = self.net(torch.cat((seen, action), -1))
        return value


def torchrl_sac(batch: Mapping[str, Tensor], *, hidden: Sequence[int], critics: int) -> Update:
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.data import Bounded
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import SACLoss, SoftUpdate

    (num_rows, features), actions = batch["observation/state"].shape, batch["action"].shape[1]
    heads = TensorDictModule(
        _Heads((features, *hidden, 2 * actions)), in_keys=["state"], out_keys=["loc", "scale"]
    )
    actor = ProbabilisticActor(
        heads,
        in_keys=["loc", "scale"],
        spec=Bounded(-1.0, 1.0, (actions,)),
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(_Critic((features + actions, *hidden, 1)), in_keys=["state", "action"])
    loss = SACLoss(actor, critic, num_qvalue_nets=critics, action_spec=Bounded(-1.0, 1.0, (actions,)))
    loss.make_value_estimator(gamma=0.97)
    slow = SoftUpdate(loss, tau=0.005)
    groups = (loss.actor_network_params, loss.qvalue_network_params)
    optimizers = [torch.optim.Adam(list(g.flatten_keys().values()), lr=3e-4) for g in groups]
    optimizers.append(torch.optim.Adam([loss.log_alpha], lr=3e-4))
    done = torch.zeros(num_rows, 1, dtype=torch.bool)
    after = {"state": batch["next/state"], "reward": batch["reward"][:, None], "done": done, "terminated": done}
    rows = TensorDict(
        {"state": batch["observation/state"], "action": batch["action"], "next": after}, batch_size=[num_rows]
    )

    def update() -> None:
        losses = loss(rows)
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        slow.step()

    return update


def torchrl_ppo(rollout: Mapping[str, Tensor], *, hidden: Sequence[int], batch_size: int) -> Update:
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    from tensordict import TensorDict
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torch.distributions import Independent, Normal
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    states, drawn = rollout["observation/state"][:, :-1], rollout["action"]
    actions, features = drawn.shape[-1], states.shape[-1]
    net = nn.Sequential(plain_mlp((features, *hidden, 2 * actions)), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, in_keys=["state"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1),
        return_log_prob=True,
    )
    critic = ValueOperator(plain_mlp((features, *hidden, 1)), in_keys=["state"])
    loss = ClipPPOLoss(actor, critic, normalize_advantage=True, log_explained_variance=False)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4, eps=1e-5)
    num_rows = drawn[..., 0].numel()
    rewards = rollout["reward"][..., None]
    no = torch.zeros_like(rewards, dtype=torch.bool)
    rows = TensorDict(
        {
            "state": states.flatten(0, 1),
            "action": drawn.flatten(0, 1),
            loss.tensor_keys.sample_log_prob: rollout["log_prob"].flatten(),
        },
        batch_size=[num_rows],
    )

    def update() -> None:
        with torch.no_grad():
            values = critic.module(rollout["observation/state"])
            advantage, target = generalized_advantage_estimate(
                0.99, 0.95, values[:, :-1], values[:, 1:], rewards, no, no
            )
            rows["advantage"], rows["value_target"] = advantage.flatten(0, 1), target.flatten(0, 1)
        for index in torch.split(torch.randperm(num_rows), batch_size):
            losses = loss(rows[index])
            optimizer.zero_grad()
            (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            optimizer.step()

    return update
