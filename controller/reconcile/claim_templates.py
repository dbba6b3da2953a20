"""Makes the ResourceClaimTemplates that translated pods name, one for all equal ones, and removes those unused."""

import logging
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from controller.index import Snapshot
from controller.reconcile.advice import CAP_S, EventThrottle
from controller.reconcile.writer import Writer
from controller.watches import Found, OptionalWatch
from gpushare import names
from gpushare.identity import PodRef
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff
from gpushare.wire import claim_templates, fields, pods as pods_wire
from gpushare.wire.claim_templates import Template

_LOG: Final = logging.getLogger(__name__)
REASON: Final = "GpuShareClaimTemplate"
CALLS: Final = 5  # a tick and kind
LIST_S: Final = 60.0
UNUSED_S: Final = 300.0  # a workload that is scaled up again finds its template
RETRY_S: Final = 15.0  # then twice as long, and so on
_TIMEOUT_S: Final = 3.0
_MADE_BY: Final = {"app.kubernetes.io/managed-by": names.CONTROLLER}
_OTHER: Final = "{} says something else than the pod asks for, and is left as it is; delete it for the right one"
_NOT_HERE: Final = f"its namespace has no label {names.LABEL_SHARE_BY}={names.CLAIMS}; add it, or create the pod again"
_NEVER: Final = EventThrottle(wait_s=RETRY_S / 2)
Key = tuple[str, str]  # namespace and name of a template


class ClaimingPod(NamedTuple):
    ref: PodRef
    names: tuple[Key, ...]  # templates
    waits_for: Template | None


def _read(_path: str, pod: JsonObject) -> Found[ClaimingPod]:
    ref = pods_wire.ref(pod)
    if not pods_wire.counts(pod):
        return ref.uid, None
    named = fields.objects(pod["spec"], "resourceClaims", "spec")
    keys = tuple((ref.namespace, str(each.get("resourceClaimTemplateName"))) for each in named)
    return ref.uid, ClaimingPod(ref, keys, None if pods_wire.node_of(pod) else claim_templates.of_pod(pod))


@dataclass(kw_only=True)
class ClaimTemplates:
    writer: Writer
    watch: OptionalWatch[ClaimingPod] = field(init=False)
    _used: dict[Key, float] = field(default_factory=dict)  # when each of ours was last named
    _uids: dict[Key, str] = field(default_factory=dict)
    _failed: dict[Key, EventThrottle] = field(default_factory=dict)
    _turns: dict[str, float] = field(default_factory=dict)  # last try by namespace: one must not keep others waiting
    _list_at: float = float("-inf")
    _quiet_until: float = float("-inf")
    _backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        api, clock, params = self.writer.api, self.writer.clock, {"labelSelector": names.CLAIM_TEMPLATE}
        paths, effect, right = ("/api/v1/pods",), "no templates are made for claims", "list and watch of pods"
        self.watch = OptionalWatch(
            api=api, clock=clock, paths=paths, params=params, kind="pod", read_one=_read, effect=effect, right=right
        )

    def tick(self, _snapshot: Snapshot) -> None:
        now = self.writer.clock.monotonic()
        if now < self._quiet_until:
            return
        try:
            self._tick(now)
            self._backoff.reset()
        except kube.KubeError as error:  # not of one template alone
            self._quiet_until = now + self._backoff.next_s()
            logs.event(_LOG, "claim templates not kept", level=logging.WARNING, error=str(error))

    def _tick(self, now: float) -> None:
        if now >= self._list_at:
            self._list(now)
        waiting = dict[Key, tuple[PodRef, Template]]()
        for pod in self.watch.values():
            self._used.update((key, now) for key in pod.names if key in self._used)
            if (template := pod.waits_for) and (key := (pod.ref.namespace, template.name)) not in self._used:
                waiting.setdefault(key, (pod.ref, template))
        self._failed = {key: self._failed.get(key, _NEVER) for key in waiting}
        due = [key for key, last in self._failed.items() if not last.too_early(now)]
        self._turns = {namespace: self._turns.get(namespace, _NEVER.at) for namespace, _ in waiting}
        for key in sorted(due, key=lambda each: (self._turns[each[0]], self._failed[each].at))[:CALLS]:
            self._turns[key[0]] = now
            self._failed[key] = replace(self._failed[key], at=now)  # also where the server fails for this one only
            self._make(key, *waiting[key], now)
        unused = [key for key, at in self._used.items() if now - at >= UNUSED_S] if self.watch.is_listed else []
        for key in unused[:CALLS]:
            self._remove(key)

    def _list(self, now: float) -> None:
        selector = {"labelSelector": ",".join(map("=".join, _MADE_BY.items()))}
        ours = self.writer.api.list_page(claim_templates.ALL, selector, keep=lambda each: each["metadata"]).items
        self._uids = {(each["namespace"], each["name"]): each["uid"] for each in ours}
        self._used = {key: self._used.get(key, now) for key in self._uids}
        self._list_at = now + LIST_S

    def _make(self, key: Key, pod: PodRef, template: Template, now: float) -> None:
        try:
            problem = self._made(key, template, now)
        except (kube.ForbiddenError, kube.BadRequestError, kube.NotFoundError) as error:  # such as of a quota
            problem = f"ResourceClaimTemplate {template.name} cannot be made: {error}; ask an administrator"
        if problem:
            self._failed[key] = EventThrottle(at=now, wait_s=min(self._failed[key].wait_s * 2, CAP_S))
            self.writer.post(pod, REASON, f"it waits for its claim: {problem}")

    def _made(self, key: Key, template: Template, now: float) -> str:
        """Make it, or find it; else why not."""
        api, (namespace, name) = self.writer.api, key
        labels = api.get(f"/api/v1/namespaces/{namespace}", timeout_s=_TIMEOUT_S)["metadata"].get("labels") or {}
        if labels.get(names.LABEL_SHARE_BY) != names.CLAIMS:  # a forged annotation is worth nothing there
            return _NOT_HERE
        path, body = claim_templates.PATH.format(namespace), template.object(namespace, labels=_MADE_BY)
        try:
            made = api.create(path, body, timeout_s=_TIMEOUT_S, precondition=self.writer.leading)
        except kube.ConflictError:
            if api.get(f"{path}/{name}", timeout_s=_TIMEOUT_S).get("spec") != body["spec"]:
                return _OTHER.format(f"ResourceClaimTemplate {name}")
        else:
            self._uids[key] = made["metadata"]["uid"]
            logs.event(_LOG, "claim template made", namespace=namespace, template=name)
        self._used[key] = now  # someone else's until the next list, which does not have it
        return ""

    def _remove(self, key: Key) -> None:
        (namespace, name), body = key, {"preconditions": {"uid": self._uids[key]}}
        del self._used[key]  # what fails is found again by the next list
        path = f"{claim_templates.PATH.format(namespace)}/{name}"
        self.writer.api.delete(path, body, timeout_s=_TIMEOUT_S, precondition=self.writer.leading)
        logs.event(_LOG, "claim template removed", namespace=namespace, template=name)
