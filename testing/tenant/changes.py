"""What a tenant tries once pods exist, and at the rest of the cluster. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, PatchKind
from testing.tenant.attempts import ALL, CDI_KEYS, FORGED, POLICY, container

PODS: Final = {True: "victim", False: "idle"}
"""Whether it holds a share of a GPU -> a pod of the tenant's that runs."""
UNBOUND: Final = "unbound"
"""A pod that asks for a share and that no one schedules."""
WEBHOOK: Final = '.gpushare.dev" denied the request: metadata.'
API_SERVER: Final = "spec: Forbidden: "
"""As `POLICY`: what a refusal by each says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A patch of a running pod; its binding, its request and what its containers see stay as they are."""

    name: str
    holds: bool
    """Which pod: see `PODS`."""
    body: JsonObject
    subresource: str = ""
    kind: PatchKind = PatchKind.STRATEGIC
    by: str = WEBHOOK
    """Who refuses it: what that says. Empty if the API server drops the change."""
    since_130: bool = False
    """On older servers the change is written, which has no effect on the containers."""


def annotated(**marks: str | None) -> JsonObject:
    """A patch of annotations."""
    return {"metadata": {"annotations": dict(marks)}}


def changes() -> Iterator[Change]:
    """Every one; names are unique."""
    yield from _marks()
    yield from _cdi()
    yield from _containers()
    yield from _subresources()


def _marks() -> Iterator[Change]:
    for number, (key, value) in enumerate({**FORGED, names.ANNOTATION_OVERRIDDEN: "c0"}.items()):
        yield Change(name=f"annotation-{number}", holds=True, body=annotated(**{key: value}))
    for key in ("devices.gpushare.dev/c0", names.ANNOTATION_ALLOCATION):
        yield Change(name=f"remove-{key.replace('/', '-')}", holds=True, body=annotated(**{key: None}))
        yield Change(
            name=f"forge-idle-{key.replace('/', '-')}", holds=False, body=annotated(**{key: "x"}), since_130=True
        )
    for key in names.REQUEST_ANNOTATIONS:
        yield Change(name=f"request-{key.rpartition('/')[2]}", holds=True, body=annotated(**{key: "2"}))
    labels = ((names.LABEL_MANAGED, None), (names.LABEL_MANAGED, "x"), (names.LABEL_GPU_COUNT, "2"))
    for key, label in labels:
        body: JsonObject = {"metadata": {"labels": {key: label}}}
        yield Change(name=f"label-{key.rpartition('/')[2]}-{label}", holds=True, body=body)


def _cdi() -> Iterator[Change]:
    for number, key in enumerate(CDI_KEYS):
        for holds in (True, False):
            body = annotated(**{key: "nvidia.com/gpu=all"})
            yield Change(name=f"cdi-{number}-{PODS[holds]}", holds=holds, body=body, by=POLICY, since_130=not holds)


def _containers() -> Iterator[Change]:
    env: JsonObject = {"spec": {"containers": [container(env=[ALL])]}}
    for holds in (True, False):
        yield Change(name=f"env-{PODS[holds]}", holds=holds, body=env, by=API_SERVER)
    more: JsonObject = {"spec": {"containers": [{"name": "c0", "resources": {"limits": {names.GPU_MEM: "20"}}}]}}
    yield Change(name="more-memory", holds=True, body=more, by=API_SERVER)
    yield Change(name="more-memory-by-resize", holds=True, body=more, by=API_SERVER, subresource="resize")


def _subresources() -> Iterator[Change]:
    """With rights that the role `edit` does not give."""
    for subresource in ("status", "ephemeralcontainers", "resize"):
        for number, (key, by) in enumerate((("devices.gpushare.dev/c0", WEBHOOK), ("nvidia.cdi.k8s.io/pod", POLICY))):
            for holds in (True, False):
                yield Change(
                    name=f"{subresource}-{number}-{PODS[holds]}",
                    holds=holds,
                    body=annotated(**{key: "all"}),
                    subresource=subresource,
                    by=by if subresource == "status" else "",
                    since_130=not holds,
                )


