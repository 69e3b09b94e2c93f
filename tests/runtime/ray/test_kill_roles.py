"""A killed role is restarted, and the run ends with everything that was recorded."""

import pytest

from support.ray_world import HOST_ROLES, world

NAMES = {
    "LabelerRole": "labeler",
    "WeightsRole": "weights",
    "LearnerRole": "learner",
    "StoreRole": "store",
    "RobotRole": "robot-0",
    **{role: f"robot-0/{role}" for role in HOST_ROLES},
}
MOVE_IT = ("RobotRole", *HOST_ROLES)


def kill(run, *roles):
    """Kill these roles at once and wait until they are back."""
    names = [NAMES[role] for role in roles]
    before, checkpoint = {name: (run.num_lost(name), run.num_restarts(name)) for name in names}, run.checkpoint()
    for role in roles:
        _, killed_ns = run.kill(role)
        if role in MOVE_IT:
            run.wait_until(lambda since=killed_ns: run.stands_since(since), within_s=5.0, what="the arm stands")
            assert run.stood_after_s(killed_ns) < 0.7  # heartbeat_timeout_s, and a tick or two
    for name in names:
        num_lost, num_restarts = before[name]
        run.wait_until(
            lambda name=name, num_lost=num_lost: run.num_lost(name) > num_lost, what=f"{name} is reported as lost"
        )
        run.wait_until(
            lambda name=name, num_restarts=num_restarts: run.num_restarts(name) > num_restarts,
            what=f"{name} is restarted",
        )
    run.wait_for_episodes(2)
    run.wait_until(lambda: run.checkpoint()["published"] > checkpoint["published"], what="the learner continues")


def finish(run):
    run.let_episodes_succeed()
    assert run.wait_for_report()["success_after"]["episodes"] == 2
    run.wait_for_no_processes()
    run.check_nothing_lost()
    run.check_only_forward()


@pytest.mark.extended
def test_kill_several_roles_at_once(tmp_path):
    with world(tmp_path) as run:
        run.start()
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        kill(run, "LearnerRole", "WeightsRole", "LabelerRole")
        kill(run, "StoreRole", "RobotRole")
        kill(run, "inference")
        finish(run)


@pytest.mark.slow
def test_kill_each_role_in_turn(tmp_path):
    with world(tmp_path) as run:
        run.start("cluster.num_labelers=2", "run.demos=2")
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        for role in NAMES:
            kill(run, role)
        finish(run)
