"""What commands read of a cluster: objects, budgets and the installation's settings. Changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

from gpushare import names
from gpushare.cluster import budgets as budgets_of, claim_records as records_of_claims, node_records, pod_records
from gpushare.cluster.budgets import Budget
from gpushare.cluster.claim_records import ClaimRecord
from gpushare.cluster.pod_records import NonGpuPod
from gpushare.errors import SettingsError, WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.request import DEFAULT_POLICY, Policy
from gpushare.runtime import options
from gpushare.runtime.options import option
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from gpushare.wire import claims as claims_wire, fields, interop, pods as pods_wire

T = TypeVar("T")
Spec = tuple[Any, ...]  # of the fields that are kept, see `kept`
CONFIG_MAPS: Final = f"/api/v1/namespaces/{names.UNHEALTHY_NAMESPACE}/configmaps"
BUDGETS: Final = ("/apis/policy/v1/poddisruptionbudgets", "/apis/policy/v1beta1/poddisruptionbudgets")  # 1.21 on
CLAIMS: Final = f"{claims_wire.API}/resourceclaims"
_PAGE: Final = "500"
_TIMEOUT_S: Final = 30.0
_TRIES: Final = 3  # a list of many pages expires when the server compacts its history meanwhile
POD: Final = "pod"
_GROUPS: Final = {  # the beginnings of their paths at the API server
    **{POD: "/api/v1", "job": "/apis/batch/v1"},
    **dict.fromkeys(("deployment", "statefulset", "replicaset", "daemonset"), "/apis/apps/v1"),
}
_SHORT: Final = {"po": POD, "deploy": "deployment", "sts": "statefulset", "rs": "replicaset", "ds": "daemonset"}
_ANY: Final = ResourceConfig(whole_gpus=True)  # no matter whose resource it is; what is read decides later


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    nodes: tuple[JsonObject, ...] = ()
    pods: tuple[JsonObject, ...] = ()  # pods that ask for GPUs or carry an allocation
    others: tuple[NonGpuPod, ...] = ()  # what all other pods on nodes take of their hosts
    unhealthy: Mapping[NodeName, frozenset[int]] = field(default_factory=dict)  # by Aliyun's ConfigMaps
    notes: tuple[str, ...] = ()  # what could not be read although it may matter
    forbidden: str = ""  # why neither nodes nor all pods could be read


def on_nodes(api: KubeApi, node: str | None = None) -> Objects:
    if node is None:
        return _objects(api, listed(api, "/api/v1/nodes"), {"fieldSelector": "spec.nodeName!="})
    nodes = [api.get(kube.node_path(node), timeout_s=_TIMEOUT_S)]
    return _objects(api, nodes, {"fieldSelector": f"spec.nodeName={node}"})


def everything(api: KubeApi) -> Objects:
    return _objects(api, listed(api, "/api/v1/nodes"), {})


def _objects(api: KubeApi, nodes: list[JsonObject], selector: Mapping[str, str]) -> Objects:
    found: list[JsonObject | NonGpuPod] = _listed(api, "/api/v1/pods", selector, _reduced)
    others = tuple(each for each in found if isinstance(each, NonGpuPod))
    concerned = tuple(each for each in found if not isinstance(each, NonGpuPod))
    marked: Mapping[NodeName, frozenset[int]] = {}
    notes: tuple[str, ...] = ()
    try:
        marked = node_records.unhealthy_by_node(listed(api, CONFIG_MAPS, keep=is_unhealthy_list))
    except kube.KubeError as error:
        what = f"ConfigMaps {names.PREFIX_UNHEALTHY}* in {names.UNHEALTHY_NAMESPACE}"
        notes = (f"{what} cannot be read ({error}); GPUs that they name are taken for healthy",)
    return Objects(nodes=tuple(nodes), pods=concerned, others=others, unhealthy=marked, notes=notes)


def _reduced(pod: JsonObject) -> JsonObject | NonGpuPod | None:
    """Of pods without GPUs only what they take: a cluster may have ten times as many of them as of others."""
    if concerns_gpus(pod):
        return pod
    with suppress(WireError):
        return pod_records.non_gpu_pod(pod)
    return None


def listed(
    api: KubeApi,
    path: str,
    params: Mapping[str, str] | None = None,
    *,
    keep: Callable[[JsonObject], bool] = lambda _: True,
) -> list[JsonObject]:
    """All objects of a collection, page by page; those of no interest are dropped."""
    return _listed(api, path, params or {}, lambda obj: obj if keep(obj) else None)


def _listed(
    api: KubeApi, path: str, params: Mapping[str, str], reduce: Callable[[JsonObject], T | None], tries: int = _TRIES
) -> list[T]:
    """What is of no interest is dropped at once, so that it never lies in memory together."""
    kept: list[T] = []
    query = {**params, "limit": _PAGE}
    while True:
        try:
            page = api.list_page(path, query, keep=reduce, timeout_s=_TIMEOUT_S)
        except kube.GoneError:
            if tries == 1:
                raise
            return _listed(api, path, params, reduce, tries - 1)
        kept.extend(obj for obj in page.items if obj is not None)
        if not page.more:
            return kept
        query["continue"] = page.more


def namespaced(namespace: str, resource: str, name: str = "", *, group: str = "/api/v1") -> str:
    """The path of a collection or an object, of names that a user may have written."""
    path = f"{group}/namespaces/{quote(namespace, safe='')}/{resource}"
    return f"{path}/{quote(name, safe='')}" if name else path


def budgets(api: KubeApi) -> tuple[Sequence[Budget], str]:
    """All PodDisruptionBudgets, and why some are not told; the API server obeys them all the same."""
    for path in BUDGETS:
        try:
            objects = listed(api, path)
        except kube.NotFoundError:
            continue
        except kube.KubeError as error:
            return (), f"PodDisruptionBudgets cannot be read ({error}); the API server obeys them all the same"
        found: list[Budget] = []
        unread = ""
        for each in objects:
            try:
                found.append(budgets_of.parse(each, empty_is_all=path == BUDGETS[0]))
            except WireError as error:
                unread = unread or f"a PodDisruptionBudget cannot be read: {error}"
        return found, unread
    return (), ""


def claims(api: KubeApi) -> tuple[Sequence[JsonObject] | None, str]:
    """ResourceClaims, reduced, that are allocated GPUs of this project; None, and why, if they may not be listed."""

    def allocated(claim: JsonObject) -> JsonObject | None:
        reduced = claims_wire.reduce(claim)
        return reduced if reduced["results"] else None

    try:
        return _listed(api, CLAIMS, {}, allocated), ""
    except kube.NotFoundError:
        return (), ""
    except kube.KubeError as error:
        return None, f"ResourceClaims may not be listed ({error}); how much of GPUs they hold is not known"


def claim_records(api: KubeApi) -> Sequence[ClaimRecord] | None:
    """ResourceClaims of the cluster for GPUs of this project, allocated or not; None if they may not be listed."""

    def readable(claim: JsonObject) -> ClaimRecord | None:
        with suppress(WireError):
            return records_of_claims.read(claim)
        return None

    try:
        return _listed(api, CLAIMS, {}, readable)
    except kube.KubeError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the administrators decided for all components, by the names of the components' own settings."""

    memory_unit: MemoryUnit | None = option(None, "None for the one in which the nodes count", parse=MemoryUnit.parse)
    whole_gpus: bool = option(False, f"whether {names.GPU} is this project's", parse=options.boolean)
    gpu_policy: Policy = option(DEFAULT_POLICY, "of pods that name none", parse=Policy.parse)
    gpu_percent: bool = option(True, f"whether nodes offer {names.GPU_PERCENT}", parse=options.boolean)
    scheduler_name: str = option(names.SCHEDULER, "empty if GPU pods go to the cluster's own")
    runtime_class: str = option(names.RUNTIME_CLASS, "of GPU pods that name none")
    runtime_class_mode: str = option("where-needed", "when the webhook writes it")

    @property
    def resource_config(self) -> ResourceConfig:
        """By which requests are read where nothing is set."""
        return ResourceConfig(unit=self.memory_unit or GIB, whole_gpus=self.whole_gpus)


