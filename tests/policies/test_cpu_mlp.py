"""The hand-written forward and backward passes against autograd."""

import copy

import pytest
import torch
from torch.nn import functional

from dovetail.learn.precision import compute_in_bf16
from dovetail.policies.networks import EnsembleMLP, mlp


def reference(ensemble, inputs, members=None):
    """Member by member, with autograd."""
    rows = []
    for e in range(ensemble.num_members) if members is None else members:
        hidden = inputs
        for i, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
            hidden = hidden @ weight[e] + bias[e]
            if i < len(ensemble.scales):
                normed = functional.layer_norm(hidden, hidden.shape[-1:])
                hidden = torch.tanh(normed * ensemble.scales[i][e] + ensemble.shifts[i][e])
        rows.append(hidden.squeeze(-1))
    return torch.stack(rows)


@pytest.fixture
def ensemble():
    torch.manual_seed(0)
    ensemble = EnsembleMLP((5, 16, 12, 1), num_members=3)
    with torch.no_grad():  # with the initial scales and shifts a wrong gradient could go unnoticed
        for p in (*ensemble.scales, *ensemble.shifts):
            p.add_(torch.randn_like(p) * 0.3)
    return ensemble


@pytest.mark.parametrize("members", [None, [2, 0]])
def test_ensemble_values_and_gradients_match_autograd(ensemble, members):
    inputs = torch.randn(7, 5, requires_grad=True)
    target = torch.randn(7)
    wrt = [inputs, *ensemble.parameters()]
    found = ensemble(inputs, None if members is None else torch.tensor(members))
    expected = reference(ensemble, inputs, members)
    torch.testing.assert_close(found, expected)
    by_hand = torch.autograd.grad((found - target).square().sum(), wrt)
    by_autograd = torch.autograd.grad((expected - target).square().sum(), wrt)
    for one, other in zip(by_hand, by_autograd, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_of_the_inputs_of_a_frozen_ensemble_match_autograd(ensemble):
    inputs = torch.randn(7, 5, requires_grad=True)
    ensemble.requires_grad_(False)
    (found,) = torch.autograd.grad(ensemble(inputs).mean(), inputs)
    (expected,) = torch.autograd.grad(reference(ensemble, inputs).mean(), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_gradients_of_the_minimum_of_a_frozen_ensemble_match_autograd(ensemble):
    """Each row has one minimum, so each member backpropagates only some of the rows."""
    inputs = torch.randn(40, 5, requires_grad=True)
    ensemble.requires_grad_(False)
    found, expected = ensemble(inputs).amin(0), reference(ensemble, inputs).amin(0)
    weights = torch.randn(40)
    (by_hand,) = torch.autograd.grad((found * weights).sum(), inputs)
    (by_autograd,) = torch.autograd.grad((expected * weights).sum(), inputs)
    torch.testing.assert_close(by_hand, by_autograd, rtol=1e-4, atol=1e-6)


def test_a_member_that_is_never_the_minimum_gets_no_gradient(ensemble):
    inputs = torch.randn(7, 5, requires_grad=True)
    with torch.no_grad():
        ensemble.biases[-1][1] += 100.0
    ensemble.requires_grad_(False)
    (by_hand,) = torch.autograd.grad(ensemble(inputs).amin(0).sum(), inputs)
    (by_autograd,) = torch.autograd.grad(reference(ensemble, inputs).amin(0).sum(), inputs)
    torch.testing.assert_close(by_hand, by_autograd, rtol=1e-4, atol=1e-6)


def test_nan_gradients_are_passed_to_the_inputs(ensemble):
    """A NaN must not be taken for a zero gradient, or a broken critic would change the actor unnoticed."""
    inputs = torch.randn(7, 5, requires_grad=True)
    ensemble.requires_grad_(False)
    weights = torch.zeros(7)
    weights[3] = float("nan")
    (found,) = torch.autograd.grad((ensemble(inputs)[0] * weights).sum(), inputs)
    assert found[3].isnan().all()
    assert (found[[0, 1, 2, 4, 5, 6]] == 0.0).all()


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_squared_errors_and_gradients_match_autograd(ensemble, factor):
    inputs, targets = torch.randn(7, 5, requires_grad=True), torch.randn(7)
    wrt = [inputs, *ensemble.parameters()]
    values, loss = ensemble.errors(inputs, targets)
    outputs = reference(ensemble, inputs)
    expected = (outputs - targets).square().mean(1).sum()
    torch.testing.assert_close(values, outputs.detach())
    assert not values.requires_grad
    torch.testing.assert_close(loss, expected)
    by_hand = torch.autograd.grad(factor * loss, wrt)
    by_autograd = torch.autograd.grad(factor * expected, wrt)
    for one, other in zip(by_hand, by_autograd, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_out", [1, 4])
def test_mlp_values_and_gradients_match_autograd(num_out):
    torch.manual_seed(0)
    network = mlp((5, 16, 12, num_out))
    inputs = torch.randn(7, 5, requires_grad=True)
    wrt = [inputs, *network.parameters()]
    found, expected = network(inputs), torch.nn.Sequential.forward(network, inputs)
    torch.testing.assert_close(found, expected)
    by_hand = torch.autograd.grad(found.square().sum(), wrt)
    by_autograd = torch.autograd.grad(expected.square().sum(), wrt)
    for one, other in zip(by_hand, by_autograd, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_cached_views_follow_copies_and_new_storage(ensemble):
    """Views from before a copy, a load or a move would show the old weights."""
    inputs = torch.randn(7, 5)
    before = ensemble(inputs).detach()
    other = copy.deepcopy(ensemble)
    with torch.no_grad():
        for p in other.parameters():
            p.data = p * 2.0  # as a move to another device: the same parameter with new memory
    torch.testing.assert_close(other(inputs), reference(other, inputs))
    torch.testing.assert_close(ensemble(inputs), before)
    ensemble.load_state_dict(other.state_dict())
    torch.testing.assert_close(ensemble(inputs), other(inputs))


def test_other_dtypes_and_shapes_use_torch():
    network = mlp((3, 4, 2)).double()
    assert network(torch.randn(5, 3, dtype=torch.float64)).dtype == torch.float64
    assert mlp((3, 4, 2))(torch.randn(2, 5, 3)).shape == (2, 5, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert EnsembleMLP((3, 4, 1), num_members=2)(torch.randn(5, 3)).dtype == torch.bfloat16


def test_errors_use_the_precision_of_forward_hooks(ensemble):
    """`errors` is not a forward call, so it must not bypass the hooks that set the precision."""
    inputs, targets = torch.randn(7, 5), torch.randn(7)
    exact, _ = ensemble.errors(inputs, targets)
    compute_in_bf16([ensemble])
    rounded, loss = ensemble.errors(inputs, targets)
    assert torch.equal(rounded, ensemble(inputs).detach())
    assert not torch.equal(rounded, exact)
    assert loss.requires_grad
