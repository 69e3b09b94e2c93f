"""A run whose policy computes on a server: data and weights equal those of a local policy, also if the server is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.config.policy_server import LearningServerConfig
from dovetail.config.trust import mark_trusted
from dovetail.core.errors import PolicyError, PolicyUnreachable, UsageError
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.episodes.log import EpisodeLog
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.handshake import client_handshake, make_token
from dovetail.policies.remote.requests import act_message
from dovetail.policies.remote.trained import TrainedRemotePolicy
from dovetail.policies.remote.weights import IncomingWeights, use_message, weight_messages
from dovetail.policies.remote.wire import Message
from dovetail.robot_host.following_policy import FollowingPolicy
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.serve.server import PolicyServer
from dovetail.serve.weights import ServedWeights
from support.policy_servers import ROBOT, TOKEN, client, inputs, serve_process
from support.run_digests import episode_digests, weight_digests
from support.waiting import wait_until

RUN, OTHER_RUN = "a" * 32, "b" * 32
STILL = ActContext(deterministic=True)
CONFIG = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 8}
robot: "dovetail.testing.fakes:FakeArm"
operator: none
policy: {type: gaussian_mlp, hidden: [8]}
algorithm: {type: rlpd, batch_size: 8, hidden: [8]}
learner: {bc_updates: 0, warmup_updates: 0, utd: 0.25}
run: {demos: 0, env_steps: 40, eval_episodes: 2, untrained_episodes: 1}
"""


def make(seed: int = 3) -> GaussianMLP:
    return GaussianMLP(GaussianMLPConfig(hidden=(8,)), robot=ROBOT, seed=seed)


def snapshot(version: int, seed: int) -> WeightSnapshot:
    return WeightSnapshot(version=version, components=make(seed).weights(), hashes={})


@contextmanager
def receiving(log=None, *, receive=True, port=0):
    policy = FollowingPolicy(make, takes_weights=True)
    weights = ServedWeights(
        policy, max_bytes=policy.max_weight_bytes if receive else 0, log=(log if log is not None else []).append
    )
    server = PolicyServer(policy, token=TOKEN, weights=weights, max_rows=1)
    address = server.listen(port=port)
    stopped = threading.Event()
    thread = threading.Thread(target=server.run, args=(stopped.is_set,))
    thread.start()
    try:
        yield address
    finally:
        stopped.set()
        thread.join(10)


@pytest.fixture
def arm(monkeypatch):
    monkeypatch.setenv("TEST_TOKEN", TOKEN.decode())
    made = []

    def connect(address, *, waits=False, run=RUN, **settings):
        config = LearningServerConfig(address=address, token_env="TEST_TOKEN", **settings)
        untrained = make(4).weights
        made.append(TrainedRemotePolicy(config, spec=make().spec, run=run, untrained=untrained, waits=waits))
        return made[-1]

    yield connect
    for policy in made:
        policy.close()


def ask(connection: Connection, message: Message) -> Message:
    connection.send(message, deadline_s=time.monotonic() + 10)
    return connection.receive(deadline_s=time.monotonic() + 10)


def loads(policy: TrainedRemotePolicy, weights: WeightSnapshot) -> bool:
    """False: the server has not noticed yet that the other run has left."""
    try:
        policy.load(weights)
    except PolicyError:
        return False
    return True


def answers(policy: TrainedRemotePolicy) -> bool:
    try:
        policy.act(inputs(policy.spec), STILL)
    except PolicyError:
        return False
    return True


def local(seed: int):
    policy = make(seed)
    return policy.act(inputs(policy.spec), STILL).actions


def test_server_acts_with_the_weights_that_the_arm_loads_and_gets_them_once(arm):
    log: list[str] = []
    with receiving(log) as address:
        one, other = arm(address), arm(address)
        for version, seed in ((1, 11), (2, 12), (1, 11)):  # the last one is a rollback
            for policy in (one, other):
                policy.load(snapshot(version, seed))
                chunk = policy.act(inputs(policy.spec), STILL)
                assert chunk.policy_version == version
                np.testing.assert_array_equal(chunk.actions, local(seed))
    assert log == ["weights version 1", "weights version 2", "weights version 1"]


