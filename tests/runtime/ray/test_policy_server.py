"""Two arms on Ray learn through one policy server on the real clock. The server is killed and started again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dovetail.core.clock import NS_PER_S
from dovetail.policies.remote.handshake import make_token
from support.policy_servers import serve_process
from support.ray_world import World, world

_ARMS = ("robot-0", "robot-1")


def wait_for_both(run: World, num_episodes: int) -> None:
    """Wait for this many more episodes of each arm in which the policy has acted."""
    before = {arm: run.online_episodes_of(arm) for arm in _ARMS}
    for arm in _ARMS:
        run.wait_until(
            lambda arm=arm: run.online_episodes_of(arm) >= before[arm] + num_episodes,  # type: ignore[misc]
            what=f"{num_episodes} episodes of {arm}",
        )


def wait_for_motion_of_both(run: World) -> None:
    since_ns = time.monotonic_ns()
    run.wait_until(
        lambda: len({note.pid for note in run.notes(since_ns) if note.moves}) == 2, what="both arms move"
    )


def wait_for_hold(run: World) -> None:
    """Both arms tick and none moves."""

    def holds() -> bool:
        last = [note for note in run.notes(time.monotonic_ns() - NS_PER_S) if note.what == "send"]
        return len({note.pid for note in last}) == 2 and not any(note.moves for note in last)

    run.wait_until(holds, what="both arms hold")


@pytest.mark.extended
def test_two_arms_hold_while_their_policy_server_is_killed_and_continue_after_its_restart(tmp_path: Path) -> None:
    token = make_token(tmp_path / "token")
    with world(tmp_path) as run:
        serve = (str(run.config), "--receive", "--token-file", str(token), "--port")
        with serve_process(*serve, "0", folder=tmp_path) as (server, address):
            run.start(
                "cluster.num_robots=2", f"policy_server.address={address}", f"policy_server.token_file={token}"
            )
            wait_for_both(run, 2)
            server.kill()
            server.wait()
            wait_for_hold(run)
        with serve_process(*serve, address.rpartition(":")[2], folder=tmp_path):
            wait_for_motion_of_both(run)
            wait_for_both(run, 2)
            run.let_episodes_succeed()
            report = run.wait_for_report()
        assert set(report["robots"]) == set(_ARMS)
        assert run.num_restarts("RobotRole") == 0
        run.check_nothing_lost()
        run.check_only_forward()
