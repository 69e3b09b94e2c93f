"""A trained classifier on disk: everything that using it takes, in one folder.

    classifier.json          cameras and their sizes, encoder, calibration, threshold, what it was trained on and how well
                             it did; a checksum of each file beside it, and of itself
    weights.safetensors      the network, and what low-dimensional observations are normalised with
    encoder.safetensors      of a frozen encoder, the file it came from
    curves.png, mistakes.png  for people

Nothing in it is code: a folder from anywhere can at worst be wrong. It is written whole and never changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from pydantic import ValidationError
from safetensors.torch import load, save

from dovetail.core.disk import (
    MissingError,
    dump_json,
    fsync_folder,
    load_json,
    read_file,
    sha256,
    write_file,
)
from dovetail.core.errors import StoreError, UsageError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """A classifier that is ready to judge."""

    version: str  # of its content: the same weights, threshold and calibration have the same
    net: SuccessNet
    config: TrainingConfig
    calibration: Calibration
    threshold: float
    consecutive: int
    facts: Mapping[str, Any] = field(default_factory=dict)  # what is noted of its training

    def probabilities(self, frames: Mapping[str, Array]) -> Array:
        """Calibrated, [N], of raw frames."""
        return self.calibration(self.net.logits(frames))

    def check(self, robot: RobotSpec) -> None:
        """Refuse a robot that does not show what this was trained on."""
        for kind, specs in (("camera", self.net.cameras), ("observation", self.net.proprio)):
            for key, spec in specs.items():
                found = robot.observation.get(key)
                if found is None:
                    raise UsageError(
                        f"the success classifier looks at {kind} '{key}', which robot '{robot.name}' does not have: add "
                        f"it{' to robot.images' if kind == 'camera' else ''}, or train another classifier"
                    )
                if found.shape != spec.shape or found.dtype != spec.dtype:
                    raise UsageError(
                        f"the success classifier was trained on {kind} '{key}' of {spec.describe()}, robot "
                        f"'{robot.name}' gives {found.describe()}: set it the same, or train another classifier"
                    )


def save_classifier(
    path: Path, trained: Trained, *, facts: Mapping[str, Any], pictures: Mapping[str, bytes] | None = None
) -> str:
    """Write a new folder, whole or not at all; returns its version. `pictures` are for people, by file name."""
    if path.exists():
        raise UsageError(f"{path} is there already: choose another name, or remove it")
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
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(staged, ignore_errors=True)
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
    """A whole folder, every file verified; else one line that says what is wrong with it."""
    name = str(path / MANIFEST)
    try:
        data = load_json(read_file(path / MANIFEST), name=name, indent=2)
    except MissingError as error:
        raise UsageError(
            f"{path} holds no success classifier: train one with `dovetail train reward-classifier RUN --out {path}`"
        ) from error
    if data.get("schema") != SCHEMA:
        raise StoreError(f"{name} has schema {data.get('schema')}, this version reads {SCHEMA}: train it anew")
    try:
        files = data["files"]
        weights = load(read_file(path / _WEIGHTS, checksum=files[_WEIGHTS]["sha256"]))
        settings = data["config"]
        if _ENCODER in files:
            read_file(path / _ENCODER, checksum=files[_ENCODER]["sha256"])
            settings["encoder"]["file"] = str(path / _ENCODER)
        config = TrainingConfig.model_validate(settings)
        net = SuccessNet(
            config.encoder,
            **{
                kind: {key: ArraySpec.from_json(spec) for key, spec in data[kind].items()}
                for kind in ("cameras", "proprio")
            },
        )
        net.normalizer.load_arrays(
            {
                key.removeprefix(_NORMALIZER): value.numpy()
                for key, value in weights.items()
                if key.startswith(_NORMALIZER)
            }
        )
        net.load_state_dict({key: value for key, value in weights.items() if not key.startswith(_NORMALIZER)})
        return Classifier(
            version=data["version"],
            net=net.requires_grad_(False).eval(),
            config=config,
            calibration=Calibration(**data["calibration"]),
            threshold=float(data["threshold"]),
            consecutive=int(data["consecutive"]),
            facts=data["facts"],
        )
    except (KeyError, TypeError, ValueError, RuntimeError, ValidationError, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"classifier {path} does not fit together ({reason}): train it anew") from error
