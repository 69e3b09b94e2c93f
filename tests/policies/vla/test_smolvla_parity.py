"""Our SmolVLA network against what LeRobot's own package computed with the same weights, inputs and noise
(scripts/record-smolvla), and against the SmolVLM blocks of transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.families.smolvla import SMOLVLA
from dovetail.policies.vla.images import prepare_images_in_corner
from dovetail.policies.vla.networks.sizes import SmolVLASizes, VisionSizes
from dovetail.policies.vla.networks.smolvla import SmolVLANetwork
from dovetail.policies.vla.networks.transformers import VisionTower
from dovetail.policies.vla.sampler import Commitment, Inputs, Parts, Sampler
from support.hashed_numbers import hashed, hashed_frames
from support.smolvla_folders import RECORDED, write_smolvla

CPU = torch.device("cpu")
HORIZON, SIZE = 5, 64


@pytest.fixture(scope="module")
def recorded():
    return load_file(RECORDED / "recorded.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_smolvla(tmp_path_factory.mktemp("smolvla") / "folder")


def load(folder, dtype=torch.float32):
    return open_checkpoint(folder, SMOLVLA).load(device=CPU, dtype=dtype)


def numbers(name, shape):
    return torch.from_numpy(hashed(name, shape))


def recorded_inputs(recorded, case, *cameras):
    """The recording's inputs: images and noise are functions of their names."""
    images = [
        prepare_images_in_corner(hashed_frames(camera, (2, 48, 64, 3)), size=SIZE, with_pil=False, device=CPU)
        for camera in cameras
    ]
    images += [torch.full_like(images[0], -1.0)] * (2 - len(images))
    return Inputs(
        images=torch.stack(images, dim=1),
        camera_mask=recorded[f"{case}.camera_mask"],
        tokens=recorded[f"{case}.tokens"],
        token_mask=recorded[f"{case}.token_mask"],
        state=functional.pad(recorded[f"{case}.state"], (0, 32 - 9)),
        noise=2.0 * numbers("noise", (2, HORIZON, 32)),
    )


def sample(network, inputs, commitment=None):
    return Sampler(network, num_steps=10)(inputs, commitment)


def assert_equal(ours, theirs, tolerance=1e-5):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def test_chunk_equals_lerobot_in_float32_with_padded_prompts(recorded, folder):
    inputs = recorded_inputs(recorded, "longest", "top", "wrist")
    assert inputs.tokens.shape == (2, 6) and not inputs.token_mask.all()
    expected = recorded["longest.chunk"]
    assert expected.std() > 0.5  # not a trivial result
    assert_equal(sample(load(folder), inputs)[..., :6], expected)


def test_chunk_equals_lerobot_with_an_absent_camera_that_is_masked_or_left_out(recorded, folder):
    inputs = recorded_inputs(recorded, "max_length", "wrist")
    assert inputs.camera_mask.tolist() == [[True, False]] * 2
    network, expected = load(folder), recorded["max_length.chunk"]
    assert_equal(sample(network, inputs)[..., :6], expected)
    fewer = inputs._replace(images=inputs.images[:, :1], camera_mask=inputs.camera_mask[:, :1])
    assert_equal(sample(network, fewer)[..., :6], expected)


def test_velocity_equals_lerobots_training_pass_at_other_times(recorded, folder):
    """It computes prefix and actions in one pass, without a cache."""
    noise, times = numbers("trained noise", (2, HORIZON, 32)), torch.tensor([0.3, 0.8])
    network = load(folder)
    prefix = network.prefix(
        numbers("trained images", (2, 3, SIZE, SIZE))[:, None],
        torch.ones(2, 1, dtype=torch.bool),
        torch.tensor([[6, 5, 7, 4, 2], [6, 5, 8, 5, 4]]),
        torch.tensor([[True, True, True, True, False], [True] * 5]),
        numbers("trained state", (2, 32)),
    )
    x = times[:, None, None] * noise  # the actions are 0
    assert_equal(network.velocity(x, network.embed_times(times), prefix), recorded["trained.velocity"])


def test_patches_of_lerobot_with_transformers_4_57_in_float32_are_one_position_back(recorded, folder):
    """The unchanged package: position i - 1 for patch i of each row and column. Ours is otherwise equal."""
    network = load(folder)
    back = torch.tensor([0, 0, 1, 2])
    position = network.vision.position.view(4, 4, -1)
    network.vision.position.copy_(position[back][:, back].flatten(0, 1))
    ours = sample(network, recorded_inputs(recorded, "longest", "top", "wrist"))[..., :6]
    assert_equal(ours, recorded["shifted.chunk"])
    assert (recorded["shifted.chunk"] - recorded["longest.chunk"]).abs().max() > 0.1  # the difference matters


