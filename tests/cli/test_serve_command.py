"""`dovetail serve` in another process, with a real kill; and what it refuses."""

from __future__ import annotations

import signal
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dovetail.api.policy import following_policy
from dovetail.api.weights import find_weights
from dovetail.config.load import load
from dovetail.core.errors import PolicyError
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow
from dovetail.policies.remote.policy import RemoteConfig, RemotePolicy
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.testing.fake_learning import FakePolicy
from dovetail.weights.store import DiskWeightStore
from support.command_line import Cli, Result
from support.policy_servers import inputs, serve_process

STILL = ActContext(deterministic=True)
TOY = """
task: "dovetail.testing.fakes:FakeTask"
robot: "dovetail.testing.fakes:FakeArm"
operator: none
algorithm: imitation
policy: {policy}
"""


def made_run(folder: Path, policy: str, name: str = "toy") -> RunFolder:
    (folder / "toy.yaml").write_text(TOY.format(policy=policy))
    return RunFolder.create(folder / "runs" / name, load([str(folder / "toy.yaml")]))


def publish_fake(run: RunFolder) -> None:
    """Publish weights of a FakePolicy with another seed than the run's."""
    station = build_assembly(run.config)
    policy: FakePolicy = run.config.policy.build(robot=station.robot.spec, seed=9)
    DiskWeightStore(run.weights).publish({"actor": {"weights": policy.weights}})
    station.close()


def robot_side(run: Path, address: str, **config: float) -> RemotePolicy:
    return RemotePolicy(RemoteConfig(address=address, token_file=str(run / "serve.token"), **config))


def until(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.01)


@pytest.mark.extended
def test_served_flow_loads_new_weights(tmp_path: Path) -> None:
    run = made_run(tmp_path, "{type: flow, horizon: 6, hidden: 16, num_layers: 2}")
    station = build_assembly(run.config)
    store, local = DiskWeightStore(run.weights), station.policy()
    station.close()
    assert isinstance(local, Flow)
    store.publish(local.weights())
    local.load(store.load(1))
    prefix = np.full((1, 6, 7), np.nan, np.float32)
    prefix[:, :3] = 0.01
    contexts = (STILL, ActContext(seed=5), ActContext(seed=5, prefix=prefix, delay=2, horizon=2))
    with serve_process("toy", "--port", "0", folder=tmp_path) as (process, address):
        mode = stat.S_IMODE((run.path / "serve.token").stat().st_mode)
        assert mode == 0o600 and address.startswith("127.0.0.1:")
        remote = robot_side(run.path, address)
        seen = inputs(local.spec)
        for context in contexts:
            chunk = remote.act(seen, context)
            assert chunk.policy_version == 1
            assert chunk.actions.tobytes() == local.act(seen, context).actions.tobytes()
        store.publish({**local.weights(), "actor": {k: v * 0.9 for k, v in local.weights()["actor"].items()}})
        until(lambda: remote.act(seen, STILL).policy_version == 2)
        local.load(store.load(2))
        for context in contexts:
            assert remote.act(seen, context).actions.tobytes() == local.act(seen, context).actions.tobytes()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        with pytest.raises(PolicyError, match="cannot connect"):
            remote.act(seen, STILL)
        remote.close()


@pytest.mark.extended
def test_client_recovers_after_the_server_was_killed(tmp_path: Path) -> None:
    slow, computing = tmp_path / "slow", tmp_path / "computing"
    run = made_run(tmp_path, f'{{type: "support.slow_policy:SlowPolicy", slow_file: "{slow}"}}')
    publish_fake(run)
    with serve_process("toy", "--port", "0", folder=tmp_path) as (process, address):
        remote = robot_side(run.path, address, timeout_s=30.0)
        seen = inputs(remote.spec)
        before = remote.act(seen, STILL)
        slow.touch()
        killer = threading.Thread(target=lambda: (until(computing.exists), process.kill()))
        killer.start()
        with pytest.raises(
            PolicyError, match=r"policy server 127.0.0.1:\d+: connection (closed|lost).*connects again"
        ) as caught:
            remote.act(seen, STILL)
        assert "\n" not in str(caught.value)
        killer.join()
    with pytest.raises(PolicyError, match="cannot connect"):
        remote.act(seen, STILL)
    slow.unlink()
    with serve_process("toy", "--port", address.rpartition(":")[2], folder=tmp_path):
        again = remote.act(seen, STILL)
        assert (again.policy_version, again.actions.tobytes()) == (1, before.actions.tobytes())
    remote.close()


