"""The server of a policy is killed or hangs in the middle of an episode: the arm holds, and continues when it is back."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.types import Purpose
from dovetail.policies.remote.handshake import make_token
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.inference_timeout import patient_actor
from dovetail.runs.folder import RunFolder
from dovetail.testing.socket_arm_process import ArmProcess
from dovetail.weights.store import DiskWeightStore
from support.live_host import order
from support.policy_servers import serve_process
from support.waiting import wait_until

CONFIG = """
task: {type: "dovetail.testing.blocking_plugins:BlockingTask"}
robot: {type: "dovetail.testing.socket_arm:SocketArm", address: "ADDRESS"}
operator: none
policy: {type: gaussian_mlp, hidden: [8]}
algorithm: {type: rlpd, hidden: [8]}
actor: {type: sequential, inference_timeout_s: 0.5, heartbeat_timeout_s: 20.0}
safety: {controller_watchdog: true}
"""
POLICIES = {
    "dovetail": {"type": "remote", "token_file": "TOKEN"},
    "openpi": {
        "type": "openpi",
        "api_key_file": "TOKEN",
        "keys": {"state": {"joint_pos": ["joint_pos"], "gripper": ["gripper"]}},
        "horizon": 1,
    },
}
STILL_S = 1.0


class Arm:
    """An arm on the real clock behind a socket, whose policy a real server process computes."""

    def __init__(self, folder, stack, *, layout, protocol):
        self.arm = stack.enter_context(ArmProcess())
        self._folder, self._stack = folder, stack
        (folder / "c.yaml").write_text(CONFIG.replace("ADDRESS", self.arm.address))
        run = RunFolder.create(folder / "run", load([folder / "c.yaml"]))
        assembly = build_assembly(run.config)
        DiskWeightStore(run.weights).publish(assembly.trainable().weights())
        assembly.close()
        token = make_token(folder / "token")
        self._serve = (str(run.path), "--protocol", protocol, "--token-file", str(token), "--port")
        self.process, self.address = self.serve("0")
        policy = {key: str(token) if value == "TOKEN" else value for key, value in POLICIES[protocol].items()} | {
            "address": self.address,
            "timeout_s": 2.0,
        }
        config = load([folder / "c.yaml", {"policy": policy, "actor": {"layout": layout}}])
        self._ending = threading.Event()
        self._assembly = build_assembly(config, should_stop=self._ending.is_set)
        stack.callback(self._assembly.close)
        self.actor, self.episode, self.error = None, None, None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        stack.callback(self.end)

    def serve(self, port):
        return self._stack.enter_context(serve_process(*self._serve, port, folder=self._folder))

    def restart(self):
        self.serve(self.address.rpartition(":")[2])

    def _run(self):
        try:
            self.actor = self._assembly.actor_for(Purpose.ONLINE)
            self.episode = self.actor.run(order())
        except Exception as error:
            self.error = error

    def wait_for_motion(self):
        since_ns = time.monotonic_ns()
        self._wait_until(lambda: len(self.arm.motions(after_ns=since_ns)) > 5)

    def wait_for_hold(self):
        self._wait_until(lambda: not self.arm.motions(after_ns=time.monotonic_ns() - round(STILL_S * 1e9)))

    def _wait_until(self, condition):
        """Fail if the episode ends before."""
        wait_until(lambda: condition() or not self._thread.is_alive(), timeout_s=120.0)
        assert self._thread.is_alive(), self.error or self.actor.fault

    def end(self):
        self._ending.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive()


def assert_held_and_continued(arm):
    """One episode without a fault: it acts, holds and acts again; no command was beyond a limit."""
    assert arm.error is None and arm.actor.fault is None
    assert arm.arm.violations() == []
    acts = arm.episode.column("chunk_id") >= 0  # -1: no chunk
    before, after = np.flatnonzero(acts)[[0, -1]]
    gap = ~acts[before:after]
    assert gap.sum() >= 5  # a loaded machine ticks late
    held = arm.episode.column("executed")[before:after][gap]
    assert np.abs(np.diff(held, axis=0)).max() < 0.5  # it eases, then stays


@pytest.mark.extended
@pytest.mark.parametrize("layout", ["one_process", "processes"])
@pytest.mark.parametrize("protocol", ["dovetail", "openpi"])
def test_arm_holds_while_its_policy_server_is_killed_and_continues_after_its_restart(tmp_path, layout, protocol):
    with ExitStack() as stack:
        arm = Arm(tmp_path, stack, layout=layout, protocol=protocol)
        arm.wait_for_motion()
        arm.process.send_signal(signal.SIGKILL)
        arm.process.wait()
        arm.wait_for_hold()
        arm.restart()
        arm.wait_for_motion()
        arm.end()
        assert_held_and_continued(arm)


@pytest.mark.extended
@pytest.mark.parametrize("layout", ["one_process", "processes"])
@pytest.mark.parametrize("protocol", ["dovetail", "openpi"])
def test_time_out_of_a_server_that_hangs_means_hold(tmp_path, layout, protocol):
    """`inference_timeout_s` alone would make a fault of it."""
    with ExitStack() as stack:
        arm = Arm(tmp_path, stack, layout=layout, protocol=protocol)
        arm.wait_for_motion()
        arm.process.send_signal(signal.SIGSTOP)
        arm.wait_for_hold()
        time.sleep(3.0)  # a request times out
        assert arm.error is None
        arm.process.send_signal(signal.SIGCONT)
        arm.wait_for_motion()
        arm.end()
        assert_held_and_continued(arm)


@pytest.mark.parametrize(
    ("settings", "longest_s"),
    [
        ({}, 0.5),
        ({"policy": {"type": "remote", "address": "a:1", "connect_timeout_s": 3, "timeout_s": 4}}, 8.0),
        ({"policy": {"type": "remote", "address": "a:1", "connect_timeout_s": 0.1, "timeout_s": 0.1}}, 1.2),
        ({"policy": POLICIES["openpi"] | {"address": "a:1", "connect_timeout_s": 3, "timeout_s": 20}}, 24.0),
        (
            {
                "policy": {
                    "type": "residual",
                    "base": POLICIES["openpi"] | {"address": "a:1", "connect_timeout_s": 1, "timeout_s": 2},
                },
                "algorithm": "residual",
            },
            4.0,
        ),
        (
            {
                "policy_server": {
                    "address": "a:1",
                    "connect_timeout_s": 1,
                    "timeout_s": 2,
                    "weights_timeout_s": 30,
                }
            },
            34.0,
        ),
    ],
)
def test_inference_counts_as_hung_only_after_a_request_has_timed_out(tmp_path, settings, longest_s):
    (tmp_path / "c.yaml").write_text(CONFIG.replace("ADDRESS", "localhost:1"))
    actor = patient_actor(load([tmp_path / "c.yaml", settings])).config
    assert actor.inference_timeout_s == pytest.approx(longest_s)
