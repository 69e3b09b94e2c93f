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


def kill(one, *roles):
    """Kill these roles at once and wait until they are back."""
    names = [NAMES[role] for role in roles]
    before, checkpoint = {name: (one.num_lost(name), one.num_restarts(name)) for name in names}, one.checkpoint()
    for role in roles:
        _, killed_ns = one.kill(role)
        if role in MOVE_IT:
            one.until(lambda since=killed_ns: one.stands_since(since), within_s=5.0, what="the arm stands")
            assert one.stood_after_s(killed_ns) < 0.7  # heartbeat_timeout_s, and a tick or two
    for name in names:
        num_lost, num_restarts = before[name]
        one.until(
            lambda name=name, num_lost=num_lost: one.num_lost(name) > num_lost, what=f"{name} is reported as lost"
        )
        one.until(
            lambda name=name, num_restarts=num_restarts: one.num_restarts(name) > num_restarts,
            what=f"{name} is restarted",
        )
    one.wait_for_episodes(2)
    one.until(lambda: one.checkpoint()["published"] > checkpoint["published"], what="it goes on learning")


def finish(one):
    one.enough()
    assert one.finished()["success_after"]["episodes"] == 2
    one.gone()
    one.check_nothing_lost()
    one.check_only_forward()


def test_kill_several_roles_at_once(tmp_path):
    with world(tmp_path) as one:
        one.start()
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        kill(one, "LearnerRole", "WeightsRole", "LabelerRole")
        kill(one, "StoreRole", "RobotRole")
        kill(one, "inference")
        finish(one)


@pytest.mark.slow
def test_kill_each_role_in_turn(tmp_path):
    with world(tmp_path) as one:
        one.start("cluster.num_labelers=2", "run.demos=2")
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        for role in NAMES:
            kill(one, role)
        finish(one)
