"""Limits of the safety filter, part by part and over time. The filter itself is `dovetail.robots.safety`."""

from dovetail.robots.limits.action_limits import ActionLimits
from dovetail.robots.limits.axes import Reason, Vector
from dovetail.robots.limits.jumps import MeasuredJumps

__all__ = ["ActionLimits", "MeasuredJumps", "Reason", "Vector"]
