"""Pods with several device containers, on all nodes at once: which nodes certainly take them all, which certainly not.

Both answers are proofs. What neither settles is searched node by node (`fit.fits_together`). Columns are (K, M): K
device positions, M nodes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hamipy.core.fit import Packing, has_room, largest_first, need_of, steps_of
from hamipy.core.model import ContainerRequest

Columns = NDArray[np.int64]
Mask = NDArray[np.bool_]
_NEVER = np.iinfo(np.int64).max


class Joint:
    """One pod's containers beside what is free on the eligible devices of M nodes.

    Args:
        containers: in pod order.
        eligible: (K, M) devices that may be used.
        total, free: (memory, cores, slots), each (K, M).
    """

    def __init__(
        self,
        containers: Sequence[ContainerRequest],
        eligible: Mask,
        total: tuple[Columns, Columns, Columns],
        free: tuple[Columns, Columns, Columns],
    ) -> None:
        self.containers, self.eligible = containers, eligible
        self.total, self.free = total, free
        self.spans, self.steps = steps_of([c.kind for c in containers])
        self.needs = [need_of(c, total[0], total[2]) for c in containers]

    def of(self, nodes: Columns) -> "Joint":
        """The same question about some of the nodes, by their position here."""
        memory, cores, slots = (columns[:, nodes] for columns in self.total)
        free_memory, free_cores, free_slots = (columns[:, nodes] for columns in self.free)
        return Joint(
            self.containers, self.eligible[:, nodes], (memory, cores, slots), (free_memory, free_cores, free_slots)
        )

    def ample(self) -> Mask:
        """(M,) nodes with as many devices as the widest container wants that each take the whole pod; a quick proof."""
        takes = self.eligible.copy()
        for step in range(self.steps):
            running = [need for need, span in zip(self.needs, self.spans, strict=True) if step in span]
            memory, cores, slots = self.free
            takes &= has_room(
                memory, cores, slots, tuple(sum(need[dimension] for need in running) for dimension in range(3))
            )
        return np.asarray(takes.sum(axis=0) >= max(c.count for c in self.containers))

    def certain(self, packing: Packing) -> Mask:
        """(M,) nodes on which the containers fit: placed one after the other as `fit.fits_together` does first."""
        used = [[np.zeros(self.eligible.shape, np.int64) for _ in range(3)] for _ in range(self.steps)]
        fits = np.ones(self.eligible.shape[1], np.bool_)
        for at in largest_first(self.containers):
            need, span, count = self.needs[at], self.spans[at], self.containers[at].count
            if count > self.eligible.shape[0]:
                return np.zeros_like(fits)
            ok = self.eligible.copy()
            for step in span:
                memory, cores, slots = (free - of for free, of in zip(self.free, used[step], strict=True))
                ok &= has_room(memory, cores, slots, need)
            fits &= ok.sum(axis=0) >= count
            room = self.free[0] - np.maximum.reduce([used[step][0] for step in span])
            first = np.argsort(np.where(ok, packing * room, _NEVER), axis=0, kind="stable")[:count]
            picked = np.zeros_like(ok)
            np.put_along_axis(picked, first, True, axis=0)
            for step in span:
                for dimension in range(3):
                    used[step][dimension] += np.where(picked, need[dimension], 0)
        return fits

    def impossible(self) -> Mask:
        """(M,) nodes on which some of the containers that run together want more shares than the devices can take.

        Looked at are the largest container that runs in a step, the two largest, and so on, by memory and by compute.
        A device takes at most as many of them as its room holds of the smallest ones among them.
        """
        never = np.zeros(self.eligible.shape[1], np.bool_)
        for step in range(self.steps):
            running = [at for at in largest_first(self.containers) if step in self.spans[at]]
            by_cores = sorted(running, key=lambda at: -self.containers[at].cores)
            for order in (running, by_cores):
                for some in range(1, len(order) + 1):
                    never |= self._too_many(order[:some])
        return never

    def _too_many(self, together: Sequence[int]) -> Mask:
        takes: Any = np.where(self.eligible, len(together), 0)
        for dimension in range(3):
            needs = np.array(np.broadcast_arrays(*(np.atleast_2d(self.needs[at][dimension]) for at in together)))
            needs.sort(axis=0)
            room = (needs.cumsum(axis=0) <= self.free[dimension]).sum(axis=0)
            takes = np.minimum(takes, room)
        return np.asarray(takes.sum(axis=0) < sum(self.containers[at].count for at in together))
