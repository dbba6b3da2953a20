"""The pods of this node, mirrored by a watch and reduced to what a decision needs."""

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import ContainerName, GpuUuid, PodUid
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Allocation, Grant, Held
from gpushare.model.request import MAX_ASKING, MAX_CONTAINERS
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import ResourceConfig
from gpushare.wire import allocations, fields, frameworks, interop, pods as wire
from gpushare.wire.pods import Pod

_LOG: Final = logging.getLogger(__name__)
PATH: Final = "/api/v1/pods"
_ANY: Final = ResourceConfig(whole_gpus=True)
_AUTHORS: Final = (
    names.ANNOTATION_LIMIT,
    names.ANNOTATION_FRAMEWORK_VARIABLES,
    names.ANNOTATION_HAND_OVER,
    names.WATCHDOG,
)
_LAST: Final = 10**20  # nanoseconds; later than any pod
_AUTHORS_MOST: Final = 128
_TEXT_MOST: Final = 256
_CLAIMS_MOST: Final = 32  # of a pod; of one with more nothing is known
_LIMITS: Final = (*names.SHARED_RESOURCES, names.GPU_CORE, names.GPU)
_ID: Final = re.compile(r"[a-z-]{1,63}://[0-9a-f]{64}")
T = TypeVar("T")


def reduce(pod: JsonObject) -> JsonObject:
    """A pod without what no decision looks at, which is most of it. May raise WireError.

    What a tenant can multiply is bounded: of containers those that ask for GPUs or use claims, unless there are more of
    them, or of what they use, than any pod is granted, and of variables the one that counts.
    """
    annotations = wire.annotations(pod)
    spec, status = fields.mapping(pod, "spec", "pod"), fields.mapping(pod, "status", "pod")
    claims = _claims(spec, status)
    # Another system's annotations may count containers by their place.
    keep_all = interop.is_bound(annotations)
    containers = {
        field: [
            _container(each)
            for each in fields.objects(spec, field, "spec")
            if keep_all or wire.asks(each, _ANY) or (claims and _uses(each))
        ]
        for field in ("initContainers", "containers")
    }
    kept = [max(1, len(_uses(each))) for kind in containers.values() for each in kind]
    if sum(kept) > (MAX_CONTAINERS if keep_all else MAX_ASKING):
        containers = {}
    return {
        "metadata": {
            **_identity(pod),
            "annotations": {key: value for key, value in annotations.items() if names.is_reserved(key)}
            | {key: annotations[key][:_AUTHORS_MOST] for key in _AUTHORS if key in annotations},
        },
        "spec": {
            "nodeName": spec.get("nodeName"),
            "schedulerName": str(spec.get("schedulerName") or "")[:_TEXT_MOST],
            "runtimeClassName": spec.get("runtimeClassName"),
            **({"resourceClaims": claims} if claims else {}),
            **containers,
        },
        "status": {
            "phase": status.get("phase"),
            "containerStatuses": _reports(pod, {each["name"] for kind in containers.values() for each in kind}),
        },
    }


def _ended(pod: Pod) -> JsonObject:
    """Enough of a pod to forget it: a node rejects as many as a tenant creates, and they stay."""
    return {"metadata": _identity(pod), "status": {"phase": pod["status"]["phase"]}}


def _identity(pod: Pod) -> JsonObject:
    ref = wire.ref(pod)
    return {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}


def _claims(spec: JsonObject, status: JsonObject) -> list[JsonObject]:
    """By the names that containers use, also those that were made of templates."""
    made = fields.objects(status, "resourceClaimStatuses", "status")
    found = [
        {key: fields.text(each, key, "resourceClaims") for key in ("name", "resourceClaimName")}
        for each in (*fields.objects(spec, "resourceClaims", "spec"), *made)
        if each.get("resourceClaimName")
    ]
    return found if len(found) <= _CLAIMS_MOST else []


def _uses(container: Mapping[str, Any]) -> Sequence[JsonObject]:
    return fields.objects(fields.mapping(container, "resources", "container"), "claims", "container.resources")


def _reports(pod: JsonObject, among: Collection[str]) -> list[JsonObject]:
    """Which of these containers has which ID, and whether any container of the pod runs."""
    found, running = list[JsonObject](), False
    for path, report in wire.reports(pod):
        running = running or "running" in fields.mapping(report, "state", path)
        identity = fields.text(report, "containerID", path)
        if report.get("name") in among and _ID.fullmatch(identity):
            found.append({"name": report["name"], "containerID": identity})
    return [*found[:MAX_CONTAINERS], *([{"state": {"running": None}}] if running else [])]


def _container(container: Mapping[str, Any]) -> JsonObject:
    limits = wire.amounts(container, "limits")
    claims = [{key: fields.text(each, key, "claims") for key in ("name", "request")} for each in _uses(container)]
    return {
        "name": fields.needed(container, "name", "container"),
        "restartPolicy": container.get("restartPolicy"),
        "image": str(container.get("image"))[:_TEXT_MOST],
        "env": _variables(fields.objects(container, "env", "container")),
        # Only whether there is any: what it brings can change while the pod lives.
        "envFrom": bool(container.get("envFrom")),
        "resources": {
            "limits": {key: limits[key] for key in _LIMITS if key in limits},
            **({"claims": claims} if claims else {}),
        },
    }


