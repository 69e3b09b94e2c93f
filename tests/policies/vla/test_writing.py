"""LeRobot folders that we write: the same files as LeRobot 0.6.1 itself, and the same actions when they are read back.

`scripts/record_vla_fixtures.py NAME FOLDER` loads such a folder with the real package. A slow test runs it with the Python
that LEROBOT_06_PYTHON names."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.core.errors import UsageError
from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.checkpoints.lerobot_writer import write_lerobot
from support.pi0_folders import write_openpi, write_transformers
from support.recorded_vla import FIXTURES, write_recorded_folder

CPU = torch.device("cpu")
NAMES = ("pi0", "pi05", "pi0_relative", "pi05_relative")


@pytest.fixture(scope="module", params=NAMES)
def copied(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("written")
    original = write_recorded_folder(request.param, root / "original")
    write_lerobot(root / "copy", open_checkpoint(original))
    return request.param, original, root / "copy"


def test_files_are_those_of_lerobot(copied):
    name, original, copy = copied
    names = {path.name for path in original.iterdir()}
    assert names == {path.name for path in copy.iterdir()}
    for file in ("policy_preprocessor.json", "policy_postprocessor.json"):
        assert json.loads((copy / file).read_text()) == json.loads((original / file).read_text()), file
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (copy, original))
    assert ours == {key: theirs[key] for key in ours}
    assert {"type", "input_features", "chunk_size", "use_relative_actions"} <= ours.keys()
    shapes = json.loads((FIXTURES / name / "shapes.json").read_text())
    assert {key: list(value.shape) for key, value in load_file(copy / "model.safetensors").items()} == shapes


def test_weights_and_statistics_read_back_are_identical(copied):
    _, original, copy = copied
    a, b = open_checkpoint(original), open_checkpoint(copy)
    networks = [one.load(device=CPU, dtype=torch.float32) for one in (a, b)]
    assert networks[0].sizes == networks[1].sizes
    for (name, ours), theirs in zip(networks[1].named_parameters(), networks[0].parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    for ours, theirs in ((a.state, b.state), (a.action, b.action)):
        assert np.array_equal(ours.shift, theirs.shift) and np.array_equal(ours.scale, theirs.scale)
    assert (a.cameras, a.relative_actions, a.relative_exclude) == (
        b.cameras,
        b.relative_actions,
        b.relative_exclude,
    )


def test_changed_weights_are_written_under_their_published_names(copied, tmp_path):
    _, original, _ = copied
    checkpoint = open_checkpoint(original)
    rows = torch.cat([torch.full((num, 24), value) for value, num in ((1.0, 128), (2.0, 16), (3.0, 16))])
    write_lerobot(tmp_path / "new", checkpoint, changed={"expert_layers.1.qkv.weight": rows})
    written = load_file(tmp_path / "new" / "model.safetensors")
    first = "model.paligemma_with_expert.gemma_expert.model.layers.1.self_attn."
    assert [float(written[f"{first}{name}_proj.weight"].unique()) for name in "qkv"] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("write", [write_openpi, write_transformers])
def test_other_formats_become_lerobot_folders_by_command(tmp_path, write):
    source = write(tmp_path / "source")
    stats = ["--stats", str(source / "stats.json")] if write is write_transformers else []
    result = CliRunner().invoke(app, ["policy", "export", str(source), str(tmp_path / "copy"), *stats])
    assert result.exit_code == 0, result.output
    networks = [
        open_checkpoint(folder).load(device=CPU, dtype=torch.float32) for folder in (source, tmp_path / "copy")
    ]
    for ours, theirs in zip(*(network.parameters() for network in networks), strict=True):
        assert torch.equal(ours, theirs)
    copy = open_checkpoint(tmp_path / "copy")
    assert copy.format == "LeRobot" and copy.action.size == 6


def test_existing_folder_and_missing_statistics_are_refused(tmp_path):
    source = write_transformers(tmp_path / "source")
    with pytest.raises(UsageError, match="has no statistics"):
        write_lerobot(tmp_path / "copy", open_checkpoint(source))
    checkpoint = open_checkpoint(source, stats=source / "stats.json")
    with pytest.raises(UsageError, match="exists already"):
        write_lerobot(source, checkpoint)


@pytest.mark.slow
def test_lerobot_itself_computes_the_same_from_our_folder(copied):
    if "LEROBOT_06_PYTHON" not in os.environ:
        pytest.skip("LEROBOT_06_PYTHON is not set")
    name, _, copy = copied
    script = Path(__file__).parents[3] / "scripts" / "record_vla_fixtures.py"
    subprocess.run([os.environ["LEROBOT_06_PYTHON"], script, name, copy], check=True)
