"""What a tenant tries: pods that would see a GPU which was not granted, and what becomes of each. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from gpushare import names
from localcluster.cluster import BUSYBOX_IMAGE

Json = dict[str, Any]
INT64: Final = 2**63
UNCOMPLETED: Final = "has not completed"
POLICY: Final = "ValidatingAdmissionPolicy 'gpushare-"
"""Of several policies that refuse a pod, any one is named."""
OVERFLOW: Final = "more of a GPU resource than any node can have"
CDI: Final = "choose devices past the scheduler"
MIG: Final = "nvidia.com/mig-1g.5gb"
HOSTDEV: Final = "nvidia.com/hostdev"
CONFIG: Final = "sly"
"""A ConfigMap and a Secret of the tenant's, in which the variable says `all`."""


class Ends(Enum):
    """How an attempt ends."""

    REFUSED = "the API server refuses it"
    WAITS = "none of its containers starts"
    NOTHING = "it runs, and no container sees a GPU"
    GRANTED = "it runs, and every container sees what it was granted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A pod that a tenant creates."""

    name: str
    pod: Json
    ends: Ends
    says: str = ""
    """A part of the refusal."""
    old_ends: Ends | None = None
    """On servers before 1.30, if it differs there."""
    without_webhook: str = ""
    """A part of the refusal where the isolation webhook was skipped; empty if that is not tried."""


def container(
    name: str = "c0", limits: Mapping[str, object] | None = None, env: Sequence[Json] = (), **more: object
) -> Json:
    """One that prints its environment and waits."""
    made: Json = {"name": name, "image": BUSYBOX_IMAGE, **more}
    if limits:
        made["resources"] = {"limits": {key: str(amount) for key, amount in limits.items()}}
    if env:
        made["env"] = list(env)
    return made


def first(name: str = "i0", **fields: Any) -> Json:
    """An init container: prints its environment and ends."""
    return container(name, command=["/bin/sh", "-c", "/print-devices; env | sort"], **fields)


def pod(
    *containers: Json, marks: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None, **spec: object
) -> Json:
    """Without a name. `spec` may have `runtimeClassName` and all else."""
    metadata = {"annotations": dict(marks or {}), "labels": dict(labels or {})}
    listed = list(containers) or [container()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": listed, "terminationGracePeriodSeconds": 1, **spec},
    }


def variable(value: str) -> Json:
    """The one by which NVIDIA's runtime chooses devices."""
    return {"name": names.ENV_VISIBLE_DEVICES, "value": value}


def source(**reference: Json) -> Json:
    """The same from elsewhere."""
    return {"name": names.ENV_VISIBLE_DEVICES, "valueFrom": reference}


ALL: Final = variable("all")
NVIDIA: Final[Json] = {"runtimeClassName": names.RUNTIME_CLASS}


def all_attempts(node: str) -> Iterator[Attempt]:
    """Every one; names are unique.

    Args:
        node: a node of the cluster.
    """
    yield from _variables()
    yield from _sources()
    yield from _kinds_of_containers()
    yield from _forged()
    yield from _cdi()
    yield from _overflowing(node)
    yield from _other_plugins(node)
    yield from _bad_requests()


def on_each(nodes: Sequence[str]) -> Iterator[Attempt]:
    """Every one; what gets as far as a node is tried on each."""
    for number, node in enumerate(nodes):
        for attempt in all_attempts(node):
            if {attempt.ends, attempt.old_ends} & {Ends.NOTHING, Ends.GRANTED}:
                yield replace(attempt, name=f"{attempt.name}-{node}", pod=_pinned(attempt.pod, node))
            elif number == 0:
                yield attempt


