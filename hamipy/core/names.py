"""The words of our domain that stand in Kubernetes objects, each with one sentence."""

DOMAIN = "hamipy.io"
"""Domain of our resources and annotations (the families may use others)."""

KUBELET_RESOURCE = f"{DOMAIN}/device"
"""The one resource the kubelet knows: ids `<device id>::<slot>`, as many as devices x slots."""

SCHEDULER_NAME = "hamipy-scheduler"
"""The kube-scheduler profile that asks our extender."""

CDI_KIND = f"{DOMAIN}/share"
"""CDI kind; the device name is the random one answered to Allocate."""

ALLOCATION = f"{DOMAIN}/allocation"
"""Pod annotation: the decision, written by the Binding; see `core.codec`."""

RETRY = f"{DOMAIN}/retry"
"""Pod annotation: changed by the active scheduler to requeue a refused pod that fits now."""

RESERVED_ANNOTATIONS = (ALLOCATION, RETRY)
"""Annotations that only the scheduler writes."""

RESERVED_ENV_PREFIXES = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT", "CUDA_MPS_", "HAMIPY_")
"""Environment that enforcement owns, by prefix."""

RESERVED_ENV = ("NVIDIA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "ASCEND_RUNTIME_OPTIONS", "ASCEND_VNPU_SPECS")
"""Environment that enforcement owns, exact names."""

CONSTRAINTS_PREFIX = f"{DOMAIN}/"
"""Constraint annotations are `hamipy.io/<constraint>`; `core.request` lists them."""


def slot_id(device: str, slot: int) -> str:
    """Id advertised to the kubelet for slot `slot` of `device`: `<device>::<slot>`, as dcgm-exporter reads it."""
    return f"{device}::{slot}"


def device_of(slot: str) -> str:
    """Device id of an advertised id (`GPU-1::3` -> `GPU-1`)."""
    return slot.rpartition("::")[0]
