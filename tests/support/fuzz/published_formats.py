"""Weights from elsewhere: folders as `dovetail serve FOLDER` and `policy.checkpoint` read them, and files of torch."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch
from hypothesis import strategies as st

from dovetail.config.schema import PluginSection
from dovetail.policies.images.backbones import _plain_tensors
from dovetail.policies.published import describe
from dovetail.policies.torch_files import read_torch_file
from dovetail.policies.vla.acting import ActingVla
from dovetail.runs.assembly.policy_components import build_policy
from hostile.published_cases import WRITERS
from support.fuzz.formats import Format, damage_safetensors, in_turn
from support.fuzz.mutate import mutate_bytes, mutate_json

__all__ = ["PUBLISHED_FORMATS"]

_KINDS = ("pi0", "openpi", "smolvla", "act")


class PublishedFolders(Format):
    """Small models; a sample damages one of them, and only that one is read."""

    name = "published folders"
    _damaged = "pi0"

    def make(self, folder: Path) -> None:
        torch.set_num_threads(1)
        for kind in _KINDS:
            WRITERS[kind](folder / kind)

    def damage(self, folder: Path, data: st.DataObject) -> None:
        self._damaged = data.draw(st.sampled_from(_KINDS))
        files = sorted(path for path in (folder / self._damaged).rglob("*") if path.is_file())
        path = data.draw(st.sampled_from([*files, folder / self._damaged / "config.json"]))
        content = path.read_bytes()
        if path.suffix == ".safetensors":
            path.write_bytes(damage_safetensors(content, data))
        elif data.draw(st.booleans()):
            path.write_bytes(mutate_bytes(data, content))
        else:
            path.write_text(json.dumps(mutate_json(data, json.loads(content))))

    def read(self, folder: Path) -> None:
        def load(kind: str) -> None:
            found = describe(folder / kind)
            section = PluginSection.parse("policy", found.section)
            policy = build_policy(section, robot=found.robot, seed=0)
            assert policy.spec.action.shape == found.robot.action.shape
            if isinstance(policy, ActingVla):
                assert policy.network is not None  # loads the weights
                assert policy._tokenizer is not None

        in_turn(lambda: load(self._damaged))


class TorchFiles(Format):
    """Weights in torch's own format, new and old, as `policy.components` and `dovetail encoder convert` read them."""

    name = "torch files"

    def make(self, folder: Path) -> None:
        torch.set_num_threads(1)
        weights = {"w": torch.arange(6.0).reshape(2, 3), "half": torch.zeros(3, dtype=torch.bfloat16)}
        torch.save(weights, folder / "new.pth")
        torch.save({"policy": weights, "step": 3}, folder / "inside.pth")
        torch.save(weights, folder / "old.pth", _use_new_zipfile_serialization=False)

    def read(self, folder: Path) -> None:
        def load(path: Path) -> None:
            arrays = read_torch_file(path)
            assert (
                sum(array.nbytes for array in arrays.values()) <= 2 * path.stat().st_size
            )  # bfloat16 becomes float32

        paths = [folder / name for name in ("new.pth", "inside.pth", "old.pth")]
        in_turn(*(partial(load, path) for path in paths), *(partial(_plain_tensors, path) for path in paths))


PUBLISHED_FORMATS: dict[str, Format] = {one.name: one for one in (PublishedFolders(), TorchFiles())}
