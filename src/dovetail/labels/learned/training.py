"""How a success classifier is trained: on whole episodes that somebody has judged, and measured on others."""

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
from dovetail.labels.learned.frames import NO, UNSURE, YES, JudgedEpisode, hold_out, shown
from dovetail.labels.learned.network import SuccessNet
from dovetail.policies.chance import uniform
from dovetail.policies.encoders import EncoderConfig, random_shift

__all__ = ["Trained", "TrainingConfig", "balanced_loss", "ends_in_success", "train"]


class TrainingConfig(Config):
    cameras: tuple[str, ...] = ()
    """Whose pictures are looked at; none named: all of the robot's."""
    proprio: tuple[str, ...] = ()
    """Low-dimensional observations that are used beside them."""
    encoder: EncoderConfig = EncoderConfig()
    """What is kept of an image, as for policies."""
    positive_frames: int = Field(default=2, ge=1)
    """The last frames of a success, which show it."""
    unsure_frames: int = Field(default=1, ge=0)
    """Frames before those that may show it or not, and are left out."""
    most_frames: int = Field(default=60, ge=4)
    """Of one episode."""
    consecutive: int = Field(default=2, ge=1)
    """Frames in a row, at an episode's end, that must pass the threshold to make it a success."""
    precision: float = Field(default=0.98, gt=0.5, le=1.0)
    """Of frames that pass the threshold, the share that must be right. A robot finds what a lenient judge lets pass."""
    held_out: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of the episodes that nothing is trained on: to stop in time, to calibrate, to measure."""
    updates: int = Field(default=600, ge=1)
    """At most; fewer where the episodes held out are told no better any more."""
    check_every: int = Field(default=25, ge=1)
    """Updates between two looks at the episodes held out."""
    patience: int = Field(default=8, ge=1)
    """Looks without improvement before it ends."""
    batch_size: int = Field(default=64, ge=2)
    """Half of them show success."""
    lr: float = Field(default=1e-3, gt=0.0)
    shift: int = Field(default=4, ge=0)
    """Pixels by which images are moved at random; none with a frozen encoder."""
    jitter: float = Field(default=0.2, ge=0.0, lt=1.0)
    """How much brightness, contrast and the colours' balance change at random; none with a frozen encoder."""
    seed: int = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A classifier that can be used, and all that is known of it."""

    net: SuccessNet
    config: TrainingConfig
    calibration: Calibration
    threshold: float
    num_updates: int
    episodes: Sequence[JudgedEpisode]
    held_out: Sequence[int]  # places of those that nothing was trained on
    probabilities: Sequence[Array]  # calibrated, of each episode's frames


def train(
    episodes: Sequence[JudgedEpisode],
    config: TrainingConfig,
    *,
    robot: RobotSpec,
    start: SuccessNet | None = None,
    on_update: Callable[[int, float], None] = lambda num_updates, loss: None,
) -> Trained:
    """Train until the episodes held out are told no better, then calibrate on them. `start`: whose weights to go on with.

    `on_update` is called after each update with their number and the newest loss of the episodes held out.
    """
    _check(episodes)
    specs = shown(robot, cameras=config.cameras, proprio=config.proprio)
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
        num_updates = _descend(net, examples, checks, config, on_update)
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
    """Whether the last frames, so many in a row, all pass."""
    return len(probabilities) >= consecutive and bool((probabilities[-consecutive:] >= threshold).all())


def balanced_loss(net: SuccessNet, yes: Mapping[str, Tensor], no: Mapping[str, Tensor]) -> Tensor:
    """Binary cross-entropy of as many frames of one kind as of the other."""
    return 0.5 * (functional.softplus(-net(yes)).mean() + functional.softplus(net(no)).mean())


class _Examples:
    """The frames of some episodes, as the network wants them; those nobody is sure of left out."""

    def __init__(self, episodes: Sequence[JudgedEpisode], net: SuccessNet) -> None:
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
        self.seen = net.look(frames)
        # of frames of one kind, a person's count as much as all others together: they were said because of a mistake
        theirs = torch.from_numpy(
            np.concatenate(
                [np.full(int(keep.sum()), one.by_person) for one, keep in zip(episodes, sure, strict=True)]
            )
        )
        self._rows = {kind: torch.nonzero(self.truth == kind)[:, 0] for kind in (YES, NO)}
        self._chances = {kind: _weights(theirs[rows]) for kind, rows in self._rows.items()}

    def draw(self, kind: int, num: int) -> dict[str, Tensor]:
        rows = self._rows[kind][torch.multinomial(self._chances[kind], num, replacement=True)]
        return {key: value[rows] for key, value in self.seen.items()}

    def all(self, kind: int) -> dict[str, Tensor]:
        return {key: value[self._rows[kind]] for key, value in self.seen.items()}


def _weights(theirs: Tensor) -> Tensor:
    weights = torch.ones(len(theirs))
    num_theirs = int(theirs.sum())
    if 0 < num_theirs < len(theirs):
        weights[theirs] = max(1.0, (len(theirs) - num_theirs) / num_theirs)
    return weights


def _descend(
    net: SuccessNet,
    examples: _Examples,
    checks: _Examples,
    config: TrainingConfig,
    on_update: Callable[[int, float], None],
) -> int:
    """Up to so many updates; leaves the weights that told the checks best. Returns how many updates those took."""
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
    if not net.shifts:
        return seen
    changed = dict(seen)
    for key in net.cameras:
        images = changed[key]
        if config.shift:
            images = random_shift(images, pad=config.shift, generator=generator)
        changed[key] = _tinted(images, config.jitter, generator) if config.jitter else images
    return changed


def _tinted(images: Tensor, jitter: float, generator: torch.Generator) -> Tensor:
    """uint8 [N, H, W, C], each with another brightness, contrast and balance of colours."""
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
    """The balanced loss of all frames, without chance."""
    logits = torch.from_numpy(_logits(net, examples))
    yes = examples.truth == YES
    return float(0.5 * (functional.softplus(-logits[yes]).mean() + functional.softplus(logits[~yes]).mean()))


def _check(episodes: Sequence[JudgedEpisode]) -> None:
    num_yes = sum(one.success for one in episodes)
    if num_yes < 2:
        raise UsageError(
            f"a success classifier needs at least two episodes that succeeded, one of them to be held out; there are "
            f"{num_yes}: collect more (`dovetail collect`), or label some"
        )
