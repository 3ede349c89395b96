"""The books that must agree about a pod: the kubelet's podresources and checkpoint, our annotation, our ledger."""

import base64
import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from hamipy.node._generated import deviceplugin_v1beta1_pb2 as dp
from hamipy.node._generated import podresources_v1_pb2 as pr
from hamipy.node._generated.podresources_v1_pb2_grpc import PodResourcesListerStub

from . import chart
from .api import JSON
from .cluster import Cluster
from .daemons import wait_until
from .node import Node
from .workloads import Space, each

ALLOCATION = "hamipy.io/allocation"
RESOURCE = "hamipy.io/device"


@dataclass(frozen=True)
class Held:
    """Ids of our kubelet resource that one container holds; `pod` is `namespace/name`, or the uid in the checkpoint."""

    pod: str
    container: str
    ids: tuple[str, ...]
    cdi: str = ""

    @property
    def devices(self) -> Counter[str]:
        """How many ids of each device."""
        return Counter(i.rpartition("::")[0] for i in self.ids)


@contextmanager
def podresources_of(node: Node) -> Iterator[Callable[[], list[Held]]]:
    """A client of the kubelet's podresources, on its real socket; calling it gives what the kubelet tells now.

    Plain init containers are not listed there.
    """
    socket = node.fs("/var/lib/kubelet") / "pod-resources" / "kubelet.sock"
    with grpc.insecure_channel(f"unix://{socket}", options=[("grpc.default_authority", "localhost")]) as channel:
        stub = PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]

        def ask() -> list[Held]:
            found: dict[tuple[str, str], list[str]] = {}
            for pod in stub.List(pr.ListPodResourcesRequest(), timeout=10).pod_resources:
                for container in pod.containers:
                    for devices in container.devices:
                        if devices.resource_name == RESOURCE:
                            key = (f"{pod.namespace}/{pod.name}", container.name)
                            found.setdefault(key, []).extend(devices.device_ids)
            return [Held(pod, container, tuple(sorted(ids))) for (pod, container), ids in sorted(found.items())]

        yield ask


def podresources(node: Node) -> list[Held]:
    """What the kubelet tells the clients of its podresources now, as soon as it has a moment for one more of them."""

    def admitted() -> bool:
        try:
            answers.append(ask())
        except grpc.RpcError as e:
            if not over_the_limit(e):
                raise
        return bool(answers)

    answers: list[list[Held]] = []
    with podresources_of(node) as ask:
        wait_until(admitted, 10, f"podresources of {node.name} to answer")
    return answers[0]


def over_the_limit(error: grpc.RpcError) -> bool:
    """Whether podresources refused a call because it answers 100 a second only, for all its clients together."""
    return bool(error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED)


def checkpoint(node: Node) -> list[Held]:
    """What the kubelet has written down: init containers too, with the CDI name that Allocate answered."""
    file = node.fs("/var/lib/kubelet") / "device-plugins" / "kubelet_internal_checkpoint"
    entries = json.loads(file.read_bytes())["Data"]["PodDeviceEntries"] or []
    found = []
    for entry in entries:
        if entry["ResourceName"] == RESOURCE:
            by_numa = entry["DeviceIDs"]
            ids = [i for part in (by_numa.values() if isinstance(by_numa, dict) else [by_numa]) for i in part]
            answer = dp.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
            cdi = answer.cdi_devices[0].name if answer.cdi_devices else ""
            found.append(Held(entry["PodUID"], entry["ContainerName"], tuple(sorted(ids)), cdi))
    return found


def cdi_specs(node: Node) -> list[Path]:
    """CDI spec files of ours on a node."""
    return sorted(node.fs("/var/run/cdi").glob("hamipy.io-share-*.json"))


def allocation(pod: JSON) -> dict[str, list[JSON]]:
    """Shares per container from a pod's annotation; empty without one."""
    text = pod["metadata"].get("annotations", {}).get(ALLOCATION)
    return dict(json.loads(text)["containers"]) if text else {}


def ledgers(cluster: Cluster) -> dict[str, JSON]:
    """What we ourselves say is allocated: `hamipy inspect -o json`, and each scheduler's own ledger in memory."""
    command = [
        sys.executable,
        "-m",
        "hamipy.cli.main",
        "inspect",
        "-o",
        "json",
        "--kubeconfig",
        str(cluster.kubeconfig),
    ]
    found = {"hamipy inspect": json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)}
    for pod in cluster.api.list("pods", chart.NAMESPACE, labelSelector="app.kubernetes.io/component=scheduler"):
        if pod["status"].get("podIP"):
            with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9464/inspect", timeout=10) as answer:
                found[pod["metadata"]["name"]] = json.loads(answer.read())
    return found


