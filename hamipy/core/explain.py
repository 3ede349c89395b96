"""From reasons as data to one sentence for a person; equal reasons give equal sentences, so events group them."""

from collections.abc import Iterable

from hamipy.core.model import Limit, Unfit
from hamipy.core.quantity import format_bytes, format_size


def sentence(unfit: Unfit) -> str:
    """Why the nodes of this reason do not fit, without node names."""
    devices = "one device" if unfit.count == 1 else f"each of {unfit.count} devices"
    match unfit.limit:
        case Limit.NODE:
            return "node has no device inventory"
        case Limit.SERVING:
            return "node's device daemon is not serving"
        case Limit.ALLOCATION_VERSION:
            return "node's device daemon is older than the scheduler can write for"
        case Limit.MATCH:
            return f"{unfit.wanted} matching {_plural(unfit.wanted)} wanted on one node, at most {unfit.best} there"
        case Limit.CAPACITY if unfit.wanted:
            wanted, best = _sizes(unfit)
            return f"{wanted} memory wanted on {devices}, largest has {best}"
        case Limit.CAPACITY:
            return f"devices too small for what is wanted on {devices}"
        case Limit.HEALTH:
            return f"{unfit.wanted} healthy {_plural(unfit.wanted)} wanted on one node, at most {unfit.best} there"
        case Limit.SLOTS:
            return f"{unfit.wanted} {_plural(unfit.wanted)} with room wanted on one node, at most {unfit.best} free"
        case Limit.MEMORY if unfit.wanted:
            wanted, best = _sizes(unfit)
            return f"{wanted} free memory wanted on {devices}, most free {best}"
        case Limit.MEMORY:
            return f"memory share wanted on {devices} is not free, most free {format_size(unfit.best)}"
        case Limit.CORES:
            return f"{unfit.wanted}% free compute wanted on {devices}, most free {unfit.best}%"
        case Limit.COMBINATION:
            return f"the pod's {unfit.wanted} device containers do not fit together"


def summary(reasons: Iterable[Unfit]) -> str:
    """All reasons in one line, most nodes first: `no node fits: 3 x ...; 1 x ...`."""
    parts = [f"{u.nodes} x {sentence(u)}" for u in sorted(reasons, key=lambda u: (-u.nodes, u.limit))]
    return "no node fits: " + "; ".join(parts) if parts else "there is no node with devices"


def _sizes(unfit: Unfit) -> tuple[str, str]:
    """Wanted and best in readable units, exact where they would read the same."""
    wanted, best = format_size(unfit.wanted), format_size(unfit.best)
    return (wanted, best) if wanted != best else (format_bytes(unfit.wanted), format_bytes(unfit.best))


def _plural(count: int) -> str:
    return "device" if count == 1 else "devices"
