"""`/preempt`: a veto. A candidate node stays only if evicting its victims would make room on its devices.

Victims are never added: kube-scheduler evicts what an extender adds without looking at priorities.
"""

from collections.abc import Mapping

from hamipy.core.model import PodRequest, Unfit
from hamipy.scheduler.holds import Holds
from hamipy.scheduler.nominations import Nominations
from hamipy.scheduler.state import ClusterState
from hamipy.scheduler.stats import Stats
from hamipy.scheduler.wire import MetaVictims


def veto(
    state: ClusterState,
    holds: Holds,
    nominations: Nominations,
    stats: Stats,
    request: PodRequest,
    candidates: Mapping[str, MetaVictims],
) -> dict[str, MetaVictims]:
    """The candidates on which the pod would fit once their victims are gone.

    Uids that the ledger does not know hold no shares, so they free none.
    """
    kept = {}
    lower = nominations.ignored_by(request)
    for node, victims in candidates.items():
        gone = {victim.uid for victim in victims.pods or ()}
        fit = state.placement.decide(request, node, without=gone.union(holds.on(node), lower))
        if isinstance(fit, Unfit):
            stats.preemptions["vetoed"] += 1
        else:
            stats.preemptions["kept"] += 1
            kept[node] = victims
    return kept
