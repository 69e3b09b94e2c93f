"""A simulated task without an expert: `support.task_without_expert:Push`."""

from dovetail.tasks.base import SimTask
from dovetail.tasks.push_cube import PushCube

__all__ = ["Push"]


class Push(PushCube):
    """Pushes the cube, and defines no goal."""

    goal = SimTask.goal