def test_older_weights_of_another_arm_never_answer_a_request(arm):
    with receiving() as address:
        one, other = arm(address), arm(address)
        one.load(snapshot(5, 15))
        other.load(snapshot(4, 14))
        assert one.act(inputs(one.spec), STILL).policy_version == 5
        assert other.act(inputs(other.spec), STILL).policy_version == 5


def test_arms_that_send_the_same_weights_at_once_continue_with_the_next_ones():
    """Both get the answer `send`. What the second one has sent is not taken for a part of the next version."""
    with receiving() as address, ExitStack() as ending:
        connections = []
        for _ in range(2):
            connections.append(Connection(socket.create_connection(address.rsplit(":", 1))))
            ending.callback(connections[-1].close)
            client_handshake(connections[-1], TOKEN, deadline_s=time.monotonic() + 10)
        for version in (1, 2, 3, 4):
            weights = snapshot(version, version)
            use = use_message(weights, run=RUN)
            assert [ask(one, use).kind for one in connections] == ["send", "send"]
            for one in connections:
                for part in weight_messages(weights):
                    assert ask(one, part).kind == "done"
            assert [ask(one, use).kind for one in connections] == ["using", "using"]


@pytest.mark.parametrize("waits", [False, True])
def test_arm_that_others_set_back_again_and_again_holds_and_asks_again(arm, waits):
    """Arms with different versions connect again after a restart: an older one may come between `use` and `act` twice."""
    with receiving() as address:
        one, other = arm(address, waits=waits), arm(address)
        one.load(snapshot(2, 12))
        left, inform = [1, 1, 1], one._inform

        def between(connection):
            inform(connection)
            if left:
                left.pop()
                other.load(snapshot(1, 11))

        one._inform = between
        if not waits:
            with pytest.raises(PolicyUnreachable, match="older weights than the request names"):  # the arm holds
                one.act(inputs(one.spec), STILL)
            left.clear()
        chunk = one.act(inputs(one.spec), STILL)
        assert chunk.policy_version == 2
        np.testing.assert_array_equal(chunk.actions, local(12))


def test_restarted_server_gets_the_weights_again_and_a_missing_one_means_hold(arm):
    with receiving() as address:
        policy = arm(address)
        policy.load(snapshot(1, 11))
        policy.act(inputs(policy.spec), STILL)
    with pytest.raises(PolicyUnreachable, match="cannot connect"):
        policy.act(inputs(policy.spec), STILL)
    policy.reset()  # on the real clock, the next episode holds too
    policy.load(snapshot(2, 12))
    with receiving(port=int(address.rpartition(":")[2])):
        chunk = policy.act(inputs(policy.spec), STILL)
    assert chunk.policy_version == 2
    np.testing.assert_array_equal(chunk.actions, local(12))


def test_plain_client_is_refused_until_weights_have_arrived(arm):
    with receiving() as address, client(address) as plain:
        with pytest.raises(PolicyUnreachable, match=r"no weights have arrived yet.*Start the run that sends them"):
            plain.warmup()
        sender = arm(address)
        sender.warmup()  # sends nothing
        with pytest.raises(PolicyUnreachable, match="no weights have arrived yet"):
            plain.act(inputs(plain.spec), STILL)
        sender.load(snapshot(1, 11))
        chunk = plain.act(inputs(plain.spec), STILL)
        assert chunk.policy_version == 1
        np.testing.assert_array_equal(chunk.actions, local(11))


def test_run_without_trained_weights_acts_with_its_own_untrained_ones(arm):
    """Not with those of the run before, nor with those that the server made (seed 3)."""
    with receiving() as address:
        earlier = arm(address)
        earlier.load(snapshot(9, 19))
        earlier.close()
        policy = arm(address, run=OTHER_RUN)
        wait_until(lambda: answers(policy))
        chunk = policy.act(inputs(policy.spec), STILL)
    assert chunk.policy_version == 0
    np.testing.assert_array_equal(chunk.actions, local(4))


def test_untrained_weights_are_not_sent_if_the_server_made_the_same(arm, monkeypatch):
    sent = []
    monkeypatch.setattr("dovetail.policies.remote.trained.weight_messages", lambda snapshot: sent.append(1) or [])
    with receiving() as address:
        policy = arm(address)
        policy._untrained = make().weights  # seed 3, as the server
        chunk = policy.act(inputs(policy.spec), STILL)
    assert chunk.policy_version == 0 and not sent
    np.testing.assert_array_equal(chunk.actions, local(3))


