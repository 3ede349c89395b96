"""The `NodeDevices` object: what a node's devices are, one object per node, named after it and owned by it.

The definition is `crd.yaml`, beside this file; the chart ships the same. `spec` is the inventory in the form of
`core.codec`; `summary` holds what `kubectl get nodedevices` shows and nothing reads.
"""

import asyncio
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

from hamipy.core.codec import INVENTORY_VERSION, check_inventory, decode_inventory, encode_inventory
from hamipy.core.model import Inventory
from hamipy.core.quantity import format_size
from hamipy.kube.backoff import Backoff
from hamipy.kube.client import KubeClient
from hamipy.kube.errors import Unreachable
from hamipy.kube.objects import ObjectMeta

PATH = f"/apis/{INVENTORY_VERSION}/nodedevices"
"""Path of the collection."""

KIND = "NodeDevices"
FIELD_MANAGER = "hamipy-node"
"""One manager for every node daemon, so that a newer one takes over what an older one wrote."""

CRD_NAME = "nodedevices.hamipy.io"
_CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_inventory = msgspec.json.Decoder(Inventory)


class NodeDevices(Struct, frozen=True, rename="camel", gc=False):
    """A NodeDevices object; its spec stays undecoded until `inventory` is called."""

    metadata: ObjectMeta = ObjectMeta()
    api_version: str = ""
    spec: msgspec.Raw = msgspec.Raw(b"{}")

    def inventory(self) -> Inventory:
        """What the node published.

        Raises:
            UnknownVersion: another API version.
            InvalidInventory: the object contradicts the schema or itself; the message names the field.
        """
        spec = bytes(self.spec)
        name = msgspec.json.encode(self.metadata.name)
        if self.api_version == INVENTORY_VERSION and b'"node"' not in spec:
            # Straight into the typed form: a tree of dicts in between costs four times as much.
            try:
                inventory = _inventory.decode(b'{"node":%s%s%s' % (name, b"," if len(spec) > 2 else b"", spec[1:]))
            except msgspec.MsgspecError:
                pass  # the codec finds the words for it
            else:
                check_inventory(inventory)
                return inventory
        return decode_inventory(self.metadata.name, self.api_version, msgspec.json.decode(spec))


def crd_text() -> str:
    """The definition as YAML text."""
    return files("hamipy.kube").joinpath("crd.yaml").read_text(encoding="utf-8")


def crd_manifest() -> dict[str, Any]:
    """The definition, as the API takes it."""
    import yaml

    manifest: dict[str, Any] = yaml.safe_load(crd_text())
    return manifest


class _Condition(Struct, frozen=True):
    type: str
    status: str


class _CrdStatus(Struct, frozen=True):
    conditions: tuple[_Condition, ...] | None = None  # null until a controller has looked at it


class _Crd(Struct, frozen=True):
    status: _CrdStatus = _CrdStatus()


async def apply_crd(client: KubeClient, *, timeout: float = 30.0) -> None:  # noqa: ASYNC109
    """Create or update the definition, and return when the API server serves it.

    Raises:
        Unreachable: it is not served within `timeout` seconds.
    """
    path = f"{_CRD_PATH}/{CRD_NAME}"
    backoff = Backoff(base=0.05, cap=1.0)
    try:
        async with asyncio.timeout(timeout):
            await client.apply(path, crd_manifest(), timeout=timeout)
            while True:
                crd = await client.get(path, _Crd)
                if any(c.type == "Established" and c.status == "True" for c in crd.status.conditions or ()):
                    return
                await asyncio.sleep(backoff.next())
    except TimeoutError as error:
        raise Unreachable("GET", path, error) from error


def manifest(inventory: Inventory, node_uid: str) -> dict[str, Any]:
    """The whole object that a node daemon applies.

    Args:
        inventory: what the node has.
        node_uid: uid of the Node object; the garbage collector removes an object with a stale one.
    """
    devices = inventory.devices
    return {
        "apiVersion": INVENTORY_VERSION,
        "kind": KIND,
        "metadata": {
            "name": inventory.node,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": inventory.node, "uid": node_uid}],
        },
        "spec": encode_inventory(inventory),
        "summary": {
            "devices": len(devices),
            "healthy": sum(d.healthy for d in devices),
            "memory": format_size(sum(d.memory for d in devices)),
            "vendors": ",".join(sorted({d.vendor for d in devices})),
            "models": ",".join(sorted({d.model for d in devices})),
        },
    }


async def apply_inventory(
    client: KubeClient,
    inventory: Inventory,
    node_uid: str,
    *,
    timeout: float = 10.0,  # noqa: ASYNC109
) -> NodeDevices:
    """Publish a node's inventory by server-side apply; unchanged content leaves the object untouched.

    Raises:
        NotFound: the definition is not installed yet.
        Invalid: the schema refuses the inventory.
    """
    body = await client.apply(
        f"{PATH}/{inventory.node}", manifest(inventory, node_uid), field_manager=FIELD_MANAGER, timeout=timeout
    )
    return msgspec.json.decode(body, type=NodeDevices)
