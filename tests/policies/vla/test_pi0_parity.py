"""Our pi0 networks against transformers' PI0ForConditionalGeneration: same weights, same inputs, same noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from dovetail.bench.vla._stock import stock_config
from dovetail.policies.checkpoints.weight_files import WeightFiles
from dovetail.policies.vla.checkpoints.load import load_network
from dovetail.policies.vla.checkpoints.transformers_folder import sizes_of, transformers_layout
from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.sampler import Commitment, Inputs, Parts, Sampler
from dovetail.policies.vla.training import flow_matching_errors
from support.tiny_pi0 import SIZES, reference_model, to_bfloat16

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def reference():
    return reference_model()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pi0")
    save_file(reference.state_dict(), folder / "model.safetensors")
    return folder


def load(folder, sizes=SIZES, dtype=torch.float32):
    files = WeightFiles(folder)
    layout = transformers_layout(folder, stock_config(sizes).to_dict(), files.shapes)
    return load_network(files, layout, PI0, name="pi0", device=CPU, dtype=dtype)


def make_inputs(
    sizes=SIZES, *, batch=2, cameras=(True, True, True), num_tokens=(6, 4), dtype=torch.float32, seed=1
):
    generator = torch.Generator().manual_seed(seed)
    size = sizes.vision.image_size
    return Inputs(
        images=torch.rand(batch, len(cameras), 3, size, size, generator=generator).mul(2).sub(1).to(dtype),
        camera_mask=torch.tensor(cameras).expand(batch, -1).clone(),
        tokens=torch.randint(1, sizes.vocabulary, (batch, sizes.num_prompt_tokens), generator=generator),
        token_mask=torch.arange(sizes.num_prompt_tokens) < torch.tensor(num_tokens)[:batch, None],
        state=torch.randn(batch, sizes.state_size, generator=generator).to(dtype),
        noise=torch.randn(batch, sizes.horizon, sizes.action_size, generator=generator).to(dtype),
    )


def reference_actions(model, inputs, sizes=SIZES):
    """The reference has image tokens in its input only for cameras that are there."""
    present = inputs.camera_mask[0].sum()
    image = torch.full((len(inputs.tokens), int(present) * sizes.vision.num_patches), sizes.vocabulary)
    return model.sample_actions(
        state=inputs.state,
        input_ids=torch.cat((image, inputs.tokens), dim=1),
        pixel_values=inputs.images,
        noise=inputs.noise,
        attention_mask=torch.cat((torch.ones_like(image), inputs.token_mask.long()), dim=1),
        pixel_attention_mask=inputs.camera_mask,
    )


def sample(network, inputs, commitment=None, num_steps=10):
    return Sampler(network, num_steps=num_steps)(inputs, commitment)


@pytest.mark.parametrize("cameras", [(True, True, True), (True, False, True), (False, True, False)])
def test_chunk_equals_transformers_in_float32_with_padding_and_absent_cameras(reference, folder, cameras):
    inputs = make_inputs(cameras=cameras)
    expected = reference_actions(reference, inputs)
    assert expected.std() > 0.5  # not a trivial result
    torch.testing.assert_close(sample(load(folder), inputs), expected, atol=1e-5, rtol=1e-5)


def test_chunk_equals_transformers_in_bfloat16(reference, folder):
    inputs = make_inputs(dtype=torch.bfloat16)
    model = to_bfloat16(reference_model())
    expected = reference_actions(model, inputs).float()
    ours = sample(load(folder, dtype=torch.bfloat16), inputs._replace(noise=inputs.noise.float()))
    assert (ours - expected).norm() / expected.norm() < 1e-2


def test_sizes_follow_from_the_reference_config(reference):
    assert replace(sizes_of(reference.config.to_dict()), num_prompt_tokens=6) == SIZES


def test_leaving_absent_cameras_out_equals_masking_them(folder):
    inputs = make_inputs(cameras=(True, False, True))
    fewer = inputs._replace(images=inputs.images[:, [0, 2]], camera_mask=inputs.camera_mask[:, [0, 2]])
    network = load(folder)
    torch.testing.assert_close(sample(network, fewer), sample(network, inputs), atol=1e-5, rtol=1e-5)


def test_several_key_heads_equal_transformers(tmp_path):
    sizes = replace(SIZES, text=replace(SIZES.text, num_kv_heads=2), expert=replace(SIZES.expert, num_kv_heads=2))
    model = reference_model(sizes)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    inputs = make_inputs(sizes)
    ours = sample(load(tmp_path, sizes), inputs)
    torch.testing.assert_close(ours, reference_actions(model, inputs, sizes), atol=1e-5, rtol=1e-5)


def test_other_widths_of_state_and_actions_equal_transformers(tmp_path):
    """transformers' processor would pad the actions to the state's width."""
    sizes = replace(SIZES, state_size=20, action_size=12)
    model = reference_model(sizes)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    inputs, network = make_inputs(sizes), load(tmp_path, sizes)
    torch.testing.assert_close(
        sample(network, inputs), reference_actions(model, inputs, sizes), atol=1e-5, rtol=1e-5
    )
    errors = flow_matching_errors(network, inputs, torch.zeros(2, 5, 7), torch.tensor([0.2, 0.9]))
    assert errors.shape == (2, 5, 7)


def test_velocity_with_gradients_equals_the_one_in_place(folder):
    network, inputs = load(folder), make_inputs()
    with torch.no_grad():
        prefix = network.prefix(*inputs[:-1])
        time = network.embed_times(torch.tensor([0.3]))
        in_place = network.velocity(inputs.noise, time, prefix)
    with_gradients = network.velocity(inputs.noise.clone().requires_grad_(), time, prefix)
    torch.testing.assert_close(with_gradients, in_place)


def test_guided_chunk_approaches_the_committed_actions(folder):
    network, inputs = load(folder), make_inputs()
    free = sample(network, inputs)
    target = free + 0.5
    weights = torch.zeros_like(target)
    weights[:, :2, :7] = 1.0
    target[:, 2:] = torch.nan  # unknown
    guided = sample(network, inputs, Commitment(target, weights))
    error = (guided - target)[:, :2, :7].abs().mean()
    assert guided.isfinite().all()
    assert error < 0.25 * 0.5


def test_guidance_without_weights_changes_nothing(folder):
    network, inputs = load(folder), make_inputs()
    target = torch.full_like(inputs.noise, torch.nan)
    guided = sample(network, inputs, Commitment(target, torch.zeros_like(target)))
    torch.testing.assert_close(guided, sample(network, inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.extended
def test_both_parts_are_one_graph_without_decisions_on_values(folder):
    network, inputs = load(folder), make_inputs()
    parts = Parts(
        *(torch.compile(p, fullgraph=True, backend="aot_eager") for p in (network.prefix, network.velocity))
    )
    ours = Sampler(network, num_steps=10, parts=parts)
    torch.testing.assert_close(ours(inputs), sample(network, inputs), atol=1e-5, rtol=1e-5)
    target = torch.zeros_like(inputs.noise)
    commitment = Commitment(target, torch.ones_like(target))
    torch.testing.assert_close(ours(inputs, commitment), sample(network, inputs, commitment), atol=1e-4, rtol=1e-4)


def test_training_reaches_every_parameter_that_acting_uses(folder):
    network = load(folder).requires_grad_(True)
    inputs = make_inputs()
    prefix = network.prefix(*inputs[:-1])
    network.velocity(inputs.noise, network.embed_times(torch.tensor([0.3, 0.8])), prefix).square().sum().backward()
    without = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    last = f"text_layers.{SIZES.text.num_layers - 1}."
    assert without == {f"{last}{name}.weight" for name in ("attention_out", "mlp_norm", "gate_up", "down")}