def test_second_run_is_refused_while_the_first_is_connected_and_takes_over_later(arm):
    log: list[str] = []
    with receiving(log) as address, client(address) as plain:
        first, second = arm(address), arm(address, run=OTHER_RUN)
        first.load(snapshot(5, 15))
        for call in (lambda: second.load(snapshot(9, 19)), lambda: second.act(inputs(second.spec), STILL)):
            with pytest.raises(
                PolicyError, match=r"another run is connected to this server.*or start another server"
            ):
                call()
        np.testing.assert_array_equal(first.act(inputs(first.spec), STILL).actions, local(15))
        first.close()
        wait_until(lambda: loads(second, snapshot(4, 14)))
        chunk = second.act(inputs(second.spec), STILL)  # of another run: an older version is not outdated
        assert chunk.policy_version == 4
        np.testing.assert_array_equal(chunk.actions, local(14))
        with pytest.raises(PolicyError, match="another run is connected"):
            first.act(inputs(first.spec), STILL)
        np.testing.assert_array_equal(plain.act(inputs(plain.spec), STILL).actions, local(14))
    assert log.count("another run takes over") == 1


def test_weights_of_a_run_that_left_answer_neither_the_next_run_nor_a_plain_client(arm):
    """Both runs have a version 5. The second one is connected, and its weights are still on their way."""
    with receiving() as address, client(address) as plain:
        first = arm(address)
        first.load(snapshot(5, 15))
        first.close()
        host, port = address.split(":")
        with contextlib.closing(Connection(socket.create_connection((host, int(port))))) as second:
            client_handshake(second, TOKEN, deadline_s=time.monotonic() + 10)
            use = use_message(snapshot(5, 16), run=OTHER_RUN)
            wait_until(lambda: ask(second, use).kind == "send")
            request = act_message(1, inputs(first.spec), STILL, min_version=5, run=OTHER_RUN)
            assert ask(second, request).kind == "outdated"
            with pytest.raises(PolicyUnreachable, match="no weights have arrived yet"):
                plain.act(inputs(plain.spec), STILL)
            for part in weight_messages(snapshot(5, 16)):
                assert ask(second, part).kind == "done"
            assert ask(second, use).kind == "using" and ask(second, request).kind == "chunk"
            assert ask(second, Message(kind="use", fields=use.fields | {"run": None})).kind == "error"


def test_weights_without_a_request_to_use_them_are_refused():
    with receiving() as address:
        host, port = address.split(":")
        with contextlib.closing(Connection(socket.create_connection((host, int(port))))) as guest:
            client_handshake(guest, TOKEN, deadline_s=time.monotonic() + 10)
            answer = ask(guest, next(iter(weight_messages(snapshot(1, 11)))))
    assert "should follow a request to use them" in answer.fields["message"]


