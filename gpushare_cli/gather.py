"""Reads the nodes and pods that a report is made of. Changes nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from gpushare import names
from gpushare.cluster import pod_records
from gpushare.cluster.pod_records import NonGpuPod
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.units import ResourceConfig
from gpushare.wire import interop, pods, unhealthy

T = TypeVar("T")
_PAGE: Final = "500"
_TIMEOUT_S: Final = 30.0
_TRIES: Final = 3  # a list of many pages expires when the server compacts its history meanwhile
_ANY: Final = ResourceConfig(whole_gpus=True)  # no matter whose resource it is; what is read decides later
CONFIG_MAPS: Final = f"/api/v1/namespaces/{names.UNHEALTHY_NAMESPACE}/configmaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What was read, as plain API objects."""

    nodes: tuple[JsonObject, ...]
    pods: tuple[JsonObject, ...]
    """Pods that ask for GPUs or carry an allocation."""
    guests: tuple[NonGpuPod, ...] = ()
    """What all other pods on nodes take of their hosts."""
    unhealthy: dict[NodeName, frozenset[int]] = field(default_factory=dict)
    """Numbers of the GPUs that Aliyun's ConfigMaps call unhealthy."""
    notes: tuple[str, ...] = ()
    """What could not be read although it may matter."""
    forbidden: str = ""
    """Why neither nodes nor the pods of all namespaces could be read, although the API server answers."""


def gather(api: KubeApi, node: str | None = None) -> Cluster:
    """Read all nodes and the pods on them, or one node and its pods.

    Raises:
        KubeError: the cluster cannot be read; NotFoundError if there is no such node.
    """
    if node is None:
        return _cluster(api, listed(api, "/api/v1/nodes", {}), {"fieldSelector": "spec.nodeName!="})
    nodes = [api.get(kube.node_path(node), timeout_s=_TIMEOUT_S)]
    return _cluster(api, nodes, {"fieldSelector": f"spec.nodeName={node}"})


def everything(api: KubeApi) -> Cluster:
    """Read all nodes and all pods that concern GPUs, also those that wait.

    Raises:
        KubeError: the cluster cannot be read.
    """
    return _cluster(api, listed(api, "/api/v1/nodes", {}), {})


def config_map(api: KubeApi, namespace: str, name: str) -> JsonObject | None:
    """Read a ConfigMap; None if there is none or it may not be read."""
    try:
        return api.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}", timeout_s=_TIMEOUT_S)
    except kube.KubeError:
        return None


def _cluster(api: KubeApi, nodes: list[JsonObject], selector: dict[str, str]) -> Cluster:
    found: list[JsonObject | NonGpuPod] = _listed(api, "/api/v1/pods", selector, _reduced)
    guests = tuple(each for each in found if isinstance(each, NonGpuPod))
    concerned = tuple(each for each in found if not isinstance(each, NonGpuPod))
    try:
        maps = listed(api, CONFIG_MAPS, {}, keep=is_unhealthy_list)
    except kube.KubeError as error:
        what = f"ConfigMaps {names.PREFIX_UNHEALTHY}* in {names.UNHEALTHY_NAMESPACE}"
        note = f"{what} cannot be read ({error}); GPUs that they name are taken for healthy"
        return Cluster(nodes=tuple(nodes), pods=concerned, guests=guests, notes=(note,))
    return Cluster(nodes=tuple(nodes), pods=concerned, guests=guests, unhealthy=unhealthy.of_all(maps))


def _reduced(pod: JsonObject) -> JsonObject | NonGpuPod | None:
    """Of pods without GPUs only what they take: a cluster may have ten times as many of them as of others."""
    if concerns_gpus(pod):
        return pod
    try:
        return pod_records.non_gpu_pod(pod)
    except WireError:
        return None


def listed(
    api: KubeApi, path: str, params: dict[str, str], *, keep: Callable[[JsonObject], bool] = lambda _: True
) -> list[JsonObject]:
    """All objects of a collection, page by page; those of no interest are dropped.

    Raises:
        KubeError: it cannot be read.
    """
    return _listed(api, path, params, lambda obj: obj if keep(obj) else None)


def _listed(api: KubeApi, path: str, params: dict[str, str], reduce: Callable[[JsonObject], T | None]) -> list[T]:
    for _ in range(_TRIES - 1):
        try:
            return _pages(api, path, params, reduce)
        except kube.GoneError:
            continue
    return _pages(api, path, params, reduce)


def _pages(api: KubeApi, path: str, params: dict[str, str], reduce: Callable[[JsonObject], T | None]) -> list[T]:
    """All pages of a list; what is of no interest is dropped at once, so that it never lies in memory together."""
    kept: list[T] = []
    query = {**params, "limit": _PAGE}
    while True:
        page = api.list_page(path, query, keep=reduce, timeout_s=_TIMEOUT_S)
        kept.extend(obj for obj in page.items if obj is not None)
        if not page.more:
            return kept
        query["continue"] = page.more


def concerns_gpus(pod: JsonObject) -> bool:
    """Whether a pod asks for GPUs or carries an allocation, of whatever system."""
    notes = pods.annotations(pod)
    return may_hold_gpus(pod) or names.ANNOTATION_ALLOCATION in notes or interop.is_bound(notes)


def may_hold_gpus(pod: Mapping[str, Any]) -> bool:
    """Whether a pod asks for GPUs. One that does not holds none: its annotations may be forged."""
    return pods.needs_gpu(pod, _ANY)


def own_annotations(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Those that this project, or one that it takes over from, reads or writes."""
    return {
        key: value
        for key, value in annotations.items()
        if f".{key.partition('/')[0]}".endswith(f".{names.DOMAIN}")
        or names.is_reserved(key)
        or interop.is_annotation(key)
    }


def is_unhealthy_list(config_map: JsonObject) -> bool:
    """Whether a ConfigMap says which GPUs of a node must not be used."""
    metadata = config_map.get("metadata") or {}
    return unhealthy.is_one(names.UNHEALTHY_NAMESPACE, str(metadata.get("name")))
