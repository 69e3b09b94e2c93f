"""Train a success classifier on labeled episodes and measure it on held-out ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from dovetail.config.model import Config
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array
from dovetail.labels.learned.calibration import (
    Calibration,
    choose_threshold,
    fit_calibration,
)
from dovetail.labels.learned.frames import NO, UNSURE, YES, LabeledEpisode, hold_out, select_observations
from dovetail.labels.learned.network import SuccessNet
from dovetail.policies.images.encoders import EncoderConfig, random_shift
from dovetail.policies.random_draws import uniform

__all__ = ["Trained", "TrainingConfig", "balanced_loss", "ends_in_success", "train"]


class TrainingConfig(Config):
    cameras: tuple[str, ...] = ()
    """Cameras to use; empty: all cameras of the robot."""
    proprio: tuple[str, ...] = ()
    """Low-dimensional observations to use in addition."""
    encoder: EncoderConfig = EncoderConfig()
    """Image encoder, as for policies."""
    positive_frames: int = Field(default=2, ge=1)
    """Number of frames at the end of a success that show success."""
    unsure_frames: int = Field(default=1, ge=0)
    """Number of frames before those that are left out, because they may or may not show success."""
    most_frames: int = Field(default=60, ge=4)
    """Maximum number of frames per episode."""
    consecutive: int = Field(default=2, ge=1)
    """Number of frames at an episode's end that must pass the threshold to make it a success."""
    precision: float = Field(default=0.98, gt=0.5, le=1.0)
    """Required precision of frames above the threshold. Policies learn to exploit false positives."""
    held_out: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of the episodes that is held out for early stopping, calibration and scores."""
    updates: int = Field(default=600, ge=1)
    """Maximum number of updates; training stops earlier if the held-out loss no longer improves."""
    check_every: int = Field(default=25, ge=1)
    """Number of updates between two evaluations of the held-out episodes."""
    patience: int = Field(default=8, ge=1)
    """Number of evaluations without improvement before training stops."""
    batch_size: int = Field(default=64, ge=2)
    """Frames per update. Half of them show success."""
    lr: float = Field(default=1e-3, gt=0.0)
    """Learning rate."""
    shift: int = Field(default=4, ge=0)
    """Maximum random shift of images, in pixels; none with a frozen encoder."""
    jitter: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Maximum relative change of brightness, contrast and color balance; none with a frozen encoder."""
    seed: int = Field(default=0, ge=0)
    """Seed of the random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained classifier with its data and predictions."""

    net: SuccessNet
    config: TrainingConfig
    calibration: Calibration
    threshold: float
    num_updates: int
    episodes: Sequence[LabeledEpisode]
    held_out: Sequence[int]  # indices of the held-out episodes
    probabilities: Sequence[Array]  # calibrated, of each episode's frames


def train(
    episodes: Sequence[LabeledEpisode],
    config: TrainingConfig,
    *,
    robot: RobotSpec,
    start: SuccessNet | None = None,
    on_update: Callable[[int, float], None] = lambda num_updates, loss: None,
) -> Trained:
    """Train until the held-out loss no longer improves, then calibrate on the held-out episodes.

    Training starts with the weights of `start`, if given. `on_update(num_updates, held_out_loss)` is called after each
    update.
    """
    _check(episodes)
    specs = select_observations(robot, cameras=config.cameras, proprio=config.proprio)
    learned, held = hold_out(episodes, share=config.held_out)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        net = SuccessNet(config.encoder, **specs)
        examples = _Examples([episodes[place] for place in learned], net)
        if start is not None:
            net.load_state_dict(start.state_dict())
            net.normalizer.load_arrays(start.normalizer.to_arrays())
        else:
            net.normalizer.fit(examples.proprio)
        checks = _Examples([episodes[place] for place in held], net)
        num_updates = _optimize(net, examples, checks, config, on_update)
    calibration = fit_calibration(_logits(net, checks), checks.truth.numpy() == YES)
    sure = [one.truth != UNSURE for one in episodes]
    probabilities = [calibration(net.logits(one.frames)) for one in episodes]
    threshold, _ = choose_threshold(
        np.concatenate([probabilities[place][sure[place]] for place in held]),
        np.concatenate([episodes[place].truth[sure[place]] == YES for place in held]),
        precision=config.precision,
    )
    return Trained(
        net=net.eval(),
        config=config,
        calibration=calibration,
        threshold=threshold,
        num_updates=num_updates,
        episodes=episodes,
        held_out=held,
        probabilities=probabilities,
    )


def ends_in_success(probabilities: Array, *, threshold: float, consecutive: int) -> bool:
    """Whether the last `consecutive` frames all pass the threshold."""
    return len(probabilities) >= consecutive and bool((probabilities[-consecutive:] >= threshold).all())


def balanced_loss(net: SuccessNet, yes: Mapping[str, Tensor], no: Mapping[str, Tensor]) -> Tensor:
    """Binary cross-entropy with equal weight for both classes."""
    return 0.5 * (functional.softplus(-net(yes)).mean() + functional.softplus(net(no)).mean())


