"""A Kubernetes API server in memory, with the semantics that this project leans on and faults on demand.

`FakeKube` implements `gpushare.kube.api.KubeApi`. Everything that goes through the protocol is recorded in `calls`;
the side doors for tests (`seed`, `edit`, `vanish`, `objects`, `read`) are not.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar, Unpack, assert_never

from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Page, Params, Patch, PatchKind, Reply
from testing.fakes import merging
from testing.fakes.faults import Call, Delayed, Fault, Faults, LandsLater, Meanwhile, Predicate
from testing.fakes.merging import clone
from testing.fakes.paths import Target
from testing.fakes.store import Store

__all__ = ["Call", "Delayed", "FakeKube", "Fault", "LandsLater", "Meanwhile"]

T = TypeVar("T")
KEEPS_STATUS: Final = frozenset({"pods", "nodes"})  # a write to the object leaves its status alone


class FakeKube:
    """KubeApi in memory. Safe for use by many threads."""

    def __init__(self, *, binding_checks_uid: bool = True) -> None:
        self.binding_checks_uid = binding_checks_uid
        """False behaves as Kubernetes 1.20."""
        self.evictions = "policy/v1"
        """Version in which an eviction has to come; before Kubernetes 1.22 policy/v1beta1."""
        self.calls: list[Call] = []
        self.replies: dict[str, Reply | kube.KubeError] = {}
        """What `ask` is told, by path."""
        self.asked: list[str] = []
        self._store = Store()
        self._faults = Faults()

    # The protocol.

    def get(self, path: str, params: Params | None = None, *, timeout_s: float = 5.0) -> JsonObject:
        target, query = Target.parse(path), dict(params or {})
        if target.name:
            return self._serve(Call("get", path, None, query), lambda: clone(self._store.read(target)))
        return self._serve(Call("list", path, None, query), lambda: self._store.page(target, query))

    def read_object(self, path: str, *, keep: Callable[[JsonObject], T], timeout_s: float = 5.0) -> T:
        return keep(self.get(path, timeout_s=timeout_s))

    def list_page(
        self, path: str, params: Params | None = None, *, keep: Callable[[JsonObject], T], timeout_s: float = 300.0
    ) -> Page[T]:
        page = self.get(path, params, timeout_s=timeout_s)
        metadata = page["metadata"]
        items = [keep(item) for item in page["items"]]
        return Page(items=items, version=metadata["resourceVersion"], more=metadata.get("continue", ""))

    def create(self, path: str, body: JsonObject, **options: Unpack[kube.WriteOptions]) -> JsonObject:
        target, body = Target.parse(path), clone(body)
        act = {"binding": self._bind, "eviction": self._evict}.get(target.subresource, self._create)
        _check(options.get("precondition"))
        call = Call("create", path, clone(body), dict(options.get("params") or {}))
        if call.params.get("dryRun"):
            return self._serve(call, lambda: clone(body))
        return self._serve(call, lambda: act(target, body))

    def replace(self, path: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        target, body = Target.parse(path), clone(body)
        return self._serve(Call("update", path, body), lambda: self._replace(target, body))

    def patch(
        self, path: str, body: Patch, *, kind: PatchKind = PatchKind.MERGE, **options: Unpack[kube.WriteOptions]
    ) -> JsonObject:
        target, change = Target.parse(path), clone(body)
        _check(options.get("precondition"))
        call = Call("patch", path, change, dict(options.get("params") or {}))
        return self._serve(call, lambda: self._patch(target, change, kind))

    def delete(self, path: str, body: JsonObject | None = None, **options: Unpack[kube.WriteOptions]) -> JsonObject:
        target = Target.parse(path)
        _check(options.get("precondition"))
        return self._serve(Call("delete", path, body), lambda: self._delete(target, body or {}))

    def watch(self, path: str, params: Params, *, timeout_s: float) -> Iterator[JsonObject]:
        target, query = Target.parse(path), dict(params)
        version = int(query.get("resourceVersion") or 0)
        self._serve(Call("watch", path, None, query), lambda: self._store.check(version))
        return self._store.stream(target, query, timeout_s)

    def ask(self, path: str, *, timeout_s: float = 5.0) -> Reply:
        self.asked.append(path)
        reply = self.replies.get(path, kube.NotFoundError("the server could not find the requested resource"))
        if isinstance(reply, kube.KubeError):
            raise reply
        return reply

    # Side doors for tests.

    def seed(self, path: str, obj: JsonObject) -> JsonObject:
        """Create an object without being counted or disturbed."""
        with self._store.lock:
            return self._create(Target.parse(path), clone(obj))

    def edit(self, path: str, change: Callable[[JsonObject], object]) -> JsonObject:
        """Change a whole object, status included, in place."""
        with self._store.lock:
            target = Target.parse(path)
            obj = clone(self._store.read(target))
            change(obj)
            return self._store.write(target, obj)

    def vanish(self, path: str) -> None:
        """Remove an object at once, as after the kubelet's last word."""
        with self._store.lock:
            self._store.remove(Target.parse(path))

    def objects(self, path: str) -> list[JsonObject]:
        """Copies of all objects of a collection."""
        with self._store.lock:
            return clone(self._store.matching(Target.parse(path), {}))

    def read(self, path: str) -> JsonObject:
        """A copy of one object."""
        with self._store.lock:
            return clone(self._store.read(Target.parse(path)))

    def count(self, verb: str, contains: str = "") -> int:
        """How many recorded calls there were of a verb on paths that contain a text."""
        return sum(call.verb == verb and contains in call.path for call in list(self.calls))

    def forget(self, path: str, to: int) -> None:
        """Drop a collection's history up to a version that all of its watchers have seen, in tests of many objects."""
        self._store.forget(Target.parse(path), to)

    # Faults.

    def fail_next(self, predicate: Predicate, fault: Fault, *, times: int = 1) -> None:
        """Disturb the next calls for which the predicate holds."""
        self._faults.plan(predicate, fault, times)

    def calm(self) -> None:
        """Forget planned faults."""
        self._faults.forget()

    def land(self) -> int:
        """Let every `LandsLater` request take effect, in order. How many succeeded."""
        return self._faults.land()

    def lose(self) -> None:
        """`LandsLater` requests never land."""
        self._faults.lose()

    def compact(self) -> None:
        """Forget all history: watches from older versions and page tokens answer 410."""
        self._store.compact()

    def freeze_cache(self, path: str) -> None:
        """Lists of a collection that need not come from the store (`resourceVersion`) show it as it is now."""
        with self._store.lock:
            self._store.freeze_cache(Target.parse(path))

    def cut(self) -> None:
        """Break every open watch with UnreachableError."""
        self._store.cut()

    def bookmark(self) -> None:
        """Send a bookmark on every open watch that allows it."""
        self._store.bookmark()

    def close(self) -> None:
        """End every watch, also those that are opened later, once they have nothing to say."""
        self._store.close()

    # What the verbs do, each in one transaction.

    def _serve(self, call: Call, act: Callable[[], JsonObject]) -> JsonObject:
        self.calls.append(call)

        def transaction() -> JsonObject:
            with self._store.lock:
                return act()

        return self._faults.serve(call, transaction)

    def _create(self, target: Target, obj: JsonObject) -> JsonObject:
        meta = obj.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        if not meta.get("name"):
            raise kube.BadRequestError("metadata.name: Required value: name or generateName is required")
        if target.namespace:
            meta["namespace"] = target.namespace
        named = target.named(meta["name"])
        if self._store.has(named):
            raise kube.ConflictError(f'{target.resource} "{meta["name"]}" already exists')
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        if target.resource == "pods":
            obj.setdefault("spec", {})
            obj.setdefault("status", {}).setdefault("phase", "Pending")
        return self._store.write(named, obj)

    def _replace(self, target: Target, obj: JsonObject) -> JsonObject:
        before = self._store.read(target)
        meta = obj.setdefault("metadata", {})
        for key in ("resourceVersion", "uid"):
            if meta.get(key) and meta[key] != before["metadata"][key]:
                raise _modified(target)
        meta["uid"] = before["metadata"]["uid"]
        meta.setdefault("creationTimestamp", before["metadata"]["creationTimestamp"])
        return self._store.write(target.plain(), _own_part(target, before, obj))

    def _patch(self, target: Target, change: Any, kind: PatchKind) -> JsonObject:
        before = self._store.read(target)
        match kind:
            case PatchKind.MERGE:
                after = merging.merged(before, change)
            case PatchKind.STRATEGIC:
                after = merging.strategic(before, change)
            case PatchKind.JSON:
                after = merging.json_patched(before, change)
            case _:
                assert_never(kind)
        if any(after["metadata"].get(key) != before["metadata"][key] for key in ("resourceVersion", "uid")):
            raise _modified(target)
        return self._store.write(target.plain(), _own_part(target, before, after))

    def _delete(self, target: Target, options: JsonObject) -> JsonObject:
        before = self._store.read(target)
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted and wanted != before["metadata"]["uid"]:
            raise kube.ConflictError(f"Precondition failed: UID in precondition: {wanted}")
        running = target.resource == "pods" and before["spec"].get("nodeName")
        if running and options.get("gracePeriodSeconds") != 0:
            asked = {
                "metadata": {"deletionTimestamp": before["metadata"].get("deletionTimestamp", "2026-01-01T00:00:30Z")}
            }
            return self._store.write(target, merging.merged(before, asked))
        self._store.remove(target)
        return {"kind": "Status", "status": "Success"}

    def _evict(self, target: Target, eviction: JsonObject) -> JsonObject:
        if eviction.get("apiVersion") != self.evictions:
            raise kube.BadRequestError(f'no kind "Eviction" is registered for version "{eviction.get("apiVersion")}"')
        pod = self._store.read(target.plain())
        unprotected = pod["status"].get("phase") in {"Pending", "Succeeded", "Failed"}
        if not unprotected and not pod["metadata"].get("deletionTimestamp"):
            self._use_budget(pod)
        return self._delete(target.plain(), eviction.get("deleteOptions") or {})

    def _use_budget(self, pod: JsonObject) -> None:
        """As the eviction API does it, by `status.disruptionsAllowed` and `matchLabels`."""
        collection = Target.parse(f"/apis/{self.evictions}/poddisruptionbudgets")
        labels, namespace = (pod["metadata"].get("labels") or {}).items(), pod["metadata"]["namespace"]
        own = [
            budget
            for budget in clone(self._store.matching(collection, {}))
            if budget["metadata"]["namespace"] == namespace
            if budget["spec"]["selector"]["matchLabels"].items() <= labels
        ]
        if len(own) > 1:
            raise kube.ServerFaultError("This pod has more than one PodDisruptionBudget")
        for budget in [] if own and not _is_ready(pod) and _spares_unready(own[0]) else own:
            if budget["status"]["disruptionsAllowed"] <= 0:
                raise kube.TooManyRequestsError("Cannot evict pod as it would violate the pod's disruption budget.")
            budget["status"]["disruptionsAllowed"] -= 1
            self._store.write(replace(collection, namespace=namespace, name=budget["metadata"]["name"]), budget)

    def _bind(self, target: Target, binding: JsonObject) -> JsonObject:
        pod = self._store.read(target.plain())
        meta, refused = binding.get("metadata") or {}, f'Operation cannot be fulfilled on pods/binding "{target.name}"'
        wanted = meta.get("uid")
        if self.binding_checks_uid and wanted and wanted != pod["metadata"]["uid"]:
            raise kube.ConflictError(f"{refused}: Precondition failed: UID in precondition: {wanted}")
        if pod["metadata"].get("deletionTimestamp"):
            raise kube.ConflictError(f"{refused}: pod {target.name} is being deleted, cannot be assigned to a host")
        if node := pod["spec"].get("nodeName"):
            raise kube.ConflictError(f'{refused}: pod {target.name} is already assigned to node "{node}"')
        bound = merging.merged(pod, {"metadata": {"annotations": meta.get("annotations") or {}}})
        bound["spec"] = {**bound["spec"], "nodeName": binding["target"]["name"]}
        conditions = [c for c in pod["status"].get("conditions", []) if c["type"] != "PodScheduled"]
        bound["status"] = {**bound["status"], "conditions": [*conditions, {"type": "PodScheduled", "status": "True"}]}
        self._store.write(target.plain(), bound)
        return {"kind": "Status", "status": "Success", "code": 201}


def _is_ready(pod: JsonObject) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def _spares_unready(budget: JsonObject) -> bool:
    healthy, desired = (budget["status"].get(key, 0) for key in ("currentHealthy", "desiredHealthy"))
    return bool(budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= desired > 0)


def _check(precondition: kube.Precondition | None) -> None:
    if precondition is not None and not precondition():
        raise kube.NotSentError("not sent")


def _modified(target: Target) -> kube.ConflictError:
    return kube.ConflictError(
        f'Operation cannot be fulfilled on {target.resource} "{target.name}": the object has been modified'
    )


def _own_part(target: Target, before: JsonObject, after: JsonObject) -> JsonObject:
    """What a write may change: the status through its subresource, everything else through the object."""
    if target.subresource == "status":
        return {**before, "metadata": after["metadata"], "status": after.get("status", {})}
    if target.resource in KEEPS_STATUS and "status" in before:
        return {**after, "status": before["status"]}
    return after
