"""The pods of this node, mirrored by a watch and reduced to what a decision needs."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from gpushare import names
from gpushare.identity import NodeName, PodUid
from gpushare.kube.api import JsonObject
from gpushare.wire import pods as wire
from gpushare.wire.pods import Pod

PATH: Final = "/api/v1/pods"
T = TypeVar("T")


def selector(node: NodeName) -> dict[str, str]:
    """Parameters of the watch."""
    return {"fieldSelector": f"spec.nodeName={node}"}


def reduce(pod: JsonObject) -> JsonObject:
    """A pod without what no decision looks at, which is most of it."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    annotations = meta.get("annotations") or {}
    return {
        "metadata": {
            "namespace": meta.get("namespace", ""),
            "name": meta.get("name", ""),
            "uid": meta.get("uid", ""),
            "annotations": {key: value for key, value in annotations.items() if names.is_reserved(key)},
        },
        "spec": {
            "nodeName": spec.get("nodeName"),
            "schedulerName": spec.get("schedulerName"),
            "initContainers": [_container(container) for container in spec.get("initContainers") or ()],
            "containers": [_container(container) for container in spec.get("containers") or ()],
        },
        "status": {
            "phase": status.get("phase"),
            "initContainerStatuses": [_state(report) for report in status.get("initContainerStatuses") or ()],
            "containerStatuses": [_state(report) for report in status.get("containerStatuses") or ()],
        },
    }


def _container(container: JsonObject) -> JsonObject:
    limits = (container.get("resources") or {}).get("limits") or {}
    return {
        "name": container["name"],
        "restartPolicy": container.get("restartPolicy"),
        "env": [entry for entry in container.get("env") or () if entry.get("name") == names.ENV_VISIBLE_DEVICES],
        "resources": {"limits": {key: limits[key] for key in names.MANAGED_RESOURCES if key in limits}},
    }


def _state(report: JsonObject) -> JsonObject:
    state: dict[str, Any] = report.get("state") or {}
    return {"state": dict.fromkeys(state)}


class PodCache:
    """A watch's sink, and what readers see of it. Safe for use by many threads; the lock is never held for long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pods: dict[PodUid, Pod] = {}

    def replace(self, objects: list[JsonObject]) -> None:
        """See Sink."""
        with self._changed:
            self._pods = {wire.ref(pod).uid: pod for pod in objects}
            self._changed.notify_all()

    def upsert(self, obj: JsonObject) -> None:
        """See Sink."""
        with self._changed:
            self._pods[wire.ref(obj).uid] = obj
            self._changed.notify_all()

    def remove(self, obj: JsonObject) -> None:
        """See Sink."""
        with self._changed:
            self._pods.pop(wire.ref(obj).uid, None)
            self._changed.notify_all()

    def all(self) -> Sequence[Pod]:
        """All pods of the node."""
        with self._changed:
            return tuple(self._pods.values())

    def by_uid(self, uid: PodUid) -> Pod | None:
        """The pod with this UID."""
        with self._changed:
            return self._pods.get(uid)

    def by_name(self, namespace: str, name: str) -> Pod | None:
        """The pod with this name now."""
        for pod in self.all():
            meta = pod["metadata"]
            if (meta["namespace"], meta["name"]) == (namespace, name):
                return pod
        return None

    def wait_for(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """Call `look` now and after every change, until it gives something or the time is over."""
        with self._changed:
            return self._changed.wait_for(look, max(0.0, seconds))
