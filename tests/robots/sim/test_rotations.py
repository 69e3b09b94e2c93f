"""Rotations against values computed by hand."""

import math

import numpy as np
import pytest

from dovetail.robots.sim import rotations as rot

HALF = math.sqrt(0.5)


def test_quarter_turn_about_z_takes_x_to_y() -> None:
    quarter = rot.quat_from_axis_angle((0, 0, 2), math.pi / 2)
    np.testing.assert_allclose(quarter, (HALF, 0, 0, HALF), atol=1e-12)
    np.testing.assert_allclose(rot.rotate(quarter, (1, 0, 0)), (0, 1, 0), atol=1e-12)


def test_product_applies_the_right_factor_first() -> None:
    about_x = rot.quat_from_axis_angle((1, 0, 0), math.pi / 2)
    about_z = rot.quat_from_axis_angle((0, 0, 1), math.pi / 2)
    # y --about x--> z --about z--> z
    np.testing.assert_allclose(rot.rotate(rot.quat_multiply(about_z, about_x), (0, 1, 0)), (0, 0, 1), atol=1e-12)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-5, 0.3, 3.0, math.pi - 1e-6])
def test_rotation_vector_round_trip(angle: float) -> None:
    vector = angle * np.array((1.0, -2.0, 2.0)) / 3.0
    np.testing.assert_allclose(rot.quat_to_rotvec(rot.quat_from_rotvec(vector)), vector, atol=1e-9)


def test_rotation_vector_takes_the_short_way() -> None:
    long_way = rot.quat_from_axis_angle((0, 0, 1), 1.5 * math.pi)
    np.testing.assert_allclose(rot.quat_to_rotvec(long_way), (0, 0, -0.5 * math.pi), atol=1e-12)


def test_matrix_round_trip_everywhere() -> None:
    rng = np.random.default_rng(0)
    for quat in [*rng.normal(size=(50, 4)), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]:
        unit = rot.quat_normalize(quat)
        back = rot.quat_from_matrix(rot.quat_to_matrix(unit))
        assert abs(abs(float(back @ unit)) - 1.0) < 1e-12


def test_zero_quaternion_is_refused() -> None:
    with pytest.raises(ValueError, match="not a rotation"):
        rot.quat_normalize((0, 0, 0, 0))


def test_clip_norm_keeps_direction() -> None:
    np.testing.assert_allclose(rot.clip_norm((3.0, 4.0, 0.0), 1.0), (0.6, 0.8, 0.0))
    np.testing.assert_allclose(rot.clip_norm((0.3, 0.4, 0.0), 1.0), (0.3, 0.4, 0.0))
