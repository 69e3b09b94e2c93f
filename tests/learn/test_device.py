"""No tensor is created on the default device. Tested here with the `meta` device, and with CUDA in test_gpu.py."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.config.load import load
from dovetail.core.errors import ConfigError, UsageError
from dovetail.core.types import ActContext
from dovetail.learn.device import device_of
from dovetail.learn.precision import compute_in_bf16
from dovetail.policies.device import find_device
from support.small_algorithms import algorithms, batch_for
from support.toy_run import TOY


class RefuseDefaultDevice(TorchDispatchMode):
    """Fails if a tensor is created without an explicit device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                assert tensor.device.type == "cpu", f"{func} created a tensor on the default device"
        return result


@pytest.mark.parametrize("name", ["rlpd", "sac_flow", "dsrl", "imitation", "hg_dagger", "hi_ors"])
def test_update_creates_no_tensor_on_the_default_device(name, robot):
    algorithm = algorithms(robot)[name]
    batch = batch_for(algorithm)
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        with RefuseDefaultDevice():
            metrics = algorithm.update(batch)
    finally:
        torch.set_default_device(before)
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", ["rlpd", "sac_flow", "dsrl", "imitation"])
def test_act_creates_no_tensor_on_the_default_device(name, robot):
    policy = algorithms(robot)[name]._policy
    observations = {"joint_pos": np.zeros((2, 3), np.float32)}
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        with RefuseDefaultDevice():
            for deterministic in (True, False):
                chunk = policy.act(observations, ActContext(deterministic=deterministic, seed=3))
            if policy.spec.guidable:
                policy.act(observations, ActContext(deterministic=True, prefix=chunk.actions, delay=1))
    finally:
        torch.set_default_device(before)


def test_find_device_by_name(monkeypatch, policy):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == find_device("cpu") == device_of(policy) == torch.device("cpu")
    with pytest.raises(UsageError, match=r"torch finds no GPUs\. Set device=cpu"):
        find_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("auto") == find_device("cuda") == torch.device("cuda:0")
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UsageError, match="torch finds 2 GPUs"):
        find_device("cuda:2")


def test_device_setting_is_validated(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    assert load([path], ["device=auto"]).device == "auto"
    with pytest.raises(ConfigError, match="device"):
        load([path], ["device=gpu"])


class Products(TorchDispatchMode):
    """What matrix products compute in."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (
            torch.ops.aten.addmm,
            torch.ops.aten.mm,
            torch.ops.aten.bmm,
            torch.ops.aten.baddbmm,
        ):
            self.dtypes |= {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["sac_flow", "dsrl", "imitation", "hg_dagger", "hi_ors"])
def test_bf16_is_used_inside_networks_only(name, robot):
    exact, rough = algorithms(robot)[name], algorithms(robot)[name]
    compute_in_bf16(rough.networks.values())
    batch = batch_for(exact)
    with Products() as products:
        rounded = rough.update(batch)
    assert torch.bfloat16 in products.dtypes
    precise = exact.update(batch)
    for key, value in precise.items():
        assert rounded[key] == pytest.approx(value, rel=0.1, abs=0.05)
    assert any(rounded[key] != precise[key] for key in precise)
    state = rough.state_dict()
    assert {v.dtype for k, v in state.items() if k.startswith(("optimizer", "policy", "critic"))} == {
        np.dtype("f4")
    }
    features = rough._policy.features({"joint_pos": batch["observation/joint_pos"]})
    assert features.dtype == torch.float32
