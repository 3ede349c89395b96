"""A cluster in memory with the engine on it: real client, real reflectors, real Bindings over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from hamipy.core.model import Device, Inventory
from hamipy.kube.client import KubeClient
from hamipy.kube.nodedevices import PATH, manifest
from hamipy.scheduler.engine import Engine
from hamipy.scheduler.holds import is_hold
from hamipy.scheduler.leadership import Leadership
from hamipy.testing.apiserver import InMemoryApiServer

GI = 2**30
DEADLINE = 15.0
PODS = "/api/v1/namespaces/default/pods"


def device(node: str, index: int, memory: int = 14, slots: int = 10, **more: Any) -> Device:
    return Device(f"{node}-{index}", index, "mock", "T4", memory * GI, slots, **more)


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something real has happened."""
    try:
        async with asyncio.timeout(DEADLINE):
            while not condition():  # noqa: ASYNC110 - what is waited for is anybody's
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"never happened: {what}") from None


class World:
    def __init__(self, api: InMemoryApiServer) -> None:
        self.api = api
        self.leadership_options: dict[str, Any] = {"always": True}
        self.engine: Engine
        self.client: KubeClient
        self._task: asyncio.Task[None] | None = None
        self._uids = 0

    # -- what is in the API server ---------------------------------------------------------------------------------

    def node(self, name: str, devices: Iterable[Device] | int = 1, *, memory: int = 14, **more: Any) -> None:
        """A node whose daemon serves; `devices` may be their number."""
        self.api.create(
            "/api/v1/nodes",
            {
                "metadata": {"name": name},
                "spec": more.pop("spec", {}),
                "status": {"capacity": {"hamipy.io/device": "80"}, "allocatable": {"hamipy.io/device": "80"}},
            },
        )
        if isinstance(devices, int):
            devices = [device(name, i, memory) for i in range(devices)]
        self.inventory(name, tuple(devices), **more)

    def inventory(self, name: str, devices: Iterable[Device], **more: Any) -> None:
        document = manifest(Inventory(name, devices=tuple(devices), **more), "x")
        del document["metadata"]["ownerReferences"]
        path = f"{PATH}/{name}"
        if any(o["metadata"]["name"] == name for o in self.api.list(PATH)):
            self.api.patch(path, {"spec": document["spec"]})
        else:
            self.api.create(PATH, document)

    def pod(self, name: str, memory: str = "2Gi", **more: Any) -> dict[str, Any]:
        """A pending pod of ours; `limits` and the like may be given in full."""
        limits = more.pop("limits", {"hamipy.io/memory": memory})
        containers = more.pop("containers", [{"name": "main", "resources": {"limits": limits}}])
        self._uids += 1
        return self.api.create(
            PODS,
            {
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "uid": f"uid-{name}-{self._uids}",
                    "annotations": more.pop("annotations", {}),
                },
                "spec": {"schedulerName": "hamipy-scheduler", "containers": containers, **more.pop("spec", {})},
                "status": {"phase": "Pending", **more.pop("status", {})},
            },
        )

    def read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"{PODS}/{name}")
        return found

    def phase(self, name: str, phase: str) -> None:
        self.api.patch(f"{PODS}/{name}", {"status": {"phase": phase}})

    def delete(self, name: str) -> None:
        self.api.delete(f"{PODS}/{name}")

    # -- what kube-scheduler does ----------------------------------------------------------------------------------

    def filter(self, pod: dict[str, Any], names: list[str] | None = None) -> dict[str, Any]:
        names = names if names is not None else sorted(self.engine.state.nodes)
        body = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names})
        answer: dict[str, Any] = msgspec.json.decode(self.engine.extender.filter(body).body)
        return answer

    def prioritize(self, pod: dict[str, Any], names: list[str]) -> dict[str, int]:
        body = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names})
        answer = msgspec.json.decode(self.engine.extender.prioritize(body).body)
        return {score["Host"]: score["Score"] for score in answer}

    def preempt(self, pod: dict[str, Any], victims: dict[str, list[str]]) -> dict[str, Any]:
        meta = {n: {"Pods": [{"UID": u} for u in uids], "NumPDBViolations": 0} for n, uids in victims.items()}
        body = msgspec.json.encode({"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta})
        answer = msgspec.json.decode(self.engine.extender.preempt(body).body)
        kept: dict[str, Any] = answer["NodeNameToMetaVictims"]
        return kept

    async def bind(self, pod: dict[str, Any], node: str) -> str:
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        reply = await self.engine.extender.bind(msgspec.json.encode(args))
        error: str = msgspec.json.decode(reply.body)["Error"]
        return error

    async def schedule(self, pod: dict[str, Any]) -> str:
        """Filter, prioritize, bind; the node's name, or empty when it was refused."""
        names = self.filter(pod)["NodeNames"]
        if not names:
            return ""
        scores = self.prioritize(pod, names)
        node = max(names, key=lambda n: scores[n])
        return "" if await self.bind(pod, node) else node

    # -- what the engine knows -------------------------------------------------------------------------------------

    async def start(self) -> None:
        leadership = Leadership(
            self.client, namespace="sys", lease_name="lease", pod_name="me", **self.leadership_options
        )
        self.engine = Engine(self.client, leadership)
        self.engine.binder.read_again = (0.01, 0.05, 0.1, 0.2, 0.4)
        self._task = asyncio.create_task(self.engine.run())
        await until(lambda: self.engine.state.ready, "engine ready")
        self.settle()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def settle(self) -> None:
        """Nothing that happened before counts as a change."""
        self.engine.state.ledger.freed.clear()

    async def seen(self) -> None:
        """Wait until the engine has seen everything that is in the API server now."""
        version = self.api.resource_version
        self.api.create("/api/v1/nodes", {"metadata": {"name": f"mark-{version}"}})
        self.api.create(PATH, {"metadata": {"name": f"mark-{version}"}, "spec": {"devices": []}})
        mark = self.api.create(
            PODS,
            {
                "metadata": {"name": f"mark-{version}", "namespace": "default"},
                "spec": {"schedulerName": "hamipy-scheduler"},
            },
        )
        state, uid = self.engine.state, mark["metadata"]["uid"]
        name = f"mark-{version}"
        await until(lambda: uid in state.pods and name in state.nodes and name in state.inventories, "marks seen")
        self.api.delete(f"/api/v1/nodes/{name}")
        self.api.delete(f"{PATH}/{name}")
        self.delete(name)
        await until(lambda: uid not in state.pods and not {name} & {*state.nodes, *state.inventories}, "marks gone")
        await asyncio.sleep(0)

    def free(self, node: str) -> list[int]:
        """Free GiB of each device, as the ledger has it."""
        return [memory // GI for memory, _, _ in self.books()[node][1]]

    def books(self) -> dict[str, Any]:
        """Everything the ledger says but for places that are only kept, in a comparable form."""
        ledger = self.engine.state.ledger
        books: dict[str, Any] = {}
        for name, entry in ledger.nodes.items():
            kept = [uid for uid in entry.pods if is_hold(uid)]
            rooms = ledger.rooms(entry, ledger.present[:, entry.column], without=kept)
            pods = {uid: pod for uid, pod in entry.pods.items() if uid not in kept}
            books[name] = (bool(ledger.is_open[entry.column]), [(r.memory, r.cores, r.slots) for r in rooms], pods)
        return books

    def truth(self) -> dict[str, int]:
        """GiB given away by device, from the annotations of the bound, unfinished pods in the API server."""
        sums: dict[str, int] = {}
        for pod in self.api.list(PODS):
            text = (pod["metadata"].get("annotations") or {}).get("hamipy.io/allocation")
            if text and pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Succeeded", "Failed"):
                for shares in msgspec.json.decode(text)["containers"].values():
                    for share in shares:
                        sums[share["device"]] = sums.get(share["device"], 0) + share["memory"] // GI
        return sums

    def sent(self, verb: str, ending: str) -> int:
        """Requests of this verb whose path ends so."""
        return sum(r.verb == verb and r.path.endswith(ending) for r in self.api.requests)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with InMemoryApiServer() as api:
        made = World(api)
        async with KubeClient(api.config()) as client:
            made.client = client
            try:
                yield made
            finally:
                await made.stop()
