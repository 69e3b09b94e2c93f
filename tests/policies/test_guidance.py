"""Guidance against values computed by hand and against flows with a closed form."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import UsageError
from dovetail.policies.flows.guidance import guidance_gain, guided_velocity, prefix_weights

E = math.e - 1.0
HORIZON, NUM_ACTIONS = 4, 2


class TestWeights:
    """H = 8 in all tests; s = 3 leaves 5 valid actions of the old chunk."""

    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            ("zeros", [1, 1, 0, 0, 0, 0, 0, 0]),
            ("ones", [1, 1, 1, 1, 1, 0, 0, 0]),
            ("linear", [1, 1, 0.75, 0.5, 0.25, 0, 0, 0]),
            ("exp", [1, 1, 0.487551, 0.188770, 0.041324, 0, 0, 0]),
        ],
    )
    def test_by_hand(self, schedule, expected):
        weights = prefix_weights(schedule, delay=2, execution_horizon=3, chunk_length=8)
        assert weights.dtype == torch.float32
        np.testing.assert_allclose(weights, expected, atol=2e-6)

    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            ("zeros", [0, 0, 0, 0, 0, 0, 0, 0]),
            ("ones", [1, 1, 1, 1, 1, 0, 0, 0]),
            ("linear", [5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0, 0]),
            ("exp", [w * math.expm1(w) / E for w in (5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0, 0)]),
        ],
    )
    def test_without_delay(self, schedule, expected):
        weights = prefix_weights(schedule, delay=0, execution_horizon=3, chunk_length=8)
        np.testing.assert_allclose(weights, expected, atol=1e-6)

    @pytest.mark.parametrize("schedule", ["zeros", "ones", "linear", "exp"])
    @pytest.mark.parametrize("delay", [2, 3, 8, 20])
    def test_delay_longer_than_the_valid_actions(self, schedule, delay):
        """With d > H - s only the H - s = 2 valid actions have a weight."""
        weights = prefix_weights(schedule, delay=delay, execution_horizon=6, chunk_length=8)
        assert weights.tolist() == [1, 1, 0, 0, 0, 0, 0, 0]

    @pytest.mark.parametrize("schedule", ["zeros", "ones", "linear", "exp"])
    @pytest.mark.parametrize("execution_horizon", [8, 9])
    def test_old_chunk_without_valid_actions(self, schedule, execution_horizon):
        weights = prefix_weights(schedule, delay=2, execution_horizon=execution_horizon, chunk_length=8)
        assert not weights.any()

    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            ("zeros", [1, 1, 1, 0, 0, 0, 0, 0]),
            ("ones", [1, 1, 1, 1, 1, 1, 1, 0]),
            ("linear", [1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0]),
            # w (e^w - 1) / (e - 1) of the same: 0.8 * 1.225541 / 1.718282 and so on
            ("exp", [1, 1, 1, 0.570589, 0.287072, 0.114492, 0.025770, 0]),
        ],
    )
    def test_execution_horizon_of_one_tick(self, schedule, expected):
        """Inference at each tick, as during a correction: s = 1 leaves 7 valid actions."""
        weights = prefix_weights(schedule, delay=3, execution_horizon=1, chunk_length=8)
        np.testing.assert_allclose(weights, expected, atol=2e-6)

    @given(
        st.sampled_from(["zeros", "ones", "linear", "exp"]),
        st.integers(0, 40),
        st.integers(1, 40),
        st.integers(1, 32),
    )
    def test_weights_are_one_then_decreasing_then_zero(self, schedule, delay, execution_horizon, chunk_length):
        weights = prefix_weights(
            schedule, delay=delay, execution_horizon=execution_horizon, chunk_length=chunk_length
        ).numpy()
        num_valid = max(chunk_length - execution_horizon, 0)
        assert (weights[: min(delay, num_valid)] == 1.0).all()
        assert (weights[num_valid:] == 0.0).all()
        assert (np.diff(weights) <= 0.0).all()
        assert ((weights >= 0.0) & (weights <= 1.0)).all()

    @pytest.mark.parametrize("wrong", [{"delay": -1}, {"execution_horizon": 0}])
    def test_invalid_arguments_are_refused(self, wrong):
        with pytest.raises(UsageError, match="delay >= 0 and execution_horizon >= 1"):
            prefix_weights("exp", **({"delay": 1, "execution_horizon": 1} | wrong), chunk_length=8)


@pytest.mark.parametrize(
    ("t", "expected"),
    # (1-t)/t * (t^2 + (1-t)^2) / (1-t)^2; at 0 it is infinite, at .1 it is 9.11
    [(0.0, 5.0), (0.1, 5.0), (0.2, 4.25), (0.4, 13 / 6), (0.5, 2.0), (0.6, 13 / 6), (0.8, 4.25), (0.99, 5.0)],
)
def test_gain_by_hand(t, expected):
    assert guidance_gain(t, beta=5.0) == pytest.approx(expected)


@pytest.mark.parametrize("t", [-0.1, 1.0])
def test_times_outside_the_flow_are_refused(t):
    with pytest.raises(UsageError, match=r"time in \[0, 1\)"):
        guidance_gain(t, beta=5.0)


# ---- a linear flow: v(x, t) = A x + b over the flattened chunk, so x1 = (I + (1-t) A) x + (1-t) b


@pytest.fixture
def linear():
    rng = np.random.default_rng(0)
    size = HORIZON * NUM_ACTIONS
    return rng.normal(0, 0.5, (size, size)), rng.normal(size=size)


@pytest.fixture
def chunk():
    """x and target of one batch, and weights that ignore the last action."""
    rng = np.random.default_rng(1)
    x, target = rng.normal(size=(2, 3, HORIZON, NUM_ACTIONS))
    return torch.tensor(x), torch.tensor(target), torch.tensor([1.0, 0.6, 0.2, 0.0], dtype=torch.float64)


def as_flow(linear):
    matrix, offset = (torch.tensor(part) for part in linear)
    return lambda x, t: (x.flatten(1) @ matrix.T + offset).view_as(x)


def by_hand(linear, x, t, target, weights, *, beta=5.0, identity=False):
    matrix, offset = linear
    x, target = (part.numpy().reshape(len(x), -1) for part in (x, target))
    v = x @ matrix.T + offset
    error = np.repeat(weights, NUM_ACTIONS) * (target - (x + (1 - t) * v))
    jacobian = np.eye(len(offset)) if identity else np.eye(len(offset)) + (1 - t) * matrix
    gain = beta if t == 0 else min((1 - t) / t * (t**2 + (1 - t) ** 2) / (1 - t) ** 2, beta)
    guided = v + gain * error @ jacobian  # rows times J is J^T times columns
    return torch.tensor(guided).view(len(x), HORIZON, NUM_ACTIONS)


@pytest.mark.parametrize("t", [0.0, 0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("jacobian", ["vjp", "identity"])
def test_guided_velocity_of_a_linear_flow_by_hand(linear, chunk, t, jacobian):
    x, target, weights = chunk
    got = guided_velocity(as_flow(linear), x, t, target=target, weights=weights, jacobian=jacobian)
    expected = by_hand(linear, x, t, target, weights.numpy(), identity=jacobian == "identity")
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_guided_linear_flow_over_all_steps_by_hand(linear, chunk):
    x, target, weights = chunk
    expected = x.clone()
    for step in range(5):
        t = step / 5
        x = x + guided_velocity(as_flow(linear), x, t, target=target, weights=weights) / 5
        expected = expected + by_hand(linear, expected, t, target, weights.numpy()) / 5
    np.testing.assert_allclose(x, expected, rtol=1e-10)


def test_guided_constant_flow_has_a_closed_form():
    """The Jacobian of v = b is the identity, and each step leaves 1 - w k(t) / 5 of the error.

    With w = 1 the first step, of gain 5, removes the whole error. With w = 0.5 the steps leave
    0.5 * 0.575 * (1 - 13/60) * (1 - 13/60) * 0.575 of it. With w = 0 all of it remains.
    """
    b, noise, target = (
        torch.tensor([0.3, -2.0]),
        torch.tensor([[[1.0, 4.0]] * 3]),
        torch.tensor([[[-1.0, 0.5]] * 3]),
    )
    weights, x = torch.tensor([1.0, 0.5, 0.0]), noise
    for step in range(5):
        x = x + guided_velocity(lambda x, t: b.expand_as(x), x, step / 5, target=target, weights=weights) / 5
    left = torch.tensor([0.0, 0.5 * 0.575**2 * (47 / 60) ** 2, 1.0])[:, None]
    torch.testing.assert_close(x, target + left * (noise + b - target))


def test_flow_with_a_fixed_end_is_only_changed_by_the_identity_jacobian():
    """v = (c - x) / (1 - t) always ends at c, so dx1/dx = 0 and guidance by vjp has no effect."""
    end = torch.tensor([[[0.7, -0.2]]])
    ends = {}
    for jacobian in ("vjp", "identity"):
        x = torch.zeros(1, 1, 2)
        for step in range(5):
            v = guided_velocity(
                lambda x, t: (end - x) / (1.0 - t),
                x,
                step / 5,
                target=torch.ones(1, 1, 2),
                weights=torch.ones(1),
                jacobian=jacobian,
            )
            x = x + v / 5
        ends[jacobian] = x
    torch.testing.assert_close(ends["vjp"], end)
    # the last step alone reaches the end; guidance then adds k(0.8) / 5 = 0.85 of the error
    torch.testing.assert_close(ends["identity"], end + 0.85 * (1.0 - end))


def test_identity_differs_from_the_jacobian(linear, chunk):
    """The identity, which LeRobot uses, is far off and never changes actions without weight."""
    x, target, weights = chunk
    flow = as_flow(linear)
    plain = flow(x, 0.2)
    true, other = (
        guided_velocity(flow, x, 0.2, target=target, weights=weights, jacobian=jacobian) - plain
        for jacobian in ("vjp", "identity")
    )
    assert (true - other).norm() > 0.3 * true.norm()
    assert not other[:, -1].any()
    assert true[:, -1].abs().min() > 0


@pytest.mark.parametrize("jacobian", ["vjp", "identity"])
@pytest.mark.parametrize("padding", [0.0, 1e9, math.inf, math.nan])
def test_targets_without_weight_have_no_effect(linear, chunk, jacobian, padding):
    x, target, weights = chunk
    other = target.clone()
    other[:, 3] = padding
    a, b = (
        guided_velocity(as_flow(linear), x, 0.4, target=y, weights=weights, jacobian=jacobian)
        for y in (target, other)
    )
    assert torch.equal(a, b)


def test_each_row_has_its_own_weights(linear, chunk):
    x, target, weights = chunk
    each = torch.stack([weights, weights * torch.tensor([1, 1, 0, 0]), torch.zeros(HORIZON)])
    together = guided_velocity(as_flow(linear), x, 0.4, target=target, weights=each)
    for row in range(3):
        alone = guided_velocity(
            as_flow(linear), x[row : row + 1], 0.4, target=target[row : row + 1], weights=each[row]
        )
        torch.testing.assert_close(together[row], alone[0])
    torch.testing.assert_close(together[2], as_flow(linear)(x, 0.4)[2])


def test_guidance_under_no_grad_gives_the_same_result(linear, chunk):
    x, target, weights = chunk
    layer = torch.nn.Linear(HORIZON * NUM_ACTIONS, HORIZON * NUM_ACTIONS).double()

    def flow(x, t):
        return layer(x.flatten(1)).view_as(x)

    expected = guided_velocity(flow, x, 0.2, target=target, weights=weights)
    with torch.no_grad():
        got = guided_velocity(flow, x, 0.2, target=target, weights=weights)
    assert torch.equal(got, expected)
    assert not got.requires_grad
    assert not x.requires_grad
    assert layer.weight.grad is None


@pytest.mark.parametrize("num_steps", [1, 5, 100])
def test_first_and_last_step_are_finite(linear, chunk, num_steps):
    x, target, weights = chunk
    for step in (0, num_steps - 1):
        v = guided_velocity(as_flow(linear), x, step / num_steps, target=target, weights=weights)
        assert v.isfinite().all()
