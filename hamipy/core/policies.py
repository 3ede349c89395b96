"""Policies: which of the fitting choices is preferred.

A node policy scores nodes by how full they would be, a device policy orders the devices of one node. Both are tables
of small functions, so that another policy is one more row. All work on single numbers and on NumPy columns alike.
"""

from collections.abc import Callable
from typing import Any

SCORE_MAX = 1000
"""Node scores run from 0 to this; kube-scheduler multiplies them by 10 and the extender's weight."""

DEFAULT_POLICY = "binpack"


def utilisation(memory_used: Any, memory_total: Any, cores_used: Any, cores_total: Any) -> Any:
    """How full something is, 0..1: the mean of its used share of memory and of compute.

    Totals must not be 0; a caller with devices that have no memory or no cores passes 1 for them.
    """
    return (memory_used / memory_total + cores_used / cores_total) / 2


NODE_POLICIES: dict[str, Callable[[Any], Any]] = {
    "binpack": lambda after: after,
    "spread": lambda after: 1 - after,
}
"""Policy -> preference (0..1, higher is better) for a node that would then be `after` full."""

DEVICE_POLICIES: dict[str, Callable[[float], float]] = {
    "binpack": lambda before: -before,
    "spread": lambda before: before,
}
"""Policy -> sort key (lower is tried first) for a device that is `before` full; ties go by index."""
