"""LoRA: worked out by hand, equal when merged and when applied, and equal to PEFT with LeRobot's own networks (recorded).

The adapter of smolvla was not recorded with PEFT: ours writes it."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.policies.vla.checkpoints.adapters import read_adapter, write_adapter
from dovetail.policies.vla.checkpoints.export import export_checkpoint
from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.lora import Lora, Place, Update
from dovetail.policies.vla.sampler import Inputs, Sampler
from support.hashed_numbers import hashed
from support.recorded_vla import FIXTURES, inputs, recorded, write_recorded_folder
from support.smolvla_folders import RECORDED, write_smolvla

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["pi0", "pi05", "smolvla"])
def case(request, tmp_path_factory):
    name, root = request.param, tmp_path_factory.mktemp("base")
    if name != "smolvla":
        return name, write_recorded_folder(name, root / name), FIXTURES / name / "adapter"
    folder = write_smolvla(root / name)
    checkpoint = open_checkpoint(folder)
    network = checkpoint.load(device=CPU, dtype=torch.float32)
    pattern = r".*(lm_expert|text_model).*\.(q|v|gate)_proj"  # parts of joined weights
    lora = Lora.add(network, checkpoint.places, pattern=pattern, rank=4, alpha=8.0, seed=1)
    with torch.no_grad():
        for update in lora.updates.values():
            update.up.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(2))
    write_adapter(root / "adapter", lora, base="smolvla_base")
    return name, folder, root / "adapter"


@pytest.fixture
def adapter(tmp_path):
    """A folder to damage."""
    return shutil.copytree(FIXTURES / "pi0" / "adapter", tmp_path / "adapter")


def network_inputs(name):
    if name == "smolvla":
        return smolvla_inputs()
    found = {key: torch.from_numpy(value) for key, value in recorded(name).items()}
    state = nn.functional.pad(found["normalized_state"], (0, 32 - found["normalized_state"].shape[1]))
    noise = torch.from_numpy(inputs()["noise"])
    return Inputs(found["images"], found["camera_mask"], found["tokens"], found["token_mask"], state, noise)


def smolvla_inputs():
    found = load_file(RECORDED / "recorded.safetensors")
    images = torch.from_numpy(hashed("images", (2, 2, 3, 64, 64)))
    state = nn.functional.pad(found["longest.state"], (0, 32 - found["longest.state"].shape[1]))
    noise = torch.from_numpy(hashed("noise", (2, 5, 32)))
    masks = found["longest.camera_mask"], found["longest.token_mask"]
    return Inputs(images, masks[0], found["longest.tokens"], masks[1], state, noise)


def chunk(network, name):
    return Sampler(network, num_steps=4)(network_inputs(name))


def test_updates_of_joined_rows_worked_out_by_hand():
    linear = nn.Linear(2, 3, bias=False)
    linear.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    network = nn.ModuleDict({"qk": linear})
    lora = Lora(network)
    # the second published weight has rows 1 and 2: scale 3 * B [[1], [2]] A [[10, 20]]
    update = Update(torch.tensor([[10.0, 20.0]]), torch.tensor([[1.0], [2.0]]), scale=3.0, first=1)
    lora.put("k.weight", Place("qk.weight", 1, 2), update)
    expected = torch.tensor([[1.0, 2.0], [33.0, 64.0], [65.0, 126.0]])
    x = torch.tensor([[1.0, -1.0]])
    assert torch.equal(linear(x), x @ expected.T)
    lora.merge()
    assert isinstance(linear.weight, nn.Parameter) and torch.equal(linear.weight, expected)


def test_chunks_equal_those_of_peft_with_lerobots_network(case):
    name, folder, adapter = case
    if name == "smolvla":
        pytest.skip("not recorded")
    checkpoint = open_checkpoint(folder, adapter=adapter)
    theirs = torch.from_numpy(load_file(FIXTURES / name / "adapted_outputs.safetensors")["chunk"].numpy())
    assert (theirs - torch.from_numpy(recorded(name)["chunk"])).abs().max() > 0.1  # the adapter matters
    ours = chunk(checkpoint.load(device=CPU, dtype=torch.float32), name)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)


def test_applied_equals_merged(case):
    name, folder, adapter = case
    checkpoint = open_checkpoint(folder)
    network = checkpoint.load(device=CPU, dtype=torch.float32)
    before = chunk(network, name)
    lora = read_adapter(adapter).apply(network, checkpoint.places)
    applied = chunk(network, name)
    assert (applied - before).abs().max() > 1e-2
    lora.merge()
    torch.testing.assert_close(chunk(network, name), applied, rtol=1e-6, atol=1e-6)


def test_adapter_beside_the_weights_is_used_and_export_merges_it(case, tmp_path):
    name, folder, adapter = case
    both = shutil.copytree(folder, tmp_path / "both")
    for path in adapter.iterdir():
        shutil.copy(path, both)
    expected = chunk(open_checkpoint(folder, adapter=adapter).load(device=CPU, dtype=torch.float32), name)
    assert torch.equal(chunk(open_checkpoint(both).load(device=CPU, dtype=torch.float32), name), expected)
    export_checkpoint(folder, tmp_path / "merged", adapter=adapter)
    merged = open_checkpoint(tmp_path / "merged")
    assert merged.adapter is None
    assert torch.equal(chunk(merged.load(device=CPU, dtype=torch.float32), name), expected)


def test_new_adapter_changes_nothing_learns_alone_and_is_read_back(case, tmp_path):
    name, folder, _ = case
    checkpoint = open_checkpoint(folder)
    network = checkpoint.load(device=CPU, dtype=torch.float32)
    before = chunk(network, name)
    pattern = r".*(gemma|lm)_expert.*\.(q|v)_proj"
    lora = Lora.add(network, checkpoint.places, pattern=pattern, rank=2, alpha=3.0, seed=0)
    assert len(lora.updates) == 2 * len(network.expert_layers) and torch.equal(chunk(network, name), before)
    given = network_inputs(name)
    time = network.embed_times(torch.tensor([0.5]))
    network.velocity(given.noise, time, network.prefix(*given[:-1])).square().sum().backward()
    learned = [update.up.grad for update in lora.updates.values()]
    assert all(grad is not None and grad.abs().max() > 0 for grad in learned)
    trainable = {id(parameter) for parameter in network.parameters() if parameter.requires_grad}
    assert trainable == {id(parameter) for parameter in lora.parameters()}
    with torch.no_grad():
        for parameter in lora.parameters():
            parameter.add_(0.1)
    after = chunk(network, name)
    write_adapter(tmp_path / "adapter", lora, base="pi")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 3.0)
    again = open_checkpoint(folder, adapter=tmp_path / "adapter").load(device=CPU, dtype=torch.float32)
    torch.testing.assert_close(chunk(again, name), after, rtol=1e-6, atol=1e-6)
    assert (after - before).abs().max() > 1e-2
    with pytest.raises(UsageError, match="nothing to adapt"):
        Lora.add(again, checkpoint.places, pattern="nothing", rank=2, alpha=1.0, seed=0)


def test_adapter_folder_of_lerobot_brings_its_statistics_and_is_no_checkpoint(case, tmp_path):
    _, folder, adapter = case
    trained = shutil.copytree(adapter, tmp_path / "trained")
    for path in folder.iterdir():
        if path.name not in ("model.safetensors", "tokenizer.json"):
            shutil.copy(path, trained)
    for path in trained.glob("policy_*.safetensors"):
        save_file({key: value + 1.0 for key, value in load_file(path).items()}, path)
    checkpoint = open_checkpoint(folder, adapter=trained)
    base = open_checkpoint(folder)
    assert checkpoint.folder == folder and checkpoint.adapter is not None
    torch.testing.assert_close(torch.tensor(checkpoint.action.shift), torch.tensor(base.action.shift) + 1.0)
    with pytest.raises(UsageError, match=r"holds an adapter of '.*' and no model\. Set policy\.adapter"):
        open_checkpoint(trained)


def edit(adapter, change):
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "holds a 'IA3' adapter. Only LORA"),
        ({"use_dora": True}, "has use_dora=True, which is unknown"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern"),
    ],
)
def test_other_adapters_are_refused(adapter, settings, message):
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **settings}))
    with pytest.raises(UsageError, match=message):
        read_adapter(adapter)


def test_damaged_and_foreign_adapters_are_refused_by_name(adapter, tmp_path):
    base = open_checkpoint(write_recorded_folder("pi0", tmp_path / "pi0"))
    network = base.load(device=CPU, dtype=torch.float32)
    first = "base_model.model.model.paligemma_with_expert.gemma_expert.model.layers.0.self_attn.q_proj"
    edit(adapter, lambda w: w.update({f"{first}.lora_B.weight": torch.zeros(7, 4)}))
    with pytest.raises(
        CheckpointError, match=r"layers\.0\.self_attn\.q_proj\.weight is \[7, 24\] and should be \[128, 24\]"
    ):
        read_adapter(adapter).apply(network, base.places)
    edit(adapter, lambda w: w.pop(f"{first}.lora_B.weight"))
    with pytest.raises(CheckpointError, match="only one of lora_A and lora_B"):
        read_adapter(adapter)
    edit(adapter, lambda w: w.pop(f"{first}.lora_A.weight"))
    edit(adapter, lambda w: w.update({"base_model.model.other.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"adapts other\.weight, which the checkpoint does not have"):
        read_adapter(adapter).apply(network, base.places)
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        read_adapter(adapter)
    with pytest.raises(UsageError, match=r"policy\.adapter: .* has no adapter_config\.json"):
        read_adapter(tmp_path)
