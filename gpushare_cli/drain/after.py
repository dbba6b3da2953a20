"""Where the successors of evicted pods fit, as far as it can be told."""

from collections.abc import Mapping, Sequence
from typing import Final

from gpushare import names
from gpushare.cluster import defrag
from gpushare.cluster.drain import Permissions
from gpushare.errors import SettingsError, WireError
from gpushare.identity import NodeName, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import Gpu
from gpushare_cli import reading, world
from gpushare_cli.defrag import pods
from gpushare_cli.drain.card import Card

_ALL: Final = Permissions(delete_emptydir_data=True)
_ANY_NAMESPACE: Final = "default"  # policies of others decide which nodes are best, not whether one is enough


def successors(
    api: KubeApi, card: Card, gpus: Sequence[Gpu], leaving: Sequence[PodUid]
) -> tuple[Mapping[PodUid, NodeName | None], str]:
    """A node for each pod whose successor fits on one, None for those that wait, and why nothing is told.

    Pods that nothing recreates, or that demand what is not evaluated, are left out.
    """
    try:
        settings = reading.settings(api, names.NAMESPACE, _ANY_NAMESPACE)
        found = world.of(reading.everything(api), settings)
    except (kube.KubeError, WireError, SettingsError) as error:
        return {}, f"whether the pods fit elsewhere is not told: {error}"
    policies = found.policies()
    prepared = pods.prepare({}, found, (), policies, _ALL)
    closed = {gpu.uuid for gpu in gpus}
    return defrag.successors(prepared.snapshot, NodeName(card.node), closed, leaving), ""
