"""Asks an autoscaler for nodes, by placeholders of waiting pods: gather, let `node_requests` decide, write.

A placeholder asks for the same as its pod, off the nodes whose GPUs have no room. The extender refuses it everywhere;
an autoscaler, which asks no extender, sees that it fits on a new node alone.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import orjson

from controller.cluster_table import ClusterTable
from controller.index import Snapshot
from controller.reconcile import node_requests
from controller.reconcile.node_requests import Inputs, Limits, Placeholder, Refusal, Refusals, Why
from controller.reconcile.writer import Writer
from controller.state import ClusterState
from gpushare import names
from gpushare.cluster.pod_records import Bound, Pending
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import EventType, JsonObject
from gpushare.model.ledger import NodeLedger
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff
from gpushare.wire import fields, pods as pods_wire

_LOG: Final = logging.getLogger(__name__)
REASON: Final = "GpuShareNodeRequested"
LIST_S: Final = 60.0  # between two lists; what this process made or removed it knows
RETRY_S: Final = 15.0  # after the API server has refused one
YIELD_S: Final = 4 * RETRY_S  # in which pods of other namespaces have their turn: the cause may be the pod's author
CALLS: Final = 5  # a tick and kind
ASK_S: Final = 0.25  # a tick; judging thousands of nodes for each of these must not take the scheduler's processor
MOST_BYTES: Final = 256 * 1024  # of one, whose size its pod's author decides
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_PREFIX: Final = "for-"
_IMAGE: Final = "registry.k8s.io/pause:3.10"  # never pulled
_NAME: Final = "metadata.name"
_EXPENDABLE: Final = -10  # Cluster Autoscaler adds no nodes for a lower priority, which must not change
_LEAST_PRIORITY: Final = -(2**31)
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def placeholder_path(pod: PodUid | None = None) -> str:
    """Of all placeholders, or of the one of a pod."""
    collection = f"/api/v1/namespaces/{names.PLACEHOLDERS}/pods"
    return collection if pod is None else f"{collection}/{_PREFIX}{pod}"


def spec_for(pod: Mapping[str, Any]) -> JsonObject | None:
    """The spec of a pod's placeholder, which may be on any node. Raises WireError: its fields are malformed.

    None if no other node is to be asked for: it is bound, going, expendable, or pods are evicted for it.
    """
    spec, status = fields.mapping(pod, "spec", "pod"), fields.mapping(pod, "status", "pod")
    expendable = fields.integer(spec, "priority", "spec", least=_LEAST_PRIORITY, default=0) < _EXPENDABLE
    going = fields.mapping(pod, "metadata", "pod").get("deletionTimestamp")
    if going or expendable or status.get("nominatedNodeName") or pods_wire.node_of(pod) is not None:
        return None
    affinity = fields.mapping(fields.mapping(spec, "affinity", "spec"), "nodeAffinity", "spec.affinity")
    required = fields.mapping(affinity, _REQUIRED, "spec.affinity.nodeAffinity")
    # One without conditions matches nothing; with the nodes to keep away from, it would match all others.
    terms = [term for term in fields.objects(required, "nodeSelectorTerms", "required") if any(term.values())]
    kept = {key: spec[key] for key in ("schedulerName", "nodeSelector", "tolerations") if spec.get(key)}
    return {
        **kept,
        "priorityClassName": names.PRIORITY_PLACEHOLDER,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Always",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms or [{}]}}},
        "initContainers": _containers(spec, "initContainers"),
        "containers": _containers(spec, "containers"),
    }


def make(pod: PodRef, spec: JsonObject, nodes: Collection[NodeName], attempt: int) -> JsonObject:
    """The placeholder of a pod. It keeps off nodes by name: the label with a node's host name may differ from it."""
    away = [{"key": _NAME, "operator": "NotIn", "values": [name]} for name in sorted(nodes)]
    terms = [{**term, "matchFields": [*term.get("matchFields", ()), *away]} for term in terms_of(spec)]
    labels = {names.LABEL_APP: "gpushare-placeholder", "app.kubernetes.io/part-of": "gpushare"}
    # In its simulation an autoscaler puts it on the new node, where it must not count as one to be kept.
    told = {SAFE_TO_EVICT: "true", names.ANNOTATION_PLACEHOLDER_FOR: str(pod), names.ANNOTATION_ATTEMPT: str(attempt)}
    name, namespace = f"{_PREFIX}{pod.uid}", names.PLACEHOLDERS
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": told},
        "spec": {**spec, "affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}},
    }