@pytest.mark.extended
def test_slow_inference_times_out_and_ctrl_c_ends_the_server(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    run = made_run(tmp_path, f'{{type: "support.slow_policy:SlowPolicy", slow_file: "{slow}"}}')
    publish_fake(run)
    with serve_process("toy", "--port", "0", folder=tmp_path) as (process, address):
        remote = robot_side(run.path, address, timeout_s=0.2)
        seen = inputs(remote.spec)
        slow.touch()
        with pytest.raises(PolicyError, match=r"no complete message in time\. .*raise policy.timeout_s"):
            remote.act(seen, STILL)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0  # inference would have taken a minute
        assert process.stdout is not None and "Traceback" not in process.stdout.read()
    remote.close()


@pytest.mark.parametrize("target", ["checkpoints/last", "weights", "the run"])
def test_only_a_run_follows_new_weights(finished: Path, target: str) -> None:
    store = DiskWeightStore(finished / "weights")
    first, *_, last = store.versions()
    path, version = {
        "checkpoints/last": (finished / target, 0),
        "weights": (finished / target / f"v{first:08d}.json", first),
        "the run": (finished, last),
    }[target]
    source = find_weights(path)
    policy = following_policy(source, log=lambda line: None)
    assert policy.act(inputs(policy.spec), STILL).policy_version == version
    store.publish(store.load(last).components)
    assert policy.refresh() is (target == "the run")


@pytest.mark.extended
def test_eval_with_a_remote_policy(cli: Cli, finished: Path) -> None:
    with serve_process("done", "--port", "0", folder=Path.cwd()) as (_, address):
        remote = f"policy={{type: remote, address: '{address}', token_file: '{finished / 'serve.token'}'}}"
        result = cli("eval", "done", remote, "--episodes", "2")
        refused(
            cli("run", str(finished / "config.yaml"), remote),
            "policy 'remote' has no imitation_loss and cannot be trained",
        )
    assert result.code == 0, result.err
    assert "the remote policy" in result.out


# ---- refusals: one line, before the server listens


@pytest.fixture
def run(toy: str) -> Path:
    run = made_run(Path.cwd(), "{type: gaussian_mlp, hidden: [8]}")
    station = build_assembly(run.config)
    DiskWeightStore(run.weights).publish(station.policy().weights())
    station.close()
    return run.path


def refused(result: Result, message: str) -> None:
    assert result.code == 2 and message in result.line


def test_an_unknown_run_is_refused(cli: Cli, run: Path) -> None:
    refused(cli("serve", "toi"), "Did you mean 'toy'?")


def test_a_run_without_weights_is_refused(cli: Cli, toy: str) -> None:
    made_run(Path.cwd(), "gaussian_mlp")
    refused(cli("serve", "toy"), "has published no weights yet: let it run first")


def test_an_unknown_version_is_refused(cli: Cli, run: Path) -> None:
    refused(cli("serve", "toy", "--version", "7"), "has no weights of version 7; it has: 1")


def test_a_run_with_a_remote_policy_is_refused(cli: Cli, toy: str) -> None:
    made_run(Path.cwd(), "{type: remote, address: 'gpu:7411'}")
    refused(cli("serve", "toy"), "uses a remote policy")


def test_a_port_in_use_is_refused(cli: Cli, run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        refused(
            cli("serve", "toy", "--port", port, "--quiet"), f"cannot listen on 127.0.0.1:{port} (address already"
        )


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (None, 0, "cannot read token file mine: No such file"),
        ("long enough to be a token", 0o640, "can be read by other users (mode 640). Run chmod 600 mine"),
        ("short", 0o600, "has 5 characters"),
    ],
)
def test_an_invalid_token_file_is_refused(
    cli: Cli, run: Path, content: str | None, mode: int, message: str
) -> None:
    if content is not None:
        Path("mine").write_text(content)
        Path("mine").chmod(mode)
    refused(cli("serve", "toy", "--token-file", "mine"), message)
    assert not (run / "serve.token").exists()


def test_token_is_created_once_and_private(cli: Cli, run: Path) -> None:
    tokens = set()
    for _ in range(2):
        refused(cli("serve", "toy", "--quiet", "--host", "256.0.0.1"), "cannot listen on 256.0.0.1")
        tokens.add((run / "serve.token").read_text())
    assert len(tokens) == 1 and len(tokens.pop().strip()) == 64
    assert stat.S_IMODE((run / "serve.token").stat().st_mode) == 0o600
    assert [path.name for path in run.glob(".serve*")] == []


def test_help(cli: Cli) -> None:
    result = cli("serve", "--help")
    assert result.code == 0 and "Example: dovetail serve first-try" in result.out
