"""Weights, statistics, observations and noise that scripts/record-lerobot-policies and the tests make alike. numpy only."""

import zlib

import numpy as np

# scheduler, noise levels, steps, schedule, prediction, clip
SCHEDULES = (
    ("ddpm", 100, 100, "squaredcos_cap_v2", "epsilon", 1.0),
    ("ddpm", 50, 12, "squaredcos_cap_v2", "sample", 1.0),
    ("ddpm", 20, 20, "linear", "epsilon", None),
    ("ddim", 100, 10, "squaredcos_cap_v2", "epsilon", 1.0),
    ("ddim", 100, 16, "scaled_linear", "sample", 0.7),
)


def noise(name, shape):
    """Values of N(0, 1) that depend on the name only."""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)


def is_fixed(key):
    """Buffers that the constructor computes."""
    return key.endswith(("pos_enc", "pos_grid"))


def weights_by_rule(shapes, fixed):
    """Weights of about the size of trained ones."""
    found = {}
    for key, shape in sorted(shapes.items()):
        if key in fixed:
            found[key] = np.array(fixed[key], np.float32)
        elif key.endswith("num_batches_tracked"):
            found[key] = np.array(7, np.int64)
        elif key.endswith("running_var"):
            found[key] = 0.5 + np.abs(noise(key, shape))
        elif len(shape) == 1:  # biases, and scales of normalizations around 1
            found[key] = 0.1 * noise(key, shape) + np.float32(key.endswith("weight"))
        else:
            found[key] = noise(key, shape) / np.float32(np.sqrt(np.prod(shape[1:])))
    return found


def dataset_statistics(features):
    """Statistics of a dataset; those of an image have the shape [3, 1, 1]."""
    found = {}
    for key, feature in features.items():
        shape = (3, 1, 1) if len(feature.shape) == 3 else tuple(feature.shape)
        if len(feature.shape) == 3:
            mean, std = 0.45 + 0.05 * noise(f"{key} mean", shape), 0.2 + 0.02 * np.abs(noise(f"{key} std", shape))
        else:
            mean, std = noise(f"{key} mean", shape), 0.5 + np.abs(noise(f"{key} std", shape))
        found[key] = {"mean": mean, "std": std, "min": mean - 2 * std, "max": mean + 3 * std}
    return found


def observation(shapes, step):
    """Two rows of each feature, as LeRobot takes them: images are [3, H, W] from 0 to 1."""
    found = {}
    for key, shape in shapes.items():
        if len(shape) == 3:
            rng = np.random.default_rng(zlib.crc32(f"{key} {step}".encode()))
            found[key] = rng.integers(0, 256, (2, *shape), np.uint8).astype(np.float32) / np.float32(255.0)
        else:
            found[key] = noise(f"{key} {step}", (2, *shape))
    return found


def demonstration(num_steps):
    """Normalized actions of two rows, and which of them are padding."""
    padded = np.zeros((2, num_steps), np.bool_)
    padded[1, 5:] = True
    return np.tanh(noise("demonstration", (2, num_steps, 3))), padded


def stand_in(x, level):
    """Instead of a network."""
    return 0.6 * x + 0.02 * level - 0.1