def terms_of(spec: JsonObject) -> Sequence[JsonObject]:
    """The alternatives of a placeholder's node affinity: each of them names all nodes on which it must not be."""
    terms: Sequence[JsonObject] = spec["affinity"]["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"]
    return terms


def read(pod: Mapping[str, Any]) -> Placeholder | None:
    """A pod of the placeholders' namespace; None if it is not the controller's. Raises WireError: it is malformed."""
    ref, meta = pods_wire.ref(pod), fields.mapping(pod, "metadata", "pod")
    annotations = pods_wire.annotations(pod)
    attempt = annotations.get(names.ANNOTATION_ATTEMPT)
    if attempt is None or not ref.name.startswith(_PREFIX):
        return None
    created = fields.text(meta, "creationTimestamp", "metadata")
    if not str(attempt).isdecimal():
        raise WireError(f"metadata.annotations: {names.ANNOTATION_ATTEMPT}: expected a number")
    try:
        at = datetime.fromisoformat(created)
    except ValueError:
        raise WireError("metadata.creationTimestamp: expected a time") from None
    affinity = fields.mapping(fields.mapping(pod, "spec", "pod"), "affinity", "spec").get("nodeAffinity", {})
    terms = affinity.get(_REQUIRED, {}).get("nodeSelectorTerms", [])
    away = [field for term in terms[:1] for field in term.get("matchFields", ()) if field["key"] == _NAME]
    return Placeholder(
        uid=ref.uid,
        pod=PodUid(ref.name.removeprefix(_PREFIX)),
        nodes=frozenset(NodeName(name) for field in away if field["operator"] == "NotIn" for name in field["values"]),
        attempt=int(attempt),
        created=at,
        namespace=str(annotations.get(names.ANNOTATION_PLACEHOLDER_FOR, "")).partition("/")[0],
    )


def _containers(spec: Mapping[str, Any], key: str) -> list[JsonObject]:
    """Nothing but what they take, and whether an init container stays."""
    made = []
    for number, container in enumerate(fields.objects(spec, key, "spec")):
        resources = fields.mapping(container, "resources", f"spec.{key}")
        stays = {"restartPolicy": container["restartPolicy"]} if container.get("restartPolicy") else {}
        takes = {part: resources[part] for part in ("requests", "limits") if resources.get(part)}
        name = f"{'init' if key == 'initContainers' else 'c'}{number}"
        security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        made.append({"name": name, "image": _IMAGE, "resources": takes, "securityContext": security, **stays})
    return made


