"""Which ids the kubelet is told of, and how healthy each one is.

kube-scheduler counts healthy ids minus what pods request, and a restarting kubelet fails a running pod whose ids are
not all healthy. So an id that is in use stays healthy whatever becomes of its device (sickness and removal reach the
scheduler through the inventory); only the free ids of a sick device are unhealthy. Then the healthy device beside a
full sick one stays usable, and no running pod dies with a kubelet restart.
"""

import asyncio
from collections.abc import Collection, Iterable

from hamipy.core.model import Device
from hamipy.core.names import slot_id


def advertised(devices: Iterable[Device], in_use: Collection[str]) -> dict[str, bool]:
    """Id -> healthy, in device and slot order, ids in use of unknown devices last."""
    ids = {slot_id(d.id, slot): d.healthy for d in devices for slot in range(d.slots)}
    return ids | dict.fromkeys(sorted(in_use), True)


class Table:
    """The advertised ids, for any number of ListAndWatch streams to follow."""

    def __init__(self) -> None:
        self.ids: dict[str, bool] = {}
        self.version = 0
        self.closed = False
        self._changed = asyncio.Event()

    def set(self, ids: dict[str, bool]) -> None:
        """Advertise these from now on."""
        if ids == self.ids and self.version:
            return
        self.ids = ids
        self.version += 1
        self._tell()

    def close(self) -> None:
        """End the streams."""
        self.closed = True
        self._tell()

    async def newer(self, version: int) -> bool:
        """Return when there is a version newer than this one (0: any at all); False when there will be none."""
        while self.version <= version and not self.closed:
            await self._changed.wait()
        return not self.closed

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
