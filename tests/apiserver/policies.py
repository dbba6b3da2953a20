"""Pods for the ValidatingAdmissionPolicies, as authors and as our webhook write them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.client import RestClient
from testing.reviews import ALL, VOID
from tests.apiserver.server import Json, Server, refusal, refused_by

TEAM: Final = "team-a"
CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
OF_NVIDIA: Final = ("nvidia-cdi", "nvidia-legacy", "nvidia-experimental")
OTHERS: Final = ("runc", "nvidia-other", "gpu-runtime")
MINE, OTHER = "node-a", "node-b"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
CHOICE: Final = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{names.RUNTIME_CLASS_POLICY}"


@dataclass(frozen=True)
class Plugins:
    """Clients with the rights of the device plugin."""

    of_its_pod: RestClient
    """With the token that its pod on the node MINE was given."""
    of_no_pod: RestClient
    """With one that says nothing of a node."""


def container(name: str = "a", *env: Json, limits: Mapping[str, object] | None = None, **fields: object) -> Json:
    amounts = {resource: str(amount) for resource, amount in (limits or {}).items()}
    return {"name": name, "image": "cuda", "env": list(env), "resources": {"limits": amounts}, **fields}


def pod(
    *containers: Json,
    init: tuple[Json, ...] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    name: str = "p",
    **spec: object,
) -> Json:
    metadata = {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})}
    listed = list(containers) or [container("a")]
    return {"metadata": metadata, "spec": {"containers": listed, "initContainers": list(init), **spec}}


def slice_of(node: str, *, name: str = "new", driver: str = names.DRA_DRIVER, pool: str = "", **spec: Any) -> Json:
    numbers = {"generation": 1, "resourceSliceCount": 1}
    fixed = {"driver": driver, "pool": {"name": pool or node, **numbers}, "devices": [{"name": "gpu-0"}]}
    return {"metadata": {"name": name}, "spec": {**fixed, **(spec or {"nodeName": node})}}


def under(runtime: str | None, value: Json) -> Json:
    return value if runtime is None else {**value, "spec": {**value["spec"], "runtimeClassName": runtime}}


def admit(server: Server, value: Json) -> None:
    """Whatever refuses it is an error."""
    server.admitted(TEAM, value)


def deny(server: Server, policy: str, value: Json) -> str:
    return refused_by(policy, lambda: server.admitted(TEAM, value))


PLAIN: Final = under("nvidia", pod(container("a", VOID)))
"""As the webhook leaves it, so that no policy but that of RuntimeClasses refuses it."""
SAMPLES: Final[Mapping[str, Json]] = {
    names.ISOLATION_POLICY: under("nvidia", pod(container("a", ALL, limits={names.GPU_MEM: 1}))),
    names.AMOUNTS_POLICY: pod(container("a", limits={names.GPU_MEM: "10E"})),
    names.CDI_POLICY: pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
    names.RUNTIME_CLASS_POLICY: PLAIN,
}
"""A pod that only this policy refuses, as shipped."""


def wait_for(server: Server, policy: str, value: Json, *, refused: bool) -> None:
    """An API server learns of a policy and its parameters within a second or two."""

    def agrees() -> bool:
        error = refusal(lambda: server.admitted(TEAM, value))
        return (error is not None and policy in str(error)) if refused else error is None

    server.eventually(f"{policy} {'refuses' if refused else 'admits'} a pod", agrees)


@contextmanager
def choosing(server: Server, data: Mapping[str, str] | None, probe: Json, *, refused: bool) -> Iterator[None]:
    """An administrator's choice of RuntimeClasses, for a while: `data` of the ConfigMap, None for no ConfigMap at all.

    It is in force when the `probe` is refused, or is not.
    """
    before = server.api.get(CHOICE)["data"]
    _write(server, data)
    try:
        wait_for(server, names.RUNTIME_CLASS_POLICY, probe, refused=refused)
        yield
    finally:
        _write(server, before)
        wait_for(server, names.RUNTIME_CLASS_POLICY, PLAIN, refused=True)


def _write(server: Server, data: Mapping[str, str] | None) -> None:
    collection, _, name = CHOICE.rpartition("/")
    if data is None:
        server.api.delete(CHOICE)
    elif server.exists(CHOICE):  # changed in one step: a probe would take its absence for a choice to refuse nothing
        server.api.patch(CHOICE, [{"op": "add", "path": "/data", "value": dict(data)}], kind=kube.PatchKind.JSON)
    else:
        server.api.create(collection, {"metadata": {"name": name}, "data": dict(data)})
