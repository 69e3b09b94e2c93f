"""Conformance suites: what a plugin author runs against a new Robot, Task, Operator, Policy, Actor or Algorithm.

    from dovetail.testing import check_robot

    def test_my_robot() -> None:
        check_robot(lambda: MyRobot(MyRobot.Config()))

Each check raises AssertionError with a message that says which promise of the contract was broken.
"""

from dovetail.testing.actors import check_actor
from dovetail.testing.algorithms import check_algorithm
from dovetail.testing.operators import check_dead_man, check_operator
from dovetail.testing.policies import check_policy
from dovetail.testing.robots import check_robot
from dovetail.testing.tasks import check_task

__all__ = [
    "check_actor",
    "check_algorithm",
    "check_dead_man",
    "check_operator",
    "check_policy",
    "check_robot",
    "check_task",
]
