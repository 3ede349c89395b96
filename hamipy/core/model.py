"""What devices are, what pods ask for, what pods got: frozen values that everything else computes with.

Units everywhere: memory in bytes, cores in percent of one device's compute (0..100), slots as counts.
"""

from enum import StrEnum

from msgspec import Struct

CORES_PER_DEVICE = 100
"""Compute of one device, in percent."""

MEMORY_MAX = 2**50
"""The largest memory of one device, and of one share, in bytes (1Pi): sums over devices stay within 64 bits."""

DEVICES_MAX = 256
"""The most devices of one node."""


class Link(Struct, frozen=True, gc=False):
    """How one device reaches another.

    `kind` is the vendor's word (`NV12`, `PIX`, `HCCS`), `bandwidth` is in GB/s, 0 when unknown.
    """

    kind: str
    bandwidth: float = 0.0


class Partition(Struct, frozen=True, gc=False):
    """A fixed cut the hardware offers (MIG profile, vNPU template), once per model.

    `counters` are amounts of whatever else the hardware counts (slices, AI CPUs, DVPP); `placements` are bit masks
    of the positions it may take, empty where position does not matter.
    """

    name: str
    memory: int
    cores: int
    counters: dict[str, int] = {}
    placements: tuple[int, ...] = ()


class Model(Struct, frozen=True, gc=False):
    """What is the same for all devices of one model: its partition table and the totals of its counters."""

    partitions: tuple[Partition, ...] = ()
    counters: dict[str, int] = {}


class Device(Struct, frozen=True, omit_defaults=True, gc=False):
    """One physical accelerator of one node.

    Attributes:
        id: unique in the cluster, stable over restarts; at most 57 characters, no whitespace, no `::`.
        index: position on the node, the scan order of every policy.
        vendor: name of the vendor that discovered it.
        model: product name as the vendor writes it.
        memory: bytes that may be shared out.
        slots: how many containers may hold a share of it at once.
        cores: percent of compute that may be shared out, normally 100.
        numa: NUMA node; -1 is unknown (never 0).
        pci: PCI address, empty where there is none.
        healthy, reason: a sick device takes no new share; `reason` is one short sentence for the operator.
        isolation: names of the isolation backends that can hold a limit here, strongest first.
        links: other device's id -> link; may be asymmetric, as measured.
    """

    id: str
    index: int
    vendor: str
    model: str
    memory: int
    slots: int
    cores: int = CORES_PER_DEVICE
    numa: int = -1
    pci: str = ""
    healthy: bool = True
    reason: str = ""
    isolation: tuple[str, ...] = ()
    links: dict[str, Link] = {}


class Nic(Struct, frozen=True, omit_defaults=True, gc=False):
    """A network card with its distance (vendor-neutral level name) to each device."""

    name: str
    kind: str = "rdma"
    numa: int = -1
    pci: str = ""
    distances: dict[str, str] = {}


