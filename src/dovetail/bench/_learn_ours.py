"""Our algorithms as shipped, on one robot and random batches, for the bench of learner speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.learn.algorithms.ppo import PPO, PPOConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.algorithms.sac import SAC, SACConfig
from dovetail.policies.actor_critic import ActorCritic, ActorCriticConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.networks import EnsembleMLP, mlp

__all__ = [
    "ACTIONS",
    "CAMERAS",
    "FEATURES",
    "LoopedMLP",
    "loop_critics",
    "make_batch",
    "make_rlpd",
    "make_rollout",
    "our_image_sac",
    "our_ppo",
    "our_sac",
    "with_images",
]

FEATURES, ACTIONS = 19, 7
CAMERAS = ("wrist", "front")
Update = Callable[[], object]


def _robot(image: int = 0, num_features: int = FEATURES) -> RobotSpec:
    cameras = {key: ArraySpec(shape=(image, image, 3), dtype="uint8") for key in CAMERAS} if image else {}
    return RobotSpec(
        name="arm",
        embodiment="bench",
        observation={"state": ArraySpec(shape=(num_features,)), **cameras},
        action=ArraySpec(shape=(ACTIONS,), low=(-1.0,) * ACTIONS, high=(1.0,) * ACTIONS),
        action_kind="ee_delta",
        control_hz=10.0,
    )


def make_batch(num_rows: int, num_features: int = FEATURES) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "observation/state": torch.randn(num_rows, num_features, generator=generator),
        "next/state": torch.randn(num_rows, num_features, generator=generator),
        "action": torch.rand(num_rows, ACTIONS, generator=generator) * 2.0 - 1.0,
        "reward": torch.rand(num_rows, generator=generator),
        "discount": torch.full((num_rows,), 0.97),
        "human": torch.rand(num_rows, generator=generator) < 0.5,
    }


def with_images(batch: dict[str, Tensor], size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (len(batch["reward"]), size, size, 3)
    names = [f"{side}/{key}" for side in ("observation", "next") for key in CAMERAS]
    return {**batch, **{n: torch.randint(256, shape, dtype=torch.uint8, generator=generator) for n in names}}


def our_image_sac(batch: dict[str, Tensor], *, hidden: Sequence[int]) -> Update:
    """SAC on the state and both cameras through the small CNN; without random shifts, because no peer has them."""
    robot = _robot(batch["observation/wrist"].shape[1])
    config = GaussianMLPConfig(hidden=tuple(hidden), inputs=("state", *CAMERAS))
    algorithm = SAC(
        SACConfig(batch_size=len(batch["reward"]), hidden=tuple(hidden), random_shift=0, backup_entropy=True),
        policy=GaussianMLP(config, robot=robot, seed=0),
        seed=0,
    )
    return lambda: algorithm.update(batch)


def make_rollout(num_envs: int, num_steps: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "observation/state": torch.randn(num_envs, num_steps + 1, FEATURES, generator=generator),
        "action": torch.randn(num_envs, num_steps, ACTIONS, generator=generator) * 0.5,
        "reward": torch.rand(num_envs, num_steps, generator=generator),
        "log_prob": torch.full((num_envs, num_steps), -5.0),
        "num_executed": torch.ones(num_envs, num_steps, dtype=torch.long),
        "terminated": torch.zeros(num_envs, num_steps, dtype=torch.bool),
        "final/state": torch.zeros(0, FEATURES),
        "final_at": torch.zeros(0, dtype=torch.long),
        "version": torch.zeros(num_envs, num_steps, dtype=torch.long),
    }


def make_rlpd(
    *,
    hidden: Sequence[int],
    batch_size: int,
    critics: int,
    num_features: int = FEATURES,
    device: torch.device | None = None,
    **settings: bool | int,
) -> RLPD:
    """RLPD with an actor step in every update. With two critics and no prior data, it is SAC."""
    robot = _robot(num_features=num_features)
    policy = GaussianMLP(GaussianMLPConfig(hidden=tuple(hidden)), robot=robot, seed=0)
    if device is not None:
        policy.to(device)
    sizes = {"batch_size": batch_size, "hidden": tuple(hidden), "num_critics": critics}
    config = RLPDConfig.model_validate({"actor_every": 1, "backup_entropy": True, **sizes, **settings})
    return RLPD(config, policy=policy, seed=0)


def our_sac(batch: dict[str, Tensor], *, hidden: Sequence[int], critics: int, looped: bool = False) -> Update:
    """`looped`: the same critics as separate networks, called one after another."""
    num_rows, num_features = batch["observation/state"].shape
    algorithm = make_rlpd(hidden=hidden, batch_size=num_rows, critics=critics, num_features=num_features)
    if looped:
        loop_critics(algorithm)
    return lambda: algorithm.update(batch)


def loop_critics(algorithm: RLPD) -> None:
    for name in ("_critic", "_target"):
        setattr(algorithm, name, LoopedMLP(getattr(algorithm, name)))
    algorithm._target.requires_grad_(False)
    algorithm._target_parameters = list(algorithm._target.parameters())
    algorithm._optimizers.add("critic", list(algorithm._critic.parameters()))


class LoopedMLP(nn.Module):
    """The members of an ensemble, called one by one: the baseline of the vectorized ensemble."""

    def __init__(self, ensemble: EnsembleMLP) -> None:
        super().__init__()
        sizes = [ensemble.weights[0].shape[1], *(weight.shape[2] for weight in ensemble.weights)]
        self.members = nn.ModuleList(mlp(sizes) for _ in range(ensemble.num_members))
        self.to(ensemble.weights[0].device)

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        chosen = range(len(self.members)) if members is None else members.tolist()
        return torch.stack([self.members[i](inputs).squeeze(-1) for i in chosen])

    def errors(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        values = self(inputs)
        return values.detach(), (values - targets).square().mean(1).sum()


def our_ppo(rollout: dict[str, Tensor], *, hidden: Sequence[int], batch_size: int) -> Update:
    policy = ActorCritic(
        ActorCriticConfig(hidden=tuple(hidden), value_hidden=tuple(hidden)), robot=_robot(), seed=0
    )
    num_envs, num_steps = rollout["reward"].shape
    config = PPOConfig(
        num_envs=num_envs,
        rollout_steps=num_steps,
        num_epochs=1,
        batch_size=batch_size,
        asynchronous=False,
    )
    algorithm = PPO(config, policy=policy, seed=0)

    def update() -> object:
        fresh = torch.full_like(rollout["version"], algorithm._num_updates)
        return algorithm.update({**rollout, "version": fresh})

    return update
