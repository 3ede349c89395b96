"""A kube-scheduler small enough for one process: it drives an extender as the real one does, one pod at a time.

Of the real scheduler's plugins it has NodeUnschedulable alone: the chart's profile leaves our names to the extender.
Wire format: `k8s.io/kube-scheduler/extender/v1` (capitalised JSON keys, answers read case-insensitively).
"""

from collections import Counter
from typing import Any

import aiohttp
import msgspec

from hamipy.kube.client import KubeClient


class Unschedulable(Exception):
    """No node takes the pod; the text is what the real scheduler writes into its FailedScheduling event."""


class MiniKubeScheduler:
    """Schedules pods by asking an extender.

    Args:
        client: to the API server.
        extender: base URL of the extender, `http://127.0.0.1:8888`.
    """

    def __init__(self, client: KubeClient, extender: str) -> None:
        self.client, self.extender = client, extender.rstrip("/")

    async def schedule(self, namespace: str, name: str) -> str:
        """Filter, prioritize and bind one pod; returns the node's name.

        Raises:
            Unschedulable: no node fits, or the bind was refused.
        """
        pod = msgspec.json.decode(await self.client.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}"))
        nodes = msgspec.json.decode(await self.client.request("GET", "/api/v1/nodes"))["items"]
        names = [n["metadata"]["name"] for n in nodes if not n.get("spec", {}).get("unschedulable")]
        reasons = Counter({"node(s) were unschedulable": len(nodes) - len(names)} if len(names) < len(nodes) else {})
        async with aiohttp.ClientSession() as session:
            if names:
                answer = await self._ask(session, "filter", {"Pod": pod, "Nodes": None, "NodeNames": names})
                if answer.get("error"):
                    raise Unschedulable(answer["error"])
                names = answer.get("nodenames") or []
                for refused in ("failednodes", "failedandunresolvablenodes"):
                    reasons.update((answer.get(refused) or {}).values())
            if not names:
                texts = ", ".join(f"{count} {text}" for text, count in sorted(reasons.items()))
                raise Unschedulable(f"0/{len(nodes)} nodes are available: {texts}.")
            scores = await self._ask(session, "prioritize", {"Pod": pod, "Nodes": None, "NodeNames": names})
            best = {s["Host"]: s["Score"] for s in scores}
            node = min(names, key=lambda n: (-best.get(n, 0), n))
            metadata = pod["metadata"]
            binding = {"PodName": name, "PodNamespace": namespace, "PodUID": metadata["uid"], "Node": node}
            answer = await self._ask(session, "bind", binding)
            if answer.get("error"):
                raise Unschedulable(answer["error"])
        return str(node)

    async def _ask(self, session: aiohttp.ClientSession, verb: str, body: Any) -> Any:
        async with session.post(f"{self.extender}/{verb}", data=msgspec.json.encode(body)) as response:
            answer = msgspec.json.decode(await response.read())
            if response.status != 200:
                raise Unschedulable(f"extender answered {response.status}: {answer}")
        return {k.lower(): v for k, v in answer.items()} if isinstance(answer, dict) else answer
