"""Conformance suites for plugin authors, one for each contract:

    from dovetail.testing import check_robot

    def test_my_robot() -> None:
        check_robot(lambda: MyRobot(MyRobot.Config()))

Each check raises AssertionError with one line that names the broken promise.
"""

from dovetail.testing.actors import check_actor
from dovetail.testing.algorithms import check_algorithm
from dovetail.testing.cameras import check_camera
from dovetail.testing.labelers import check_labeler
from dovetail.testing.on_policy import check_on_policy_algorithm
from dovetail.testing.operators import check_dead_man, check_operator
from dovetail.testing.policies import check_policy
from dovetail.testing.replays import check_replay
from dovetail.testing.robots import check_robot
from dovetail.testing.tasks import check_task
from dovetail.testing.vla_models import check_vla_model

__all__ = [
    "check_actor",
    "check_algorithm",
    "check_camera",
    "check_dead_man",
    "check_labeler",
    "check_on_policy_algorithm",
    "check_operator",
    "check_policy",
    "check_replay",
    "check_robot",
    "check_task",
    "check_vla_model",
]
