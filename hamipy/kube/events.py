"""Events: short sentences that people find with `kubectl describe`.

Only creations, never changes, so the right to create Events is enough. The same thing said again within five minutes
is counted, not sent; the next Event after that carries the count.
"""

import logging
import secrets
import socket
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from weakref import WeakKeyDictionary

from hamipy.kube.client import KubeClient
from hamipy.kube.errors import KubeError
from hamipy.kube.objects import ObjectReference
from hamipy.kube.ratelimit import Bucket

logger = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]

REPEAT_SECONDS = 300.0
"""The same Event is sent at most once in this time."""

_MAX_MESSAGE = 1024
_REMEMBERED = 4096
_BURST, _PER_SECOND = 25, 1.0


@dataclass(slots=True)
class _Said:
    at: float
    first: str
    suppressed: int = 0


class EventRecorder:
    """Sends Events of one component.

    Args:
        client: the API server.
        component: who speaks, `hamipy-node`.
        instance: which one of them; default is the host's name.
    """

    def __init__(self, client: KubeClient, component: str, instance: str = "") -> None:
        self.sent = self.suppressed = self.failed = 0
        self._client, self._component, self._instance = client, component, instance or socket.gethostname()
        self._said: OrderedDict[tuple[str, str, str], _Said] = OrderedDict()
        self._bucket = Bucket(_PER_SECOND, _BURST)

    async def emit(
        self,
        regarding: ObjectReference,
        reason: str,
        message: str,
        type: EventType = "Normal",  # noqa: A002
    ) -> bool:
        """Send an Event; whether it was sent. A failure is logged and counted: an Event never stops its sender.

        Args:
            regarding: what it is about.
            reason: one CamelCase word.
            message: one sentence; over 1,024 characters it is cut.
            type: Normal or Warning.
        """
        now, stamp = time.monotonic(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = (regarding.uid or f"{regarding.namespace}/{regarding.name}", reason, message)
        said = self._said.get(key)
        if said is not None and now - said.at < REPEAT_SECONDS:
            said.suppressed += 1
            self.suppressed += 1
            return False
        if not self._bucket.try_take():
            self.suppressed += 1
            logger.warning("event left out (too many): %s %s: %s", regarding.name, reason, message)
            return False
        count = said.suppressed + 1 if said is not None else 1
        first = said.first if said is not None else stamp
        self._said[key] = _Said(now, first)
        self._said.move_to_end(key)
        while len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        try:
            await self._create(regarding, reason, message, type, count, first, stamp)
        except KubeError as error:
            self.failed += 1
            logger.warning("event not sent: %s %s: %s (%s)", regarding.name, reason, message, error)
            return False
        self.sent += 1
        return True

    async def _create(
        self, regarding: ObjectReference, reason: str, message: str, type_: EventType, count: int, first: str, last: str
    ) -> None:
        namespace = regarding.namespace or "default"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{regarding.name[:200]}.{secrets.token_hex(8)}", "namespace": namespace},
            "involvedObject": regarding,
            "reason": reason,
            "message": message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 3] + "...",
            "type": type_,
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "firstTimestamp": first,
            "lastTimestamp": last,
            "count": count,
        }
        await self._client.create(f"/api/v1/namespaces/{namespace}/events", body, timeout=5.0)


_recorders: WeakKeyDictionary[KubeClient, dict[str, EventRecorder]] = WeakKeyDictionary()


async def emit(
    client: KubeClient,
    regarding: ObjectReference,
    reason: str,
    message: str,
    type: EventType = "Normal",  # noqa: A002
    *,
    component: str,
) -> bool:
    """Send an Event through the recorder of this client and component; see `EventRecorder.emit`."""
    recorders = _recorders.setdefault(client, {})
    recorder = recorders.get(component)
    if recorder is None:
        recorder = recorders[component] = EventRecorder(client, component)
    return await recorder.emit(regarding, reason, message, type)