class _Examples:
    """Encoded frames of some episodes, without unsure ones."""

    def __init__(self, episodes: Sequence[LabeledEpisode], net: SuccessNet) -> None:
        sure = [one.truth != UNSURE for one in episodes]
        keys = (*net.cameras, *net.proprio)
        frames = {
            key: np.concatenate([one.frames[key][keep] for one, keep in zip(episodes, sure, strict=True)])
            for key in keys
        }
        self.truth = torch.from_numpy(
            np.concatenate([one.truth[keep] for one, keep in zip(episodes, sure, strict=True)])
        )
        self.proprio = {key: frames[key].reshape(len(self.truth), -1) for key in net.proprio}
        self.seen = net.encode(frames)
        # frames labeled by a person have the same total weight as all others, because people correct mistakes
        theirs = torch.from_numpy(
            np.concatenate(
                [np.full(int(keep.sum()), one.by_person) for one, keep in zip(episodes, sure, strict=True)]
            )
        )
        self._rows = {kind: torch.nonzero(self.truth == kind)[:, 0] for kind in (YES, NO)}
        self._weights = {kind: _weights(theirs[rows]) for kind, rows in self._rows.items()}

    def draw(self, kind: int, num: int) -> dict[str, Tensor]:
        rows = self._rows[kind][torch.multinomial(self._weights[kind], num, replacement=True)]
        return {key: value[rows] for key, value in self.seen.items()}

    def all(self, kind: int) -> dict[str, Tensor]:
        return {key: value[self._rows[kind]] for key, value in self.seen.items()}


def _weights(theirs: Tensor) -> Tensor:
    weights = torch.ones(len(theirs))
    num_theirs = int(theirs.sum())
    if 0 < num_theirs < len(theirs):
        weights[theirs] = max(1.0, (len(theirs) - num_theirs) / num_theirs)
    return weights


def _optimize(
    net: SuccessNet,
    examples: _Examples,
    checks: _Examples,
    config: TrainingConfig,
    on_update: Callable[[int, float], None],
) -> int:
    """Train and keep the weights with the lowest loss on `checks`; returns their number of updates."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=config.lr, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(config.seed)
    net.train()
    best_loss, best, best_at, since = _loss_of(net, checks), copy.deepcopy(net.state_dict()), 0, 0
    for update in range(1, config.updates + 1):
        yes, no = (
            _augmented(examples.draw(kind, config.batch_size // 2), net, config, generator) for kind in (YES, NO)
        )
        optimizer.zero_grad(set_to_none=True)
        balanced_loss(net, yes, no).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if update % config.check_every == 0 or update == config.updates:
            loss, since = _loss_of(net, checks), since + 1
            if loss < best_loss:
                best_loss, best, best_at, since = loss, copy.deepcopy(net.state_dict()), update, 0
        on_update(update, best_loss)
        if since >= config.patience:
            break
    net.load_state_dict(best)
    return best_at


def _augmented(
    seen: dict[str, Tensor], net: SuccessNet, config: TrainingConfig, generator: torch.Generator
) -> dict[str, Tensor]:
    if not net.uses_pixels:
        return seen
    changed = dict(seen)
    for key in net.cameras:
        images = changed[key]
        if config.shift:
            images = random_shift(images, pad=config.shift, generator=generator)
        changed[key] = _color_jittered(images, config.jitter, generator) if config.jitter else images
    return changed


def _color_jittered(images: Tensor, jitter: float, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast and color balance of each image, uint8 [N, H, W, C]."""
    num, channels = len(images), images.shape[-1]

    def change(*shape: int) -> Tensor:
        return 1.0 + jitter * (2.0 * uniform(shape, generator=generator, device=images.device) - 1.0)

    light = images.float()
    middle = light.mean(dim=(1, 2, 3), keepdim=True)
    light = (light - middle) * change(num, 1, 1, 1) + middle * change(num, 1, 1, 1)
    return (light * (1.0 + 0.5 * (change(num, 1, 1, channels) - 1.0))).clamp(0.0, 255.0).to(torch.uint8)


def _logits(net: SuccessNet, examples: _Examples) -> Array:
    was_training = net.training
    net.eval()
    with torch.no_grad():
        num = len(examples.truth)
        pieces = [
            net({key: value[start : start + 64] for key, value in examples.seen.items()})
            for start in range(0, num, 64)
        ]
    net.train(was_training)
    array: Array = torch.cat(pieces).numpy()
    return array


def _loss_of(net: SuccessNet, examples: _Examples) -> float:
    """Return the balanced loss of all frames without augmentation."""
    logits = torch.from_numpy(_logits(net, examples))
    yes = examples.truth == YES
    return float(0.5 * (functional.softplus(-logits[yes]).mean() + functional.softplus(logits[~yes]).mean()))


def _check(episodes: Sequence[LabeledEpisode]) -> None:
    num_yes = sum(one.success for one in episodes)
    if num_yes < 2:
        raise UsageError(
            f"a success classifier needs at least two successful episodes, one of them held out, but there are "
            f"{num_yes}. Collect more (`dovetail collect`) or label some."
        )
