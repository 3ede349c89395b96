"""From reasons as data to one sentence for a person; equal reasons give equal sentences, so events group them."""

from collections.abc import Iterable

from hamipy.core.model import Limit, Unfit
from hamipy.core.quantity import format_bytes, format_size


def sentence(unfit: Unfit) -> str:
    """Why the nodes of this reason do not fit, without their names; kube-scheduler puts their number before it.

    Without a percent sign: kube-scheduler formats it as a template once more when it writes the event.
    """
    wanted, best = str(unfit.wanted), str(unfit.best)
    devices = "one device" if unfit.count == 1 else f"each of {unfit.count} devices"
    match unfit.limit:
        case Limit.NODE:
            return "node(s) without a device inventory"
        case Limit.SERVING:
            return "node(s) whose device daemon is not serving"
        case Limit.MATCH:
            return f"node(s) without {wanted} matching {_plural(unfit.wanted)} (at most {best})"
        case Limit.CAPACITY if unfit.wanted:
            wanted, best = _sizes(unfit)
            return f"node(s) without {wanted} memory on {devices} even when empty (largest has {best})"
        case Limit.CAPACITY:
            return f"node(s) too small for what is wanted on {devices}"
        case Limit.HEALTH:
            return f"node(s) without {wanted} healthy {_plural(unfit.wanted)} (at most {best})"
        case Limit.SLOTS:
            return f"node(s) without {wanted} {_plural(unfit.wanted)} with a share left (at most {best})"
        case Limit.MEMORY if unfit.wanted:
            wanted, best = _sizes(unfit)
            return f"node(s) without {wanted} free memory on {devices} (most free {best})"
        case Limit.MEMORY:
            return f"node(s) without that percentage of free memory on {devices} (most free {format_size(unfit.best)})"
        case Limit.CORES:
            return f"node(s) without {wanted} percent free compute on {devices} (most free {best} percent)"
        case Limit.COMBINATION:
            return f"node(s) that do not fit the pod's {wanted} device containers together"


def summary(reasons: Iterable[Unfit]) -> str:
    """All reasons in one line, most nodes first: `no node fits: 3 node(s) ...; 1 node(s) ...`."""
    parts = [f"{u.nodes} {sentence(u)}" for u in sorted(reasons, key=lambda u: (-u.nodes, u.limit))]
    return "no node fits: " + "; ".join(parts) if parts else "there is no node with devices"


def _sizes(unfit: Unfit) -> tuple[str, str]:
    """Wanted and best in readable units, exact where they would read the same."""
    wanted, best = format_size(unfit.wanted), format_size(unfit.best)
    return (wanted, best) if wanted != best else (format_bytes(unfit.wanted), format_bytes(unfit.best))


def _plural(count: int) -> str:
    return "device" if count == 1 else "devices"
