"""Which networks act with kernels of our own."""

import pytest

from dovetail.policies.vla.networks.sizes import GemmaSizes, Pi0Sizes, Pi05Sizes
from dovetail.policies.vla.sampler import fits_kernels


@pytest.mark.parametrize("sizes", [Pi0Sizes(), Pi05Sizes()])
def test_published_sizes_fit_the_kernels(sizes):
    assert fits_kernels(sizes.expert)


@pytest.mark.parametrize(
    "change",
    [
        {"width": 96},  # of the tiny model: Triton's ranges are powers of two
        {"width": 384},  # of the small one
        {"width": 32},
        {"head_size": 96},
        {"head_size": 16},
        {"num_heads": 3, "head_size": 32},
        {"mlp_width": 192},
        {"num_kv_heads": 2},
    ],
)
def test_other_sizes_are_compiled_by_torch(change):
    assert not fits_kernels(GemmaSizes(**{"width": 1024, "mlp_width": 4096, **change}))