@dataclass(kw_only=True)
class Placeholders:
    """Makes and removes them. Also with the option off: what it has made before must not stay."""

    writer: Writer
    state: ClusterState
    table: ClusterTable
    refusals: Refusals
    limits: Limits
    _there: dict[PodUid, Placeholder] = field(default_factory=dict)  # by the UID of the waiting pod
    _attempts: dict[PodUid, int] = field(default_factory=dict)
    _resting: dict[PodUid, float] = field(default_factory=dict)
    _in_vain: list[tuple[float, str]] = field(default_factory=list)  # nodes of late: when, and for which namespace
    _list_at: float = float("-inf")  # when they are to be listed next
    _quiet_until: float = float("-inf")  # no request before: one has failed that is not about a single pod
    _again: float = float("-inf")  # when the next one may be made
    _backoff: Backoff = field(default_factory=lambda: Backoff(first_s=LIST_S / 30, cap_s=LIST_S))  # between failures

    def tick(self, snapshot: Snapshot) -> None:
        now = self.writer.clock.monotonic()
        if now < self._quiet_until or (now >= self._list_at and not self._list(now)):
            return
        waiting = {pod.ref.uid: pod for pod in snapshot.pending}
        self._attempts = {uid: number for uid, number in self._attempts.items() if uid in waiting}
        self._resting = {uid: until for uid, until in self._resting.items() if uid in waiting}
        known = Inputs(
            waiting=waiting.keys(),
            refused=self._refused(waiting, snapshot),
            asked=self._there,
            today=self.writer.clock.now(),
            attempts=self._attempts,
            resting=self._resting,
            in_vain=self._counts_in_vain(now),
        )
        steps = node_requests.decide(known, self.limits, now)
        for uid, why in list(steps.remove.items())[:CALLS]:
            if not self._remove(uid, why, snapshot, now):
                return
        for uid, attempt in list(steps.ask.items())[:CALLS]:
            if now < self._again or self.writer.clock.monotonic() - now >= ASK_S:
                return
            self._ask(waiting[uid], known.refused[uid], attempt, snapshot, now)
            if now < self._again:
                namespace = waiting[uid].ref.namespace  # others have their turn
                same = [each for each, pod in waiting.items() if pod.ref.namespace == namespace]
                self._resting |= {each: max(self._resting.get(each, now), now + YIELD_S) for each in same}
                return

    def _counts_in_vain(self, now: float) -> Mapping[str, int]:
        self._in_vain = [each for each in self._in_vain if now - each[0] < node_requests.REST_S]
        return Counter(namespace for _, namespace in self._in_vain)

    def _list(self, now: float) -> bool:
        try:
            page = self.writer.api.list_page(placeholder_path(), keep=_readable, timeout_s=5.0)
        except kube.KubeError as error:
            retry_s = self._wait(now)
            logs.event(_LOG, "placeholders not listed", level=logging.WARNING, error=str(error), retry_s=retry_s)
            return False
        self._there = {each.pod: each for each in page.items if each is not None}
        self._list_at = now + LIST_S
        self._backoff.reset()
        return True

    def _wait(self, now: float) -> float:
        delay = self._backoff.next_s()
        self._quiet_until = now + delay
        return delay

    def _refused(self, waiting: Mapping[PodUid, Pending], snapshot: Snapshot) -> Mapping[PodUid, Refusal]:
        """By nodes whose GPUs are known: others may have room."""
        refused = {}
        for uid, refusal in self.refusals.of(waiting.keys()).items():
            nodes = [name for name in refusal.nodes if isinstance(snapshot.ledgers.get(name), NodeLedger)]
            if nodes and not refusal.left_out and waiting[uid].unschedulable and waiting[uid].request is not None:
                refused[uid] = replace(refusal, nodes=nodes)
        return refused

    def _ask(self, pod: Pending, refusal: Refusal, attempt: int, snapshot: Snapshot, now: float) -> None:
        nodes = {*refusal.nodes, *self._without_room(pod, snapshot)}
        if len(nodes) > node_requests.MOST_NODES:
            nodes = set(refusal.nodes)
        self._resting[pod.ref.uid] = now + RETRY_S  # unless it comes about
        try:
            path = kube.pod_path(pod.ref.namespace, pod.ref.name)
            spec = self.writer.api.read_object(path, keep=spec_for, timeout_s=1.5)
            if spec is None:
                return
            body = self._made(pod, spec, nodes, attempt)
            created = self.writer.api.create(placeholder_path(), body, timeout_s=3.0, precondition=self.writer.leading)
            there = read(created)
        except kube.ConflictError:
            self._list_at = float("-inf")  # it is there
            return
        except (kube.BadRequestError, WireError) as error:
            self._resting[pod.ref.uid] = now + node_requests.REST_S
            logs.event(_LOG, "no node asked for", level=logging.WARNING, pod=str(pod.ref), error=str(error))
            return
        except kube.KubeError as error:
            self._again = now + RETRY_S
            fix = "add the component placeholders to the overlay, or raise its ResourceQuota"
            logs.event(_LOG, "no node asked for", level=logging.WARNING, pod=str(pod.ref), error=str(error), fix=fix)
            return
        self._resting.pop(pod.ref.uid, None)
        if there is not None:
            self._there[pod.ref.uid] = there
        logs.event(_LOG, "node asked for", pod=str(pod.ref), attempt=attempt, nodes=len(nodes))
        some = "the nodes" if self.state.reduced else f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
        made = f"{names.PLACEHOLDERS}/{body['metadata']['name']}"
        by = f"so a new node is asked for by the pod {made}, which an autoscaler sees"
        self.writer.post(pod.ref, REASON, f"no GPU of {some} has room for it, {by}", EventType.NORMAL)

    def _made(self, pod: Pending, spec: JsonObject, nodes: Collection[NodeName], attempt: int) -> JsonObject:
        terms, most = len(terms_of(spec)), node_requests.MOST_NODES
        if terms * len(nodes) > most:  # some 90 bytes each
            raise WireError(f"{len(nodes)} nodes in each of {terms} terms of its node affinity, more than {most}")
        body = make(pod.ref, spec, nodes, attempt)
        if (size := len(orjson.dumps(body))) > MOST_BYTES:
            raise WireError(f"the placeholder would have {size} bytes, more than {MOST_BYTES}")
        return body

    def _without_room(self, pod: Pending, snapshot: Snapshot) -> list[NodeName]:
        """All nodes that refuse the pod: in a large cluster, kube-scheduler names some of them only."""
        assert pod.request is not None  # noqa: S101 - for the type checker: `_refused` has looked
        shape = self.state.index.resolve(pod.request.shape, pod.request.labels)
        refuse = (name for name, answer in self.table.verdicts(shape).items() if answer is not None)
        return [name for name in refuse if isinstance(snapshot.ledgers.get(name), NodeLedger)]

    def _remove(self, uid: PodUid, why: Why, snapshot: Snapshot, now: float) -> bool:
        """Whether the server did it, or there was nothing to do."""
        there = self._there[uid]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": there.uid}}
        try:
            self.writer.api.delete(placeholder_path(uid), body, timeout_s=3.0, precondition=self.writer.leading)
        except (kube.NotFoundError, kube.ConflictError):
            self._list_at = float("-inf")
        except kube.KubeError as error:
            level, why_not, retry_s = logging.WARNING, str(error), self._wait(now)
            logs.event(_LOG, "placeholder not removed", level=level, pod=uid, error=why_not, retry_s=retry_s)
            return False
        del self._there[uid]
        self._attempts[uid] = there.attempt - (why is Why.TURN)
        if why is Why.TURN:
            self._resting[uid] = now + 2 * YIELD_S
        logs.event(_LOG, "placeholder removed", pod=uid, why=why.value)
        pod = next((each for each in snapshot.pods if each.ref.uid == uid), None)
        if node_requests.costs(why, bound=isinstance(pod, Bound)):
            self._in_vain.append((now, there.namespace))
            if self._counts_in_vain(now)[there.namespace] == node_requests.MOST_IN_VAIN:
                hour = f"no node is asked for on behalf of its pods for up to {node_requests.REST_S / 60:.0f} minutes"
                logs.event(_LOG, "nodes in vain", level=logging.WARNING, namespace=there.namespace, effect=hour)
        if isinstance(pod, Pending) and node_requests.rests(why, there.attempt):
            self._resting[uid] = now + node_requests.REST_S
            self._attempts[uid] = 0
            again = f"a node is asked for again in {node_requests.REST_S / 60:.0f} minutes"
            self.writer.post(pod.ref, REASON, f"{why.value}; {again}")
        return True


def _readable(pod: Mapping[str, object]) -> Placeholder | None:
    try:
        return read(pod)
    except WireError as error:
        logs.event(_LOG, "placeholder unreadable", level=logging.WARNING, error=str(error))
        return None