def forged_events(pod: JsonObject, now: datetime) -> Iterator[JsonObject]:
    """Events of the next four minutes on a tenant's own pod, which the role `edit` lets him write; names are unique."""
    metadata = pod["metadata"]
    about = {"kind": "Pod", **{key: metadata[key] for key in ("namespace", "name", "uid")}}
    reasons = ("GpuShareUnschedulable", "GpuShareKilled", "GpuRefused", "Preempted")
    for number in range(300):
        at = (now + timedelta(seconds=1 + 0.8 * number)).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = f"\x1b[2J\r\nerror: all GPUs are lost\u202e<script>alert({number})</script>{900 * 'x'}"
        yield {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"forged-{number}", "namespace": metadata["namespace"]},
            "involvedObject": about,
            "reason": reasons[number % len(reasons)],
            "message": text,
            "type": "Warning",
            **dict.fromkeys(("firstTimestamp", "lastTimestamp"), at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A request for something that belongs to somebody else; Kubernetes' own rights refuse it."""

    name: str
    verb: str
    path: str
    body: JsonObject | None = None


def reaches(namespace: str, node: str) -> Iterator[Reach]:
    """Every one; names are unique."""
    ours, admission = f"/api/v1/namespaces/{names.NAMESPACE}", "/apis/admissionregistration.k8s.io/v1"
    exempt: Mapping[str, str] = {names.LABEL_ISOLATION: "disabled"}
    pod: JsonObject = {"metadata": {"name": "x"}, "spec": {"containers": [container()]}}
    yield Reach(
        name="label-namespace",
        verb="patch",
        path=f"/api/v1/namespaces/{namespace}",
        body={"metadata": {"labels": dict(exempt)}},
    )
    for name in names.ADDON_NAMESPACES[:2]:
        yield Reach(name=f"create-{name}", verb="create", path="/api/v1/namespaces", body={"metadata": {"name": name}})
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        yield Reach(name=f"delete-{kind}", verb="delete", path=f"{admission}/{kind}/{names.MUTATING_WEBHOOK}")
    for policy in names.POLICIES:
        for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
            yield Reach(name=f"delete-{kind}-{policy}", verb="delete", path=f"{admission}/{kind}/{policy}")
    yield Reach(
        name="annotate-node",
        verb="patch",
        path=kube.node_path(node),
        body=annotated(**{names.ANNOTATION_INVENTORY: "x"}),
    )
    labels: JsonObject = {"metadata": {"labels": {names.LABEL_HAND_OVER: "envvar"}}}
    yield Reach(name="hand-over-of-a-node", verb="patch", path=kube.node_path(node), body=labels)
    yield Reach(name="kubelet", verb="get", path=kube.node_path(node, "proxy/pods"))
    for name in (names.HAND_OVER, names.RUNTIME_CLASS_POLICY):
        yield Reach(name=f"settings-{name}", verb="patch", path=f"{ours}/configmaps/{name}", body={"data": {"x": "y"}})
    directory: JsonObject = {"hostPath": {"path": "/var/run/cdi"}, "accessModes": ["ReadWriteOnce"]}
    volume: JsonObject = {"metadata": {"name": "mine"}, "spec": {**directory, "capacity": {"storage": "1Gi"}}}
    yield Reach(name="volume", verb="create", path="/api/v1/persistentvolumes", body=volume)
    device: JsonObject = {"metadata": {"name": "mine"}, "spec": {}}
    yield Reach(name="device-class", verb="create", path="/apis/resource.k8s.io/v1/deviceclasses", body=device)
    handler: JsonObject = {"metadata": {"name": "mine"}, "handler": "nvidia"}
    yield Reach(name="runtime-class", verb="create", path="/apis/node.k8s.io/v1/runtimeclasses", body=handler)
    yield Reach(name="read-ca", verb="get", path=f"{ours}/secrets/{names.WEBHOOK_SECRET}")
    yield Reach(
        name="settings",
        verb="patch",
        path=f"{ours}/configmaps/{names.CONFIG}",
        body={"data": {"GPUSHARE_WHOLE_GPUS": "x"}},
    )
    yield Reach(name="create-in-ours", verb="create", path=f"{ours}/pods", body=pod)
    event: JsonObject = {"metadata": {"name": "x"}, "reason": "GpuShareKilled", "message": "x"}
    yield Reach(name="event-in-kube-system", verb="create", path="/api/v1/namespaces/kube-system/events", body=event)
    yield Reach(name="create-in-kube-system", verb="create", path="/api/v1/namespaces/kube-system/pods", body=pod)
    for account in (names.CONTROLLER, names.PLUGIN):
        path = f"{ours}/serviceaccounts/{account}/token"
        yield Reach(name=f"token-{account}", verb="create", path=path, body={"spec": {}})
    yield Reach(name="extender", verb="get", path=f"{ours}/services/{names.CONTROLLER_SERVICE}:12345/proxy/readyz")
    binding: JsonObject = {"metadata": {"name": UNBOUND}, "target": {"kind": "Node", "name": node}}
    yield Reach(name="bind", verb="create", path=f"/api/v1/namespaces/{namespace}/pods/{UNBOUND}/binding", body=binding)
    yield Reach(name="bind-older", verb="create", path=f"/api/v1/namespaces/{namespace}/bindings", body=binding)
    path = f"/api/v1/namespaces/{namespace}/pods/{PODS[True]}/status"
    yield Reach(name="status", verb="patch", path=path, body={"status": {"phase": "Succeeded"}})
    role: JsonObject = {
        "metadata": {"name": "mine"},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["*"]}],
    }
    yield Reach(name="role", verb="create", path="/apis/rbac.authorization.k8s.io/v1/clusterroles", body=role)


BINDINGS: Final[Mapping[str, Mapping[str, str]]] = {
    **{f"forged-{number}": {key: value} for number, (key, value) in enumerate(FORGED.items())},
    **{f"cdi-{number}": {key: "nvidia.com/gpu=all"} for number, key in enumerate(CDI_KEYS)},
    "request": {names.ANNOTATION_GPUS: "1"},
}
"""Annotations of a Binding that somebody sends who may bind pods, but is not the controller."""