class Inventory(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What one node publishes: the `spec` of its `NodeDevices` object.

    Fields that a newer daemon adds are ignored: scheduler and daemons of neighbouring versions work together, and
    the API server's schema refuses what is merely misspelt.

    Attributes:
        node: name of the node (the object's name, not part of the spec on the wire).
        families: names of the families whose resource names the node serves.
        serving: False from before the daemon closes its socket until the kubelet lists its devices again.
        allocation_version: highest version of the allocation annotation that the node reads.
        topology_policy: the kubelet's topology-manager policy, `unknown` while nobody has read it.
        models: partition tables by model name.
        devices: in index order.
        nics: network cards, for placement near them.
        problems: vendor name -> why that vendor is switched off or failing here.
    """

    node: str
    families: tuple[str, ...] = ("hamipy.io",)
    serving: bool = True
    allocation_version: int = 1
    topology_policy: str = "unknown"
    models: dict[str, Model] = {}
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    problems: dict[str, str] = {}


class ContainerKind(StrEnum):
    """When a container runs; Kubernetes' own three kinds."""

    INIT = "init"
    SIDECAR = "sidecar"
    """A restartable init container: runs from its start until the pod ends."""
    APP = "app"


class ContainerRequest(Struct, frozen=True, gc=False):
    """What one container asks for.

    Attributes:
        name: container name.
        kind: when it runs.
        count: number of distinct devices, >= 1.
        memory: bytes on each device; None when `memory_percentage` says it.
        memory_percentage: percent (1..100) of whichever device is chosen.
        cores: percent of each device's compute, 0 (no compute limit) .. 100 (exclusive).
        partition: explicit partition profile, or None.
    """

    name: str
    kind: ContainerKind
    count: int
    memory: int | None = None
    memory_percentage: int | None = None
    cores: int = 0
    partition: str | None = None

    @property
    def exclusive(self) -> bool:
        """Whether nobody else may hold a share of its devices."""
        return self.cores == CORES_PER_DEVICE

    def memory_on(self, total: int) -> int:
        """Bytes this container needs on a device of `total` bytes (percentages round down)."""
        if self.memory is not None:
            return self.memory
        return total * (self.memory_percentage or CORES_PER_DEVICE) // 100


class Constraints(Struct, frozen=True, gc=False):
    """What the pod's annotations demand of its devices; empty means no demand. Globs are case-insensitive."""

    vendor: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    model_exclude: tuple[str, ...] = ()
    uuid: tuple[str, ...] = ()
    uuid_exclude: tuple[str, ...] = ()
    isolation: tuple[str, ...] = ()


class PodRequest(Struct, frozen=True, gc=False):
    """What one pod asks for: its device containers, init containers (in their order) first.

    `steps` of a pod: each plain init container alone with the sidecars started before it, and at last all app
    containers with all sidecars; `core.fit` computes with them.
    """

    uid: str
    namespace: str
    name: str
    containers: tuple[ContainerRequest, ...]
    constraints: Constraints = Constraints()
    node_policy: str | None = None
    device_policy: str | None = None
    priority: int = 0

    @property
    def shape(self) -> tuple[object, ...]:
        """Equal for pods that fit on exactly the same nodes and devices."""
        return (self.containers, self.constraints, self.node_policy, self.device_policy)


class Share(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Part of one device given to one container; `cores` 100 means exclusive."""

    device: str
    memory: int
    cores: int
    partition: str | None = None


class Allocation(Struct, frozen=True, gc=False):
    """The shares a pod got, by container name."""

    containers: dict[str, tuple[Share, ...]]


class Limit(StrEnum):
    """Which limit a node fails by; the order is the order in which they are tested."""

    NODE = "node"
    """The node is unknown, gone or publishes no inventory."""
    SERVING = "serving"
    """The node's daemon or its kubelet resource is away."""
    MATCH = "match"
    """Too few devices satisfy vendor, model, uuid and isolation."""
    CAPACITY = "capacity"
    """Too few matching devices are large enough even when empty."""
    HEALTH = "health"
    """Too few of those are healthy."""
    SLOTS = "slots"
    """Too few of those have a slot free (for an exclusive share: are empty)."""
    MEMORY = "memory"
    """Too few of those have the memory free."""
    CORES = "cores"
    """Too few of those have the compute free."""
    COMBINATION = "combination"
    """Each container would fit, all together do not."""


class Unfit(Struct, frozen=True, gc=False):
    """Why something does not fit, as data; the edge makes one sentence of it.

    Attributes:
        limit: the first limit that fails.
        wanted: what was asked, in the limit's unit (bytes for memory and capacity, percent for cores, devices else).
        best: the best that is available for it now, same unit.
        count: number of devices the failing container asks for.
        container: name of the failing container, empty for a combination.
        nodes: on how many nodes it is so.
        curable: whether evicting pods could make room.
    """

    limit: Limit
    wanted: int = 0
    best: int = 0
    count: int = 1
    container: str = ""
    nodes: int = 1
    curable: bool = False