def _variables(env: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """Names, and of the last one for the GPUs where its value comes from; no values, which may be long."""
    devices: list[JsonObject] = []
    for entry in env:
        if entry.get("name") == names.ENV_VISIBLE_DEVICES:
            source = fields.mapping(fields.mapping(entry, "valueFrom", "env"), "fieldRef", "env.valueFrom")
            devices = [{"name": entry["name"], "valueFrom": {"fieldRef": {"fieldPath": source.get("fieldPath")}}}]
    limits = frameworks.VARIABLES.intersection(str(entry.get("name")) for entry in env)
    return [*devices, *({"name": name} for name in sorted(limits))]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPod:
    allocation: Allocation  # with the UUIDs of its GPUs
    assumed: int  # when it was decided, in nanoseconds; see `assumed`
    container_ids: Mapping[ContainerName, str]  # the runtime's, as far as the kubelet has told them
    annotations: Mapping[str, str]
    held: Mapping[GpuUuid, Held] | None = None  # by all its containers, where that is not the sum of the grants


def held(pods: Iterable[Pod], inventory: NodeInventory, resource_config: ResourceConfig) -> Iterator[HeldPod]:
    """Those of these pods that hold GPUs. Pure.

    One that cannot be read is left out: its own containers are refused. Who asks for nothing holds nothing, whatever
    its annotations claim: no one guards those.
    """
    for pod in pods:
        try:
            if not wire.holds_gpus(pod) or not wire.needs_gpu(pod, resource_config):
                continue
            allocation = allocations.held(pod, resource_config, inventory.unit).allocation
            container_ids = wire.container_ids(pod)
        except WireError:
            continue
        if allocation is not None:
            yield HeldPod(
                allocation=replace(allocation, grants=resolve_grants(allocation.grants, inventory)),
                assumed=assumed(pod),
                container_ids=container_ids,
                annotations=wire.annotations(pod),
            )


def assumed(pod: Pod) -> int:
    """When a pod was given its GPUs, in nanoseconds; one that does not say comes last."""
    text = wire.annotations(pod).get(names.ALIYUN_ASSUME_TIME, "")
    return int(text) if text.isdecimal() and len(text) < 20 else _LAST


def resolve_grants(grants: Sequence[Grant], inventory: NodeInventory) -> tuple[Grant, ...]:
    """With UUIDs, and one for each container: former systems know numbers, and some grant each GPU by itself."""
    merged: dict[Grant, tuple[GpuUuid, ...]] = {}
    for grant in grants:
        key = replace(grant, gpus=())
        merged[key] = (*merged.get(key, ()), *map(inventory.resolve, grant.gpus))
    return tuple(replace(key, gpus=gpus) for key, gpus in merged.items())


class PodCache:
    """A watch's sink, and what readers see of it. Safe for use by many threads; the lock is never held for long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._version = 0
        self._pods: dict[PodUid, Pod] = {}
        self._seen: dict[PodUid, tuple[str, float]] = {}  # the allocation, and when the watch told of it first

    def read(self, pod: JsonObject) -> Pod | None:
        """A pod, reduced. One that asks for no GPU and no claim is left out: it holds nothing."""
        try:
            if not (wire.needs_gpu(pod, _ANY) or fields.mapping(pod, "spec", "pod").get("resourceClaims")):
                return None
            return reduce(pod) if wire.holds_gpus(pod) else _ended(pod)
        except WireError as error:
            logs.event(_LOG, "object left out", level=logging.ERROR, error=str(error))
            return None

    def replace(self, pods: list[Pod]) -> None:
        with self._changed:
            self._pods = {wire.ref(pod).uid: pod for pod in pods if wire.holds_gpus(pod)}
            known, self._seen = self._seen, {}
            for uid, pod in self._pods.items():
                self._see(uid, pod, known.get(uid))
            self._tell()

    def upsert(self, pod: Pod) -> None:
        if not wire.holds_gpus(pod):
            self.remove(pod)
            return
        with self._changed:
            uid = wire.ref(pod).uid
            self._pods[uid] = pod
            self._see(uid, pod, self._seen.pop(uid, None))
            self._tell()

    def remove(self, pod: Pod) -> None:
        with self._changed:
            uid = wire.ref(pod).uid
            self._pods.pop(uid, None)
            self._seen.pop(uid, None)
            self._tell()

    def all(self) -> Sequence[Pod]:
        with self._changed:
            return tuple(self._pods.values())

    def by_uid(self, uid: PodUid) -> Pod | None:
        with self._changed:
            return self._pods.get(uid)

    def allocation_seen_since(self, uid: PodUid) -> float | None:
        """Since when the watch shows the pod's allocation as it is now, by `monotonic`; None while it shows none."""
        with self._changed:
            return self._seen[uid][1] if uid in self._seen else None

    def wait_for(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """Call `look` now and after changes, until it gives something or the time is over.

        Without the lock, and after changes by one thread at a time: the watch has to go on meanwhile.
        """
        until = self._clock.monotonic() + seconds
        version, result = self._version, look()
        while result is None and self._is_newer(version, until):
            if not self._turn.acquire(timeout=max(0.0, until - self._clock.monotonic())):
                break
            try:
                version, result = self._version, look()
            finally:
                self._turn.release()
        return result

    def _is_newer(self, version: int, until: float) -> bool:
        with self._changed:
            left = until - self._clock.monotonic()
            return left > 0 and self._changed.wait_for(lambda: self._version != version, left)

    def _tell(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _see(self, uid: PodUid, pod: Pod, before: tuple[str, float] | None) -> None:
        text = wire.annotations(pod).get(names.ANNOTATION_ALLOCATION)
        if text is not None:
            self._seen[uid] = before if before and before[0] == text else (text, self._clock.monotonic())
