"""A trained classifier in a folder.

    classifier.json          cameras and their sizes, encoder, calibration, threshold, training data and scores, and
                             checksums of the other files and of itself
    weights.safetensors      the network and the normalizer of low-dimensional observations
    encoder.safetensors      a copy of the frozen encoder's file, if there is one
    curves.png, mistakes.png  figures

The folder contains no code, so a folder from an untrusted source is safe to load. It is immutable.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from pydantic import ValidationError
from safetensors.torch import load, save

from dovetail.core.disk import (
    MAX_JSON_BYTES,
    MissingError,
    dump_json,
    fsync_folder,
    load_json,
    read_file,
    sha256,
    write_file,
)
from dovetail.core.errors import StoreError, UsageError, shown
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array
from dovetail.labels.learned.calibration import Calibration
from dovetail.labels.learned.network import SuccessNet
from dovetail.labels.learned.training import Trained, TrainingConfig

__all__ = ["MANIFEST", "Classifier", "load_classifier", "save_classifier"]

MANIFEST = "classifier.json"
_WEIGHTS, _ENCODER = "weights.safetensors", "encoder.safetensors"
_NORMALIZER = "normalizer/"
SCHEMA = 1
# what the values of a crafted manifest can raise
_INVALID = (
    AttributeError,
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    OverflowError,
    RuntimeError,
    ValidationError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """A loaded classifier."""

    version: str  # digest of weights, threshold, calibration and settings
    net: SuccessNet
    config: TrainingConfig
    calibration: Calibration
    threshold: float
    consecutive: int
    facts: Mapping[str, Any] = field(default_factory=dict)  # about its training

    def probabilities(self, frames: Mapping[str, Array]) -> Array:
        """Return calibrated probabilities [N] of raw frames."""
        return self.calibration(self.net.logits(frames))

    def check(self, robot: RobotSpec) -> None:
        """Raise UsageError if the robot's observations differ from those of the training."""
        for kind, specs in (("camera", self.net.cameras), ("observation", self.net.proprio)):
            for key, spec in specs.items():
                found = robot.observation.get(key)
                if found is None:
                    raise UsageError(
                        f"the success classifier needs {kind} '{key}', which robot '{robot.name}' does not have. Add "
                        f"it{' to robot.images' if kind == 'camera' else ''} or train another classifier."
                    )
                if found.shape != spec.shape or found.dtype != spec.dtype:
                    raise UsageError(
                        f"the success classifier was trained on {kind} '{key}' with {spec.describe()}, but robot "
                        f"'{robot.name}' has {found.describe()}. Use the same size or train another classifier."
                    )


def save_classifier(
    path: Path, trained: Trained, *, facts: Mapping[str, Any], pictures: Mapping[str, bytes] | None = None
) -> str:
    """Write a new folder atomically; returns its version. `pictures` are figures by file name."""
    if path.exists():
        raise UsageError(f"{path} already exists. Choose another name or remove it.")
    config, net = trained.config, trained.net
    tensors = {name: value.contiguous() for name, value in net.state_dict().items()}
    tensors |= {_NORMALIZER + name: torch.from_numpy(array) for name, array in net.normalizer.to_arrays().items()}
    files = {_WEIGHTS: save(tensors)}
    if config.encoder.file is not None:
        files[_ENCODER] = read_file(Path(config.encoder.file).expanduser())
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "config": config.model_dump(mode="json"),
        "cameras": {key: spec.to_json() for key, spec in net.cameras.items()},
        "proprio": {key: spec.to_json() for key, spec in net.proprio.items()},
        "calibration": {"scale": trained.calibration.scale, "shift": trained.calibration.shift},
        "threshold": trained.threshold,
        "consecutive": config.consecutive,
        "files": {name: {"sha256": sha256(data), "num_bytes": len(data)} for name, data in files.items()},
    }
    version = sha256(dump_json(body))[:12]
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # no other user can be there first
    try:
        staged.mkdir(parents=True)
        for name, data in {**files, **(pictures or {})}.items():
            write_file(staged / name, data)
        write_file(staged / MANIFEST, dump_json({**body, "version": version, "facts": dict(facts)}, indent=2))
        fsync_folder(staged)
        os.rename(staged, path)
        fsync_folder(path.parent)
    except OSError as error:
        shutil.rmtree(staged, ignore_errors=True)
        raise StoreError(f"cannot write classifier {path}: {error.strerror}") from error
    return version


def load_classifier(path: Path) -> Classifier:
    """Load a classifier and verify every file."""
    name = str(path / MANIFEST)
    try:
        data = load_json(read_file(path / MANIFEST, max_bytes=MAX_JSON_BYTES), name=name, indent=2)
    except MissingError as error:
        raise UsageError(
            f"{path} contains no success classifier. Train one with `dovetail train reward-classifier RUN --out {path}`."
        ) from error
    if data.get("schema") != SCHEMA:
        raise StoreError(
            f"{name} has schema {shown(data.get('schema'))}, but this version reads {SCHEMA}. Train the classifier again."
        )
    try:
        files = data["files"]
        weights = load(read_file(path / _WEIGHTS, checksum=files[_WEIGHTS]["sha256"]))
        settings = data["config"]
        if _ENCODER in files:
            read_file(path / _ENCODER, checksum=files[_ENCODER]["sha256"])
            settings["encoder"]["file"] = str(path / _ENCODER)
        config = TrainingConfig.model_validate(settings)
        net = _build(config, data, weights)
        net.normalizer.load_arrays(
            {
                key.removeprefix(_NORMALIZER): value.numpy()
                for key, value in weights.items()
                if key.startswith(_NORMALIZER)
            }
        )
        return Classifier(
            version=str(data["version"]),
            net=net.requires_grad_(False).eval(),
            config=config,
            calibration=Calibration(**{name: _finite(value) for name, value in data["calibration"].items()}),
            threshold=_finite(data["threshold"]),
            consecutive=max(1, int(data["consecutive"])),
            facts=dict(data["facts"]),
        )
    except (*_INVALID, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"classifier {path} is inconsistent ({reason}). Train it again.") from error


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def _build(config: TrainingConfig, data: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> SuccessNet:
    """The network with its weights. Settings of a folder from elsewhere could ask for any size, so shapes come first."""
    specs = {
        kind: {key: ArraySpec.from_json(spec) for key, spec in data[kind].items()}
        for kind in ("cameras", "proprio")
    }
    trained = {key: value for key, value in weights.items() if not key.startswith(_NORMALIZER)}
    fits = all(
        weights[f"{_NORMALIZER}mean/{k}"].numel() == math.prod(s.shape) for k, s in specs["proprio"].items()
    )
    if fits:
        with torch.device("meta"), warnings.catch_warnings():  # allocates nothing
            warnings.simplefilter("ignore")  # a frozen encoder has its own file, whose weights are not copied here
            shapes = {key: value.shape for key, value in SuccessNet(config.encoder, **specs).state_dict().items()}
        fits = shapes == {key: value.shape for key, value in trained.items()}
    if not fits:
        raise ValueError("its settings and its weights have different shapes")
    net = SuccessNet(config.encoder, **specs)
    net.load_state_dict(trained)
    return net