def test_chunk_in_bfloat16_is_near(recorded, folder):
    inputs = recorded_inputs(recorded, "longest", "top", "wrist")
    ours = sample(load(folder, torch.bfloat16), inputs)[..., :6]
    expected = recorded["longest.chunk"]
    assert (ours - expected).norm() / expected.norm() < 2e-2


@pytest.mark.parametrize(("join", "image_size"), [(2, 64), (4, 128)])
def test_image_tokens_equal_transformers_with_positions_in_order(join, image_size):
    from transformers import SmolVLMConfig, SmolVLMModel

    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": image_size,
        "patch_size": 16,
    }
    text = {"model_type": "llama", "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = SmolVLMConfig(vision_config=vision, text_config={**text, "vocab_size": 8}, scale_factor=join)
    model = SmolVLMModel(config).eval()
    for name, parameter in model.named_parameters():
        parameter.data.copy_(numbers(name, tuple(parameter.shape)) * (0.3 if parameter.ndim > 1 else 1.0))
    sizes = VisionSizes(
        width=32, num_layers=2, num_heads=2, mlp_width=48, image_size=image_size, patch_size=16, join=join
    )
    ours = VisionTower(sizes, out=24, bias=False)
    theirs = dict(model.named_parameters())
    from dovetail.policies.vla.checkpoints.keys import vision_sources

    sources = dict(vision_sources(sizes, "vision_model."))
    sources["vision.out.weight"] = ("connector.modality_projection.proj.weight",)
    for name, parameter in ours.named_parameters():
        parameter.data.copy_(torch.cat([theirs[key] for key in sources[f"vision.{name}"]]))
    images = numbers("images", (2, 3, image_size, image_size))
    expected = model.connector(model.vision_model(images).last_hidden_state)
    assert expected.shape[1] == sizes.num_tokens
    assert_equal(ours(images), expected)


def test_default_sizes_have_the_published_number_of_weights():
    """450 million with the head that is not used, 100 million of them in expert and projections."""
    with torch.device("meta"):
        network = SmolVLANetwork(SmolVLASizes())
    layer = 2 * 720 * 960 + 3 * 720 * 2048 + 2 * 720
    projections = 33 * 960 + 33 * 720 + 1441 * 720 + 721 * 720 + 721 * 32
    expert = 16 * layer + 8 * 2 * 720 * 320 + 8 * 2 * 320 * 320 + 720
    trained = [p.numel() for n, p in network.named_parameters() if n.startswith(("expert", "state", "action"))]
    assert sum(trained) == expert + projections == 99_880_992
    unused = 49280 * 960 + 960  # the text model's head and last norm
    assert sum(p.numel() for p in network.parameters()) + unused == 450_046_176


# ---- what depends on what


def test_actions_attend_to_earlier_actions_only(recorded, folder):
    network, inputs = load(folder), recorded_inputs(recorded, "longest", "top", "wrist")
    time = network.embed_times(torch.tensor([0.4]))
    with torch.no_grad():
        prefix = network.prefix(*inputs[:-1])
        changed = inputs.noise.clone()
        changed[:, 3:] += 1.0
        a, b = (network.velocity(x, time, prefix).clone() for x in (inputs.noise, changed))
    assert torch.equal(a[:, :3], b[:, :3])
    assert (a[:, 3:] - b[:, 3:]).abs().amin(dim=(0, 2)).min() > 0.0
    assert not torch.equal(a[:, 4], b[:, 4])


def test_state_sees_images_and_prompt_but_they_do_not_see_it(recorded, folder):
    network, inputs = load(folder), recorded_inputs(recorded, "longest", "top", "wrist")
    a, b = (network.prefix(*inputs._replace(state=inputs.state + by)[:-1]) for by in (0.0, 1.0))
    c = network.prefix(*inputs._replace(images=inputs.images * 0.5)[:-1])
    num = 2 * 4 + 6  # tokens of two images and the prompt
    for layer in range(4):
        assert torch.equal(a.keys[layer][:, :, :num], b.keys[layer][:, :, :num])
        assert not torch.equal(a.keys[layer][:, :, num], b.keys[layer][:, :, num])
    assert not torch.equal(a.keys[2][:, :, num], c.keys[2][:, :, num])


def test_width_of_the_padding_changes_nothing(recorded, folder):
    """LeRobot pads to the longest prompt of a batch or to the maximum; ours always to the maximum."""
    network, inputs = load(folder), recorded_inputs(recorded, "longest", "top", "wrist")
    wider = inputs._replace(
        tokens=functional.pad(inputs.tokens, (0, 7), value=9), token_mask=functional.pad(inputs.token_mask, (0, 7))
    )
    assert_equal(sample(network, wider), sample(network, inputs))


@pytest.mark.parametrize("every", [0, 1, 3])
def test_other_orders_of_layers_compute_and_use_every_layer(every):
    sizes = SmolVLASizes(
        vision=VisionSizes(
            width=32, num_layers=1, num_heads=2, mlp_width=32, image_size=32, patch_size=16, join=2
        ),
        text=replace(SmolVLASizes().text, width=32, num_layers=4, num_heads=2, num_kv_heads=1, mlp_width=32),
        expert=replace(SmolVLASizes().expert, width=24, num_layers=4, num_heads=2, num_kv_heads=1, mlp_width=32),
        self_attention_every=every,
        vocabulary=8,
        horizon=3,
    )
    network = SmolVLANetwork(sizes)
    kinds = ["qkv" if hasattr(layer, "qkv") else "cross" for layer in network.expert_layers]
    assert kinds == {0: ["cross"] * 4, 1: ["qkv"] * 4, 3: ["qkv", "cross", "cross", "qkv"]}[every]
    prefix = network.prefix(
        numbers("i", (1, 1, 3, 32, 32)),
        torch.ones(1, 1, dtype=torch.bool),
        torch.tensor([[1, 2]]),
        torch.ones(1, 2, dtype=torch.bool),
        numbers("s", (1, 32)),
    )
    assert (
        network.velocity(numbers("x", (1, 3, 32)), network.embed_times(torch.tensor([0.5])), prefix)
        .isfinite()
        .all()
    )


# ---- guidance, graphs and training


def test_velocity_with_gradients_equals_the_one_in_place(recorded, folder):
    network, inputs = load(folder), recorded_inputs(recorded, "longest", "top", "wrist")
    time = network.embed_times(torch.tensor([0.3]))
    with torch.no_grad():
        prefix = network.prefix(*inputs[:-1])
        in_place = network.velocity(inputs.noise, time, prefix)
    assert_equal(network.velocity(inputs.noise.clone().requires_grad_(), time, prefix), in_place)


def test_guided_chunk_approaches_the_committed_actions(recorded, folder):
    network, inputs = load(folder), recorded_inputs(recorded, "longest", "top", "wrist")
    target = sample(network, inputs) + 0.5
    weights = torch.zeros_like(target)
    weights[:, :2, :6] = 1.0
    target[:, 2:] = torch.nan  # unknown
    guided = sample(network, inputs, Commitment(target, weights))
    assert guided.isfinite().all()
    assert (guided - target)[:, :2, :6].abs().mean() < 0.25 * 0.5


@pytest.mark.extended
def test_both_parts_are_one_graph_without_decisions_on_values(recorded, folder):
    network, inputs = load(folder), recorded_inputs(recorded, "longest", "top", "wrist")
    parts = Parts(
        *(torch.compile(p, fullgraph=True, backend="aot_eager") for p in (network.prefix, network.velocity))
    )
    ours = Sampler(network, num_steps=10, parts=parts)
    assert_equal(ours(inputs), sample(network, inputs))
    target = torch.zeros_like(inputs.noise)
    commitment = Commitment(target, torch.ones_like(target))
    assert_equal(ours(inputs, commitment), sample(network, inputs, commitment), tolerance=1e-4)


def test_every_parameter_is_in_exactly_one_component(folder):
    network = load(folder)
    components = network.components
    found = [parameter for module in components.values() for parameter in module.parameters()]
    assert sorted(map(id, found)) == sorted(map(id, network.parameters()))
    trained = {id(parameter) for parameter in components["expert"].parameters()}
    assert id(network.state_in.weight) in trained and id(network.text_layers[0].down.weight) not in trained


def test_training_reaches_every_parameter_that_acting_uses(recorded, folder):
    network, inputs = load(folder).requires_grad_(True), recorded_inputs(recorded, "longest", "top", "wrist")
    prefix = network.prefix(*inputs[:-1])
    times = network.embed_times(torch.tensor([0.3, 0.8]))
    network.velocity(inputs.noise, times, prefix).square().sum().backward()
    without = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    assert without == {f"text_layers.3.{name}.weight" for name in ("attention_out", "mlp_norm", "gate_up", "down")}
