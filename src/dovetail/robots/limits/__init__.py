"""Limits of the safety filter, part by part and over time. The filter itself is `dovetail.robots.safety`."""

from dovetail.robots.limits.action_limits import ActionLimits
from dovetail.robots.limits.axes import Reason, Vector

__all__ = ["ActionLimits", "Reason", "Vector"]
