"""Reads the nodes and pods that a report is made of. The only part of the command line that talks to a cluster."""

from dataclasses import dataclass
from typing import Final

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.wire import pods

_PAGE: Final = "500"
_TIMEOUT_S: Final = 30.0
_TRIES: Final = 3  # a list of many pages expires when the server compacts its history meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What was read, as plain API objects."""

    nodes: tuple[JsonObject, ...]
    pods: tuple[JsonObject, ...]
    """Bound pods that ask for GPUs or carry an allocation."""


def gather(api: KubeApi, node: str | None = None) -> Cluster:
    """Read all nodes and their pods, or one node and its pods.

    Raises:
        KubeError: the cluster cannot be read; NotFoundError if there is no such node.
    """
    if node is None:
        nodes = _list(api, "/api/v1/nodes", {})
        selector = "spec.nodeName!="
    else:
        nodes = [api.get(kube.node_path(node), timeout_s=_TIMEOUT_S)]
        selector = f"spec.nodeName={node}"
    bound = _list(api, "/api/v1/pods", {"fieldSelector": selector}, only_gpu_pods=True)
    return Cluster(nodes=tuple(nodes), pods=tuple(bound))


def _list(api: KubeApi, path: str, params: dict[str, str], *, only_gpu_pods: bool = False) -> list[JsonObject]:
    for _ in range(_TRIES - 1):
        try:
            return _pages(api, path, params, only_gpu_pods=only_gpu_pods)
        except kube.GoneError:
            continue
    return _pages(api, path, params, only_gpu_pods=only_gpu_pods)


def _pages(api: KubeApi, path: str, params: dict[str, str], *, only_gpu_pods: bool) -> list[JsonObject]:
    """All pages of a list; pods of no interest are dropped page by page, so that they never lie in memory together."""
    found: list[JsonObject] = []
    query = {**params, "limit": _PAGE}
    while True:
        page = api.get(path, query, timeout_s=_TIMEOUT_S)
        items = page.get("items") or []
        found.extend(filter(_concerns_gpus, items) if only_gpu_pods else items)
        more = (page.get("metadata") or {}).get("continue")
        if not more:
            return found
        query["continue"] = more


def _concerns_gpus(pod: JsonObject) -> bool:
    notes = pods.annotations(pod)
    return pods.needs_gpu(pod) or names.ANNOTATION_ALLOCATION in notes or names.ACK_ALLOCATION in notes