def settings_of(config: Mapping[str, Any] | None) -> Settings:
    """The settings of the installation's ConfigMap; the defaults without one."""
    data = fields.mapping(config or {}, "data", names.CONFIG)
    variables = {key: fields.text(data, key, f"{names.CONFIG}.data") for key in data}
    return options.load(Settings, (), prog=names.CONFIG, environ=variables)


def settings(api: KubeApi, installation: str, namespace: str, memory_unit: MemoryUnit | None = None) -> Settings:
    """Those of the installation, as far as they can be read, of the pods' namespace, and of the command line."""
    config = None
    with suppress(kube.KubeError):
        config = api.get(namespaced(installation, "configmaps", names.CONFIG), timeout_s=_TIMEOUT_S)
    try:
        installed = settings_of(config)
    except SettingsError as error:
        raise WireError(f"ConfigMap {names.CONFIG}: {error}") from error
    policy = _policy(api, namespace) or installed.gpu_policy
    return replace(installed, memory_unit=memory_unit or installed.memory_unit, gpu_policy=policy)


def _policy(api: KubeApi, namespace: str) -> Policy | None:
    """Of pods in a namespace that name none; None if its label names none, or it may not be read."""
    try:
        found = api.get(f"/api/v1/namespaces/{quote(namespace, safe='')}")
        labels = fields.mapping(fields.mapping(found, "metadata", "namespace"), "labels", "metadata")
        return Policy.parse(fields.text(labels, names.LABEL_POLICY, "labels"))
    except (kube.ForbiddenError, kube.NotFoundError, WireError, ValueError):
        return None


