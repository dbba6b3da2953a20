"""The pods of what a user names: one pod, or all pods of a workload."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.cluster import budgets
from gpushare.errors import SettingsError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare_cli import reading

_TIMEOUT_S: Final = 30.0
POD: Final = "pod"
_GROUPS: Final = {  # the beginnings of their paths at the API server
    **{POD: "/api/v1", "job": "/apis/batch/v1"},
    **dict.fromkeys(("deployment", "statefulset", "replicaset", "daemonset"), "/apis/apps/v1"),
}
_SHORT: Final = {"po": POD, "deploy": "deployment", "sts": "statefulset", "rs": "replicaset", "ds": "daemonset"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
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


def pods(api: KubeApi, kind: str, namespace: str, name: str) -> Sequence[JsonObject]:
    path = reading.namespaced(namespace, f"{kind}s", name, group=_GROUPS[kind])
    named = api.get(path, timeout_s=_TIMEOUT_S)
    if kind == POD:
        return [named]
    spec = fields.mapping(named, "spec", "workload")
    selector = budgets.label_selector(fields.mapping(spec, "selector", "spec"), "spec.selector")
    if not selector.requirements:
        raise WireError("spec.selector: is empty")
    everyone = reading.namespaced(namespace, "pods")
    return reading.listed(api, everyone, keep=lambda pod: selector.matches(pods_wire.labels(pod)))


def events(api: KubeApi, pod: JsonObject) -> Sequence[JsonObject]:
    """Events on a pod, the latest last; empty if they may not be read."""
    metadata = fields.mapping(pod, "metadata", "pod")
    path = reading.namespaced(str(metadata.get("namespace")), "events")
    params = {"fieldSelector": f"involvedObject.uid={metadata.get('uid')}"}
    try:
        events_on_it = reading.listed(api, path, params)
    except kube.ForbiddenError:
        return ()
    return sorted(events_on_it, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
