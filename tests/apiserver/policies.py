"""Pods for the ValidatingAdmissionPolicies, as authors and as our webhook write them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from gpushare import names
from gpushare.kube import api as kube
from tests.apiserver.server import Json, Server, refusal, refused_by

TEAM: Final = "team-a"
CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
OF_NVIDIA: Final = ("nvidia-cdi", "nvidia-legacy", "nvidia-experimental")
OTHERS: Final = ("runc", "nvidia-other", "gpu-runtime")
CHOICE: Final = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{names.RUNTIME_CLASS_POLICY}"
VOID: Final[Json] = {"name": names.ENV_VISIBLE_DEVICES, "value": "void"}
ALL: Final[Json] = {"name": names.ENV_VISIBLE_DEVICES, "value": "all"}


def devices_of(container: str) -> Json:
    """The variable as the webhook writes it for a container with a share."""
    return annotated(f"{names.PREFIX_DEVICES}{container}")


def annotated(key: str) -> Json:
    """The variable from an annotation."""
    reference = {"fieldPath": f"metadata.annotations['{key}']"}
    return {"name": names.ENV_VISIBLE_DEVICES, "valueFrom": {"fieldRef": reference}}


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


def under(runtime: str | None, value: Json) -> Json:
    """The pod with this RuntimeClass."""
    return value if runtime is None else {**value, "spec": {**value["spec"], "runtimeClassName": runtime}}


def admit(server: Server, value: Json) -> None:
    """Whatever refuses it is an error."""
    server.admitted(TEAM, value)


def deny(server: Server, policy: str, value: Json) -> str:
    """What the policy says."""
    return refused_by(policy, lambda: server.admitted(TEAM, value))


SAMPLES: Final[Mapping[str, Json]] = {
    names.ISOLATION_POLICY: under("nvidia", pod(container("a", ALL, limits={names.GPU_MEM: 1}))),
    names.AMOUNTS_POLICY: pod(container("a", limits={names.GPU_MEM: "10E"})),
    names.CDI_POLICY: pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
    names.RUNTIME_CLASS_POLICY: under("nvidia", pod(container("a", VOID))),
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
    """An administrator's choice of RuntimeClasses, for a while.

    Args:
        server: with the policies.
        data: of the ConfigMap; None if there is none.
        probe: a pod that shows that the choice is in force,
        refused: by this.
    """
    before = server.api.get(CHOICE)
    if data is None:
        server.api.delete(CHOICE)
    else:
        _write(server, data)
    try:
        wait_for(server, names.RUNTIME_CLASS_POLICY, probe, refused=refused)
        yield
    finally:
        if data is None:
            metadata = {"name": before["metadata"]["name"]}
            server.api.create(CHOICE.rpartition("/")[0], {"metadata": metadata, "data": before["data"]})
        else:
            _write(server, before["data"])
        wait_for(server, names.RUNTIME_CLASS_POLICY, SAMPLES[names.RUNTIME_CLASS_POLICY], refused=True)


def _write(server: Server, data: Mapping[str, str]) -> None:
    server.api.patch(CHOICE, [{"op": "add", "path": "/data", "value": dict(data)}], kind=kube.PatchKind.JSON)