def test_resumed_run_has_the_same_id_and_a_copy_of_its_folder_another(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    without = RunFolder.create(tmp_path / "without", load([path]))
    assert without.run_id() is None
    config = load([path], ["policy_server.address=localhost:1"])
    run, other = RunFolder.create(tmp_path / "r", config), RunFolder.create(tmp_path / "s", config)
    assert run.run_id() == RunFolder.open(run.path).run_id() != other.run_id()
    copy = shutil.copytree(run.path, tmp_path / "copy")
    mark_trusted(copy)
    assert RunFolder.open(copy).run_id() != run.run_id()


def test_server_without_receive_and_foreign_or_huge_weights_are_refused(arm):
    with receiving(receive=False) as address, pytest.raises(PolicyError, match=r"Start it with --receive"):
        arm(address).load(snapshot(1, 11))
    with receiving() as address:
        policy = arm(address)
        policy.load(snapshot(1, 11))
        wrong = {name: dict(arrays) for name, arrays in snapshot(2, 12).components.items()}
        name = next(iter(wrong["actor"]))
        wrong["actor"][name] = np.full_like(wrong["actor"][name], np.nan)
        with pytest.raises(PolicyError, match=r"non-finite|not finite"):
            policy.load(WeightSnapshot(version=2, components=wrong, hashes={}))
    incoming = IncomingWeights(max_bytes=100)
    with pytest.raises(UsageError, match="larger than the policy"):
        incoming.add(Message(kind="weights", fields={"component": "a"}, arrays={"x": np.zeros(26, np.float32)}))


def test_weights_with_other_hashes_than_sha256_are_taken(arm):
    """On Ray, arms get weights whose components are named by their version."""
    with receiving() as address:
        policy, made = arm(address), snapshot(1, 11)
        names = {name: f"{name}@1" for name in made.components}
        policy.load(WeightSnapshot(version=1, components=made.components, hashes=names))
        np.testing.assert_array_equal(policy.act(inputs(policy.spec), STILL).actions, local(11))


def test_weights_are_sent_in_parts_and_arrive_equal():
    arrays = {f"w{i}": np.full(3, i, np.float32) for i in range(600)}
    sent = WeightSnapshot(version=1, components={"big": arrays, "small": {"w": np.zeros(2)}}, hashes={})
    parts = list(weight_messages(sent))
    assert [len(part.arrays) for part in parts] == [256, 256, 88, 1]


def test_on_policy_learning_is_refused_with_a_server(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG.replace("{type: rlpd, batch_size: 8, hidden: [8]}", "ppo"))
    config = load([path], ["policy_server.address=localhost:1"])
    with pytest.raises(UsageError, match="is on-policy and computes next to its worlds"):
        build_assembly(config)


def test_learning_with_a_killed_server_equals_learning_with_a_local_policy(tmp_path, monkeypatch):
    """The server is a real process without the run's folder. It is killed in an episode and started again."""
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    InlineRun(RunFolder.create(tmp_path / "local", load([path]))).run()
    token = make_token(tmp_path / "token")
    serve = (str(path), "--receive", "--token-file", str(token), "--port")
    calls, act = [], TrainedRemotePolicy.act
    with ExitStack() as servers:
        process, address = servers.enter_context(serve_process(*serve, "0", folder=tmp_path))

        def restart() -> None:
            servers.enter_context(serve_process(*serve, address.rpartition(":")[2], folder=tmp_path))

        restarting = threading.Thread(target=restart)

        def killing_act(self, observations, context):
            calls.append(1)
            if len(calls) == 20:  # in an online episode
                process.kill()
                process.wait()
                restarting.start()
            return act(self, observations, context)

        monkeypatch.setattr(TrainedRemotePolicy, "act", killing_act)
        config = load([path], [f"policy_server.address={address}", f"policy_server.token_file={token}"])
        InlineRun(RunFolder.create(tmp_path / "served", config)).run()
        restarting.join()
    assert process.returncode == -signal.SIGKILL and len(calls) > 40
    local, served = tmp_path / "local", tmp_path / "served"
    assert episode_digests(served) == episode_digests(local) and len(episode_digests(local)) > 5
    assert weight_digests(served) == weight_digests(local)


@pytest.mark.extended
@pytest.mark.parametrize("override", ["actor.layout=processes", "runtime=ray"])
def test_resumed_run_continues_with_the_server_that_still_runs(tmp_path, override):
    """A run is killed while it learns. Another run is then served, and the first one resumes after it."""
    path, token = tmp_path / "c.yaml", make_token(tmp_path / "token")
    path.write_text(CONFIG)
    serve = (str(path), "--receive", "--token-file", str(token), "--port", "0")

    def start(*words):
        command = [sys.executable, "-m", "dovetail.cli", "run", *words, "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, process_group=0
        )

    def finish(process):
        errors = process.communicate(timeout=240)[1]
        assert process.returncode == 0, errors

    with serve_process(*serve, folder=tmp_path) as (_, address):
        server = (f"policy_server.address={address}", f"policy_server.token_file={token}")
        process = start(str(path), *server, override, "run.env_steps=1000000", "--name", "first")
        folder = tmp_path / "runs" / "first"
        wait_until(lambda: process.poll() is not None or num_episodes(folder) >= 3, timeout_s=120, what="episodes")
        refused = start(str(path), *server, "--name", "second")
        errors = refused.communicate(timeout=120)[1]
        assert process.poll() is None, process.communicate()
        assert "another run is connected to this server" in errors
        assert refused.returncode == 1
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        time.sleep(10 if "ray" in override else 1)  # the arm's processes notice it
        finish(start(str(path), *server, "--name", "third"))
        before = num_episodes(folder)
        finish(start("--resume", "first", f"run.env_steps={8 * (before + 5)}"))
        assert num_episodes(folder) > before


def num_episodes(folder):
    return len(EpisodeLog(folder / "episodes").ids()) if (folder / "episodes").is_dir() else 0
