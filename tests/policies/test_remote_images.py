"""A remote policy receives images in the size that it looks at, not the camera's."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from dovetail.actor.board import Board, BoardLayout
from dovetail.actor.inference import Request, compute_chunk
from dovetail.core.errors import UsageError
from dovetail.core.images import resize_images, seen_robot
from dovetail.core.specs import ArraySpec, match
from dovetail.core.types import ActContext, Observation
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from support.policy_servers import ROBOT, ScriptedPolicy, client, serving

CAMERAS = ("front", "left", "right")
LARGE = replace(
    ROBOT,
    observation={
        "force": ROBOT.observation["force"],
        **{key: ArraySpec(shape=(480, 640, 3), dtype="uint8") for key in CAMERAS},
        "depth": ArraySpec(shape=(480, 640, 1), dtype="uint16"),
    },
)
SEEN = seen_robot(LARGE, 128, "interpolated")  # the handshake tells how


@contextmanager
def counted(address):
    """A relay to the server that counts the bytes of the client."""
    host, port = address.split(":")
    count = [0]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pump(source, target, counter):
            while data := source.recv(1 << 16):
                if counter is not None:
                    counter[0] += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

        def relay():
            near, _ = listener.accept()
            with near, socket.create_connection((host, int(port))) as far:
                back = threading.Thread(target=pump, args=(far, near, None))
                back.start()
                pump(near, far, count)
                back.join(10)

        thread = threading.Thread(target=relay)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", count
        thread.join(10)
        assert not thread.is_alive()


def frames():
    rng = np.random.default_rng(0)
    values = {key: rng.integers(0, 256, (480, 640, 3), np.uint8) for key in CAMERAS}
    return {
        "force": np.ones(2, np.float32),
        **values,
        "depth": rng.integers(0, 9000, (480, 640, 1), np.uint16),
    }


def scripted():
    policy = ScriptedPolicy()
    policy.spec = replace(policy.spec, observation=SEEN.observation)
    return policy


def test_frames_are_scaled_before_they_are_sent():
    policy, values = scripted(), frames()
    with serving(policy) as server, counted(server) as (address, count), client(address) as remote:
        match(LARGE, policy=remote.spec)
        before = count[0]
        remote.act({key: value[None] for key, value in values.items()}, ActContext())
        sent = count[0] - before
    seen_bytes = sum(np.prod(s.shape) * np.dtype(s.dtype).itemsize for s in SEEN.observation.values())
    assert seen_bytes <= sent < seen_bytes + 2000, "the images that the policy sees and a header"
    assert sent < sum(value.nbytes for value in values.values()) / 20
    received, _ = policy.calls[-1]
    for key in (*CAMERAS, "depth"):
        expected = resize_images(values[key], SEEN.observation[key])
        np.testing.assert_array_equal(received[key][0], expected)


def test_chunk_of_a_remote_policy_is_that_of_a_local_one_from_the_same_board():
    config = GaussianMLPConfig(inputs=("force", *CAMERAS, "depth"), history={"front": 4}, hidden=(8,))
    local = GaussianMLP(config, robot=SEEN, seed=3)
    board = Board(BoardLayout.of(LARGE, extras={}, horizon=1, num_rows=8))
    first = board.begin()
    for tick in range(3):
        row = board.observe(Observation(time_ns=tick, values=frames()))
    request = Request(row=row, first=first, delay=0, horizon=1, seed=0, deterministic=True, prefix=None)
    with serving(local) as address, client(address) as remote:
        np.testing.assert_array_equal(
            compute_chunk(board, remote, request).actions, compute_chunk(board, local, request).actions
        )


def test_images_of_another_aspect_ratio_are_refused():
    with serving(scripted()) as address, client(address) as remote:
        values = {key: value[None] for key, value in frames().items()}
        with pytest.raises(UsageError, match=r"'left' should be uint8\[B, 96, 128, 3\]"):
            remote.act({**values, "left": values["left"][:, :, :480]}, ActContext())