def ledger_shares(ledger: JSON, uid: str) -> dict[str, list[JSON]]:
    """Shares per container of one pod in a ledger."""
    found: dict[str, list[JSON]] = {}
    for node in ledger["nodes"]:
        for device in node["devices"]:
            for pod in device["pods"]:
                if pod["uid"] == uid:
                    for name, share in pod["containers"].items():
                        found.setdefault(name, []).append(share)
    return found


def seen(share: JSON) -> JSON:
    """How a share of the annotation must look in a container's limits file."""
    return {"id": share["device"], "memory": share["memory"], "cores": share["cores"], "partition": None}


def disagreements(space: Space, *pods: JSON, raced: bool = False) -> list[str]:
    """Where the annotation, the kubelet's books, the containers and the ledgers differ about running pods.

    Args:
        space: of the pods.
        pods: with all their containers started; none of them starts or ends meanwhile.
        raced: the kubelet may have taken ids of other devices than the scheduler chose (see `swapped`).
    """
    nodes = {name: space.cluster.nodes[name] for name in {p["spec"]["nodeName"] for p in pods}}
    listed = {name: podresources(node) for name, node in nodes.items()}
    noted = {name: checkpoint(node) for name, node in nodes.items()}
    books = ledgers(space.cluster)

    def about(pod: JSON) -> list[str]:
        node = pod["spec"]["nodeName"]
        return _differences(space, pod, listed[node], noted[node], books, raced)

    return [line for found in each(about, pods) for line in found]


def _differences(
    space: Space, pod: JSON, listed: list[Held], noted: list[Held], ledgers: dict[str, JSON], raced: bool
) -> list[str]:
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    decided = allocation(pod)
    inits = [c["name"] for c in pod["spec"].get("initContainers", []) if c.get("restartPolicy") != "Always"]
    wrong = []

    def compare(what: str, got: object, wanted: object) -> None:
        if got != wanted:
            wrong.append(f"{name}: {what} has {got}, wanted {wanted}")

    for container, shares in decided.items():
        limits, devices = space.given(name, container)
        if container not in inits:
            compare(f"{container} now", space.sees(name, container), (limits, devices))
        compare(f"{container}'s devices", devices, [s["device"] for s in shares])
        expected = {"pod": f"{space.name}/{name}", "container": container, "devices": [seen(s) for s in shares]}
        compare(f"{container}'s limits", limits, expected)
    by_name = {h.container: h.ids for h in listed if h.pod == f"{space.name}/{name}"}
    by_uid = {h.container: h for h in noted if h.pod == uid}
    compare("podresources", by_name, {c: held.ids for c, held in by_uid.items() if c not in inits})
    planned = {c: Counter(s["device"] for s in shares) for c, shares in decided.items()}
    compare("the kubelet's checkpoint", sizes(by_uid), {c: wanted.total() for c, wanted in planned.items()})
    if not raced and any(c in inits for c in decided):
        # whom the kubelet gives the ids of a finished init container is its own choice; that they are the pod's is not
        of_pod = {d for held in by_uid.values() for d in held.devices}
        compare("the kubelet's checkpoint", of_pod, {d for wanted in planned.values() for d in wanted})
    elif not raced:
        compare("the kubelet's checkpoint", {c: held.devices for c, held in by_uid.items()}, planned)
    for whose, ledger in ledgers.items():
        in_ledger = {c: sorted(map(str, s)) for c, s in ledger_shares(ledger, uid).items()}
        compare(f"the ledger of {whose}", in_ledger, {c: sorted(map(str, s)) for c, s in decided.items()})
    return wrong


def sizes(held: dict[str, Held]) -> dict[str, int]:
    """How many ids each container has."""
    return {container: len(h.ids) for container, h in held.items()}


def swapped(space: Space, pod: JSON) -> list[str]:
    """Containers to which the kubelet's books give other devices than we do, one line each.

    It takes ids as it likes when pods race, and gives the ids of a finished init container to whom it likes; what a
    container sees is right nevertheless.
    """
    uid, node = pod["metadata"]["uid"], space.cluster.nodes[pod["spec"]["nodeName"]]
    decided = {c: Counter(s["device"] for s in shares) for c, shares in allocation(pod).items()}
    held = {h.container: h.devices for h in checkpoint(node) if h.pod == uid}
    return [
        f"{pod['metadata']['name']} {c}: the kubelet says {dict(held[c])}, the scheduler {dict(decided[c])}"
        for c in decided
        if c in held and held[c] != decided[c]
    ]