def concerns_gpus(pod: JsonObject) -> bool:
    """Whether a pod asks for GPUs or carries an allocation, of whatever system."""
    notes = pods_wire.annotations(pod)
    return may_hold_gpus(pod) or names.ANNOTATION_ALLOCATION in notes or interop.is_bound(notes)


def may_hold_gpus(pod: Mapping[str, Any]) -> bool:
    """Whether a pod asks for GPUs. One that does not holds none: its annotations may be forged."""
    return pods_wire.needs_gpu(pod, _ANY)


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
    metadata = config_map.get("metadata") or {}
    return node_records.is_unhealthy_list(names.UNHEALTHY_NAMESPACE, str(metadata.get("name")))


def kept(value: Mapping[str, Any], wanted: Spec) -> dict[str, Any]:
    """The fields of an object that are wanted.

    A field is named alone or with what is kept of it, or of each object of a list: names again, or a function. One of
    another shape is left out then, as no one can say what is in it, and so is an object of a list with nothing to keep.
    """
    found: dict[str, Any] = {}
    for each in wanted:
        if isinstance(each, str):
            found |= {each: value[each]} if each in value else {}
            continue
        key, inner = each
        field = value.get(key)
        keep = inner if callable(inner) else partial(kept, wanted=inner)
        if isinstance(field, dict):
            found[key] = keep(field)
        elif isinstance(field, list):
            found[key] = [part for item in field if isinstance(item, dict) and (part := keep(item))]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a user names: one pod, or all pods of a workload."""

    kind: str = POD  # in small letters
    namespace: str = ""
    name: str

    @classmethod
    def parse(cls, text: str) -> "Target":
        before, slash, name = text.rpartition("/")
        if "/" in before or not name or (slash and not before):
            raise SettingsError(f"pod {text!r}: write NAME, NAMESPACE/NAME or KIND/NAME")
        word = before.lower()
        kind = _SHORT.get(word, word.removesuffix("s"))
        return cls(kind=kind, name=name) if kind in _GROUPS else cls(namespace=before, name=name)

    def namespace_or(self, option: str, default: Callable[[], str]) -> str:
        """Its namespace: the one that it names, that of `--namespace`, or the one that a user means who names none."""
        if self.namespace and option not in {"", self.namespace}:
            named = f"{self.namespace}/{self.name}"
            raise SettingsError(f"pod {named!r}: --namespace {option} says another namespace")
        return self.namespace or option or default()


def pods_of(api: KubeApi, kind: str, namespace: str, name: str) -> Sequence[JsonObject]:
    """One pod, or those that a workload selects."""
    path = namespaced(namespace, f"{kind}s", name, group=_GROUPS[kind])
    named = api.get(path, timeout_s=_TIMEOUT_S)
    if kind == POD:
        return [named]
    spec = fields.mapping(named, "spec", "workload")
    selector = budgets_of.label_selector(fields.mapping(spec, "selector", "spec"), "spec.selector")
    if not selector.requirements:
        raise WireError("spec.selector: is empty")
    everyone = namespaced(namespace, "pods")
    return listed(api, everyone, keep=lambda pod: selector.matches(pods_wire.labels(pod)))


def events_on(api: KubeApi, pod: JsonObject) -> Sequence[JsonObject]:
    """Events on a pod, the latest last; empty if they may not be read."""
    metadata = fields.mapping(pod, "metadata", "pod")
    path = namespaced(str(metadata.get("namespace")), "events")
    params = {"fieldSelector": f"involvedObject.uid={metadata.get('uid')}"}
    try:
        events_on_it = listed(api, path, params)
    except kube.ForbiddenError:
        return ()
    return sorted(events_on_it, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