def _pinned(body: Json, node: str) -> Json:
    return {**body, "spec": {**body["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}}


def _variables() -> Iterator[Attempt]:
    values = ("all", "0", "0,1", "none", "", "GPU-00000000-0000-0000-0000-000000000000")
    kinds = ("nvidia.com/gpu=all", "management.nvidia.com/gpu=all", "runtime.nvidia.com/gpu=0")
    for number, value in enumerate((*values, *kinds)):
        yield Attempt(
            name=f"variable-{number}",
            pod=pod(container(env=[variable(value)]), **NVIDIA),
            ends=Ends.NOTHING,
            without_webhook=UNCOMPLETED,
        )
    yield Attempt(name="variable-plain", pod=pod(container(env=[ALL])), ends=Ends.NOTHING)
    for number, env in enumerate(([variable("void"), ALL], [ALL, variable("void")], [ALL, ALL])):
        yield Attempt(
            name=f"variable-twice-{number}",
            pod=pod(container(env=env), **NVIDIA),
            ends=Ends.NOTHING,
            without_webhook=UNCOMPLETED,
        )
    yield Attempt(name="image", pod=pod(**NVIDIA), ends=Ends.NOTHING, without_webhook=UNCOMPLETED)
    yield Attempt(name="image-plain", pod=pod(), ends=Ends.NOTHING)
    yield Attempt(
        name="runtime-class-unknown", pod=pod(runtimeClassName="nvidia-legacy"), ends=Ends.REFUSED, says="nvidia-legacy"
    )


def _sources() -> Iterator[Attempt]:
    key = {"name": CONFIG, "key": names.ENV_VISIBLE_DEVICES}
    mine = {"mine": "all"}
    references: dict[str, tuple[Json, Mapping[str, str]]] = {
        "config-map": ({"configMapKeyRef": key}, {}),
        "secret": ({"secretKeyRef": key}, {}),
        "annotation": ({"fieldRef": {"fieldPath": "metadata.annotations['mine']"}}, mine),
        "devices": (
            {"fieldRef": {"fieldPath": "metadata.annotations['devices.gpushare.dev/c0']"}},
            {"devices.gpushare.dev/c0": "all"},
        ),
    }
    for name, (reference, marks) in references.items():
        yield Attempt(
            name=f"from-{name}",
            pod=pod(container(env=[source(**reference)]), marks=marks, **NVIDIA),
            ends=Ends.NOTHING,
            without_webhook="devices.gpushare.dev/" if marks and name == "devices" else UNCOMPLETED,
        )
    for kind in ("configMapRef", "secretRef"):
        yield Attempt(
            name=f"env-from-{kind.lower()}",
            pod=pod(container(envFrom=[{kind: {"name": CONFIG}}]), **NVIDIA),
            ends=Ends.NOTHING,
            without_webhook=UNCOMPLETED,
        )
        yield Attempt(
            name=f"env-from-{kind.lower()}-granted",
            pod=pod(container(limits={names.GPU_MEM: 1}, envFrom=[{kind: {"name": CONFIG}}])),
            ends=Ends.GRANTED,
        )


def _kinds_of_containers() -> Iterator[Attempt]:
    share = container("share", {names.GPU_MEM: 1})
    sidecar = first("side", env=[ALL], restartPolicy="Always")
    lists: dict[str, Json] = {
        "init": {"initContainers": [first(env=[ALL])]},
        "init-image": {"initContainers": [first()]},
        "sidecar": {"initContainers": [sidecar]},
    }
    for name, more in lists.items():
        yield Attempt(name=name, pod=pod(**more, **NVIDIA), ends=Ends.NOTHING, without_webhook=UNCOMPLETED)
        yield Attempt(name=f"{name}-beside-a-share", pod=pod(share, **more), ends=Ends.GRANTED)
    yield Attempt(name="beside-a-share", pod=pod(share, container(env=[ALL])), ends=Ends.GRANTED)
    yield Attempt(name="share-and-all", pod=pod({**share, "env": [ALL]}), ends=Ends.GRANTED)
    others = source(fieldRef={"fieldPath": "metadata.annotations['devices.gpushare.dev/share']"})
    yield Attempt(name="share-of-a-neighbour", pod=pod(share, container(env=[others])), ends=Ends.GRANTED)
    yield Attempt(
        name="percent-and-all", pod=pod(container(limits={names.GPU_PERCENT: 5}, env=[ALL])), ends=Ends.GRANTED
    )
    yield Attempt(
        name="ephemeral-at-creation",
        pod=pod(ephemeralContainers=[container("debug", env=[ALL])], **NVIDIA),
        ends=Ends.REFUSED,
        says="ephemeral",
        old_ends=Ends.NOTHING,  # the field is dropped
    )
    yield Attempt(
        name="exempt-by-a-pods-label",
        pod=pod(container(env=[ALL]), labels={names.LABEL_ISOLATION: "disabled"}, **NVIDIA),
        ends=Ends.NOTHING,
        without_webhook=UNCOMPLETED,
    )


FORGED: Final = {
    "devices.gpushare.dev/c0": "GPU-forged",
    "memory.gpushare.dev/c0": "99999",
    "index.gpushare.dev/c0": "7",
    "capacity.gpushare.dev/c0": "99",
    names.ANNOTATION_ALLOCATION: '{"version":1,"node":"node-1","containers":[{"name":"c0","gpus":["GPU-forged"]}]}',
    names.ANNOTATION_LATE: "forged",
    names.ALIYUN_IDX: "77",
    names.ALIYUN_ASSUME_TIME: "1",
    names.ACK_ALLOCATION: '{"0":{"forged":1}}',
    names.NANO_ASSUME: "forged",
    "nano-gpu/container-c0": "77",
}


def _forged() -> Iterator[Attempt]:
    for number, (key, value) in enumerate(FORGED.items()):
        yield Attempt(name=f"forged-{number}", pod=pod(marks={key: value}), ends=Ends.NOTHING)
        yield Attempt(
            name=f"forged-share-{number}",
            pod=pod(container(limits={names.GPU_MEM: 1}), marks={key: value}),
            ends=Ends.GRANTED,
        )
    yield Attempt(
        name="forged-managed",
        pod=pod(container(env=[ALL]), labels={names.LABEL_MANAGED: "true"}, marks=FORGED, **NVIDIA),
        ends=Ends.NOTHING,
        without_webhook=names.ISOLATION_POLICY,
    )


CDI_KEYS: Final = (
    *("cdi.k8s.io/x", "cdi.k8s.io/vendor_class", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.c0"),
    "a.b.cdi.k8s.io/x",
)


def _cdi() -> Iterator[Attempt]:
    for number, key in enumerate(CDI_KEYS):
        marks = {key: "nvidia.com/gpu=all"}
        yield Attempt(name=f"cdi-{number}", pod=pod(marks=marks), ends=Ends.NOTHING, without_webhook=CDI)
    yield Attempt(
        name="cdi-share",
        pod=pod(container(limits={names.GPU_MEM: 1}), marks=dict.fromkeys(CDI_KEYS, "nvidia.com/gpu=all")),
        ends=Ends.GRANTED,
    )


def _overflowing(node: str) -> Iterator[Attempt]:
    resources = (MIG, "nvidia.com/gpu.shared", HOSTDEV, names.GPU, names.GPU_MEM, names.GPU_PERCENT)
    amounts = ("10E", str(INT64 - 1), str(INT64 // 2), "1000000001")
    for number, resource in enumerate(resources):
        is_ours = number >= 3
        for amount in amounts:
            yield Attempt(
                name=f"overflow-{number}-{amount.lower()}",
                pod=pod(container(limits={resource: amount}), **NVIDIA),
                ends=Ends.REFUSED,
                says="" if is_ours else "more than any node can have",
                without_webhook="" if is_ours else POLICY if resource == HOSTDEV else OVERFLOW,
            )
    sums: dict[str, Json] = {
        "two": pod(*(container(f"c{i}", {MIG: INT64 // 2}) for i in range(2)), **NVIDIA),
        "four": pod(*(container(f"c{i}", {MIG: INT64 // 4}) for i in range(4)), **NVIDIA),
        "eight": pod(*(container(f"c{i}", {MIG: INT64 // 4}) for i in range(8)), **NVIDIA),
        "init": pod(initContainers=[first(limits={MIG: "10E"})], **NVIDIA),
        "sidecars": pod(
            initContainers=[first(f"s{i}", limits={MIG: INT64 // 2}, restartPolicy="Always") for i in range(2)],
            **NVIDIA,
        ),
        "binary": pod(container(limits={MIG: "8Ei"}), **NVIDIA),
        "exponent": pod(container(limits={MIG: "1e10"}), **NVIDIA),
    }
    for name, tried in sums.items():
        yield Attempt(
            name=f"sum-{name}",
            pod=tried,
            ends=Ends.REFUSED,
            says="more than any node can have",
            without_webhook=POLICY if name in {"init", "sidecars"} else OVERFLOW,
        )
    yield Attempt(
        name="product-of-gpus",
        pod=pod(container(limits={names.GPU_MEM: 10**9 - 1}), marks={names.ANNOTATION_GPUS: "64"}),
        ends=Ends.REFUSED,
        says="exceed any node",
    )
    yield Attempt(
        name="overflow-on-a-preset-node",
        pod=pod(container(limits={MIG: "10E"}), nodeName=node, **NVIDIA),
        ends=Ends.REFUSED,
        says="by-passes the scheduler",
        without_webhook=POLICY,
    )
    yield Attempt(name="much", pod=pod(container(limits={MIG: 10**9}), **NVIDIA), ends=Ends.WAITS)
    yield Attempt(
        name="of-the-pod",
        pod=pod(resources={"limits": {MIG: "10E"}}, **NVIDIA),
        ends=Ends.REFUSED,
        says="Unsupported value",
        old_ends=Ends.NOTHING,  # the field is dropped
    )
    yield Attempt(
        name="quota-name",
        pod=pod(container(limits={f"requests.{MIG}": "10E"}), **NVIDIA),
        ends=Ends.REFUSED,
        says="extended resource name",
    )
    yield Attempt(
        name="request-without-limit",
        pod=pod({**container(), "resources": {"requests": {MIG: "1"}}}, **NVIDIA),
        ends=Ends.REFUSED,
        says="Limit must be set",
    )


def _other_plugins(node: str) -> Iterator[Attempt]:
    yield Attempt(name="mig", pod=pod(container(limits={MIG: 1}, env=[ALL]), **NVIDIA), ends=Ends.WAITS)
    yield Attempt(name="hostdev", pod=pod(container(limits={HOSTDEV: 1}), **NVIDIA), ends=Ends.WAITS)
    # The kubelet ignores a resource that its node does not have.
    yield Attempt(
        name="hostdev-on-a-preset-node",
        pod=pod(container(limits={HOSTDEV: 1}), nodeName=node, **NVIDIA),
        ends=Ends.NOTHING,
        without_webhook=UNCOMPLETED,
    )
    for resource in (MIG, "nvidia.com/gpu.shared"):
        yield Attempt(
            name=f"preset-node-{resource.rpartition('/')[2]}",
            pod=pod(container(limits={resource: 1}), nodeName=node, **NVIDIA),
            ends=Ends.REFUSED,
            says="by-passes the scheduler",
            without_webhook=UNCOMPLETED,
        )
    yield Attempt(
        name="zero-of-another",
        pod=pod(container(limits={MIG: 0}), **NVIDIA),
        ends=Ends.NOTHING,
        without_webhook=UNCOMPLETED,
    )
    yield Attempt(
        name="share-on-a-preset-node",
        pod=pod(container(limits={names.GPU_MEM: 1}, env=[ALL]), nodeName=node),
        ends=Ends.GRANTED,
    )
    yield Attempt(
        name="another-scheduler",
        pod=pod(container(limits={names.GPU_MEM: 1}), schedulerName="none"),
        ends=Ends.WAITS,
    )


def _bad_requests() -> Iterator[Attempt]:
    refused: dict[str, tuple[Mapping[str, object], str]] = {
        "nothing": ({names.GPU_MEM: 0}, "asks for nothing"),
        "fraction": ({names.GPU_MEM: "500m"}, ""),
        "negative": ({names.GPU_MEM: -1}, ""),
        "percents": ({names.GPU_PERCENT: 101}, "more than one GPU"),
        "both": ({names.GPU_MEM: 1, names.GPU_PERCENT: 1}, "keep one of them"),
        "count": ({names.GPU_COUNT: 1}, "cannot be requested"),
        "core": ({names.GPU_CORE: 10}, "is the part of compute"),
    }
    for name, (limits, says) in refused.items():
        yield Attempt(name=f"bad-{name}", pod=pod(container(limits=limits)), ends=Ends.REFUSED, says=says)
    yield Attempt(
        name="bad-totals",
        pod=pod(container(limits={names.GPU_MEM: 1}), marks={names.ANNOTATION_TOTALS: "false"}),
        ends=Ends.REFUSED,
        says=names.ANNOTATION_TOTALS,
    )
    many = [container(f"c{i}", {names.GPU_MEM: 1}) for i in range(65)]
    yield Attempt(name="bad-many", pod=pod(*many), ends=Ends.REFUSED, says="containers ask for GPUs")
    thousands = [container(f"c{i}") for i in range(513)]
    yield Attempt(name="bad-thousands", pod=pod(*thousands), ends=Ends.REFUSED, says="more than any node runs")
