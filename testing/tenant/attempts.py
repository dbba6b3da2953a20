"""What a tenant tries by the API: pods that would see a GPU which was not granted, and how each ends. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from gpushare import names
from gpushare.model.gpu import HandOver
from localcluster.cluster import BUSYBOX_IMAGE

Json = dict[str, Any]
HOOK: Final = "the webhook writes the variable"
REMOVED: Final = "the webhook removes it"
GUESSED: Final = "0123456789abcdef0123456789abcdef"
"""A name of a CDI device like those that the device plugin makes."""
INT64: Final = 2**63
UNCOMPLETED: Final = "has not completed"
POLICY: Final = "ValidatingAdmissionPolicy 'gpushare-"
"""Of several policies that refuse a pod, any one is named."""
OVERFLOW: Final = "more of a GPU resource than any node can have"
CDI: Final = "choose devices past the scheduler"
MIG: Final = "nvidia.com/mig-1g.5gb"
HOSTDEV: Final = "nvidia.com/hostdev"
IMAGE, IMAGE_PLAIN, SHARE = "image", "image-plain", "forged-share-0"
"""Names of attempts as which many others end."""
CONFIG: Final = "sly"
"""A ConfigMap and a Secret of the tenant's, in which the variable says `all`."""


class Ends(Enum):
    """How an attempt ends."""

    REFUSED = "the API server refuses it"
    WAITS = "none of its containers starts"
    NOTHING = "it runs, and no container sees a GPU"
    GRANTED = "it runs, and every container sees what it was granted"
    ESCAPES = "it reaches what it was not granted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A pod that a tenant creates."""

    name: str
    what: str
    """In words, for the table; several attempts may be one row."""
    pod: Json
    ends: Ends
    on: Mapping[HandOver, Ends] = field(default_factory=dict)
    """Where it ends otherwise."""
    by: str = ""
    """What stops it, or would."""
    says: str = ""
    """A part of the refusal."""
    prints: Mapping[str, str] = field(default_factory=dict)
    """Variables that the last container prints beside what it sees."""
    lies: bool = False
    """Whether it tells itself of other GPUs than it has."""
    is_baseline: bool = True
    """Whether Pod Security `baseline` would admit it."""
    old_ends: Ends | None = None
    """On servers before 1.30, if it differs there."""
    without_webhook: str = ""
    """A part of the refusal where no webhook is called; empty if that is not tried."""
    same_as: str = ""
    """The attempt of whose pod the webhook makes the same one, which alone is tried on nodes."""
    everywhere: bool = True
    """Whether it is tried on a node of each way to hand GPUs over, or on one, because the way cannot matter."""


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


def api_attempts(node: str) -> Iterator[Attempt]:
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


def _variables() -> Iterator[Attempt]:
    values = ("all", "0", "0,1", "none", "", "GPU-00000000-0000-0000-0000-000000000000")
    kinds = ("nvidia.com/gpu=all", "management.nvidia.com/gpu=all", "runtime.nvidia.com/gpu=0")
    for number, value in enumerate((*values, *kinds)):
        yield Attempt(
            name=f"variable-{number}",
            what=f"`NVIDIA_VISIBLE_DEVICES={value}` in `env`, under RuntimeClass `nvidia`",
            by=HOOK,
            pod=pod(container(env=[variable(value)]), **NVIDIA),
            ends=Ends.NOTHING,
            without_webhook=UNCOMPLETED,
            same_as=IMAGE,
        )
    yield Attempt(
        name="variable-plain",
        what="`NVIDIA_VISIBLE_DEVICES=all` in `env`, without a RuntimeClass",
        by=HOOK,
        pod=pod(container(env=[ALL])),
        ends=Ends.NOTHING,
        same_as=IMAGE_PLAIN,
    )
    for number, env in enumerate(([variable("void"), ALL], [ALL, variable("void")], [ALL, ALL])):
        yield Attempt(
            name=f"variable-twice-{number}",
            what="the variable twice in `env`, in either order",
            by=HOOK,
            pod=pod(container(env=env), **NVIDIA),
            ends=Ends.NOTHING,
            without_webhook=UNCOMPLETED,
            same_as=IMAGE,
        )
    yield Attempt(
        name=IMAGE,
        what="an image that says `all`, under RuntimeClass `nvidia`",
        by=HOOK,
        pod=pod(**NVIDIA),
        ends=Ends.NOTHING,
        without_webhook=UNCOMPLETED,
    )
    yield Attempt(
        name=IMAGE_PLAIN, what="an image that says `all`, without a RuntimeClass", by=HOOK, pod=pod(), ends=Ends.NOTHING
    )
    yield Attempt(
        name="runtime-class-unknown",
        what="a RuntimeClass of NVIDIA that is not there",
        by="the API server",
        pod=pod(runtimeClassName="nvidia-legacy"),
        ends=Ends.REFUSED,
        says="nvidia-legacy",
    )


SOURCES: Final = {
    "config-map": "a ConfigMap",
    "secret": "a Secret",
    "annotation": "an annotation of the author's",
    "devices": "a forged annotation of a grant",
}


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
            what=f"the variable from {SOURCES[name]} (`valueFrom`)",
            by=HOOK,
            pod=pod(container(env=[source(**reference)]), marks=marks, **NVIDIA),
            ends=Ends.NOTHING,
            without_webhook="devices.gpushare.dev/" if marks and name == "devices" else UNCOMPLETED,
            same_as="" if name == "annotation" else IMAGE,
        )
    for kind, what in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        yield Attempt(
            name=f"env-from-{kind.lower()}",
            what=f"the variable from `envFrom` of a {what}",
            by=HOOK,
            pod=pod(container(envFrom=[{kind: {"name": CONFIG}}]), **NVIDIA),
            ends=Ends.NOTHING,
            without_webhook=UNCOMPLETED,
        )
        yield Attempt(
            name=f"env-from-{kind.lower()}-granted",
            what=f"the variable from `envFrom` of a {what}, in a container with a share",
            by=HOOK,
            pod=pod(container(limits={names.GPU_MEM: 1}, envFrom=[{kind: {"name": CONFIG}}])),
            ends=Ends.GRANTED,
        )


LISTS: Final = {"init": "an init container", "init-image": "an init container's image", "sidecar": "a sidecar"}


def _kinds_of_containers() -> Iterator[Attempt]:
    share = container("share", {names.GPU_MEM: 1})
    sidecar = first("side", env=[ALL], restartPolicy="Always")
    lists: dict[str, Json] = {
        "init": {"initContainers": [first(env=[ALL])]},
        "init-image": {"initContainers": [first()]},
        "sidecar": {"initContainers": [sidecar]},
    }
    for name, more in lists.items():
        yield Attempt(
            name=name,
            what=f"{LISTS[name]} that says `all`",
            by=HOOK,
            pod=pod(**more, **NVIDIA),
            ends=Ends.NOTHING,
            without_webhook=UNCOMPLETED,
            same_as="init-image" if name == "init" else "",
        )
        yield Attempt(
            name=f"{name}-beside-a-share",
            what=f"{LISTS[name]} that says `all`, beside a container with a share",
            by=HOOK,
            pod=pod(share, **more),
            ends=Ends.GRANTED,
            same_as="init-image-beside-a-share" if name == "init" else "",
        )
    yield Attempt(
        name="beside-a-share",
        what="a container that says `all`, beside one with a share",
        by=HOOK,
        pod=pod(share, container(env=[ALL])),
        ends=Ends.GRANTED,
    )
    yield Attempt(
        name="share-and-all",
        what="a share, and `all` in the same container",
        by=HOOK,
        pod=pod({**share, "env": [ALL]}),
        ends=Ends.GRANTED,
    )
    others = source(fieldRef={"fieldPath": "metadata.annotations['devices.gpushare.dev/share']"})
    yield Attempt(
        name="share-of-a-neighbour",
        what="the variable from the grant of another container of the pod",
        by=HOOK,
        pod=pod(share, container(env=[others])),
        ends=Ends.GRANTED,
        same_as="beside-a-share",
    )
    yield Attempt(
        name="percent-and-all",
        what="a percentage of a GPU, and `all`",
        by=HOOK,
        pod=pod(container(limits={names.GPU_PERCENT: 5}, env=[ALL])),
        ends=Ends.GRANTED,
    )
    yield Attempt(
        name="ephemeral-at-creation",
        what="an ephemeral container in a new pod",
        by="the API server",
        pod=pod(ephemeralContainers=[container("debug", env=[ALL])], **NVIDIA),
        ends=Ends.REFUSED,
        says="ephemeral",
        old_ends=Ends.NOTHING,  # the field is dropped
        same_as=IMAGE,
    )
    yield Attempt(
        name="exempt-by-a-pods-label",
        what="the label of exempt namespaces, on the pod",
        by=HOOK,
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
        yield Attempt(
            name=f"forged-{number}",
            what=f"forged: `{key}`",
            by=REMOVED,
            pod=pod(marks={key: value}),
            ends=Ends.NOTHING,
            same_as=IMAGE_PLAIN,
        )
        yield Attempt(
            name=f"forged-share-{number}",
            what=f"forged beside a share: `{key}`",
            by=REMOVED,
            pod=pod(container(limits={names.GPU_MEM: 1}), marks={key: value}),
            ends=Ends.GRANTED,
            same_as=SHARE if number else "",
        )
    yield Attempt(
        name="forged-managed",
        what="forged: every mark of a granted pod at once, also the label `gpushare.dev/managed`",
        by=REMOVED,
        pod=pod(container(env=[ALL]), labels={names.LABEL_MANAGED: "true"}, marks=FORGED, **NVIDIA),
        ends=Ends.NOTHING,
        without_webhook=names.ISOLATION_POLICY,
        same_as=IMAGE,
    )


CDI_KEYS: Final = (
    *("cdi.k8s.io/x", "cdi.k8s.io/vendor_class", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.c0"),
    "a.b.cdi.k8s.io/x",
)


def _cdi() -> Iterator[Attempt]:
    ours = [
        ("cdi.k8s.io/gpushare-g", f"{names.CDI_KIND}={GUESSED}"),
        ("nvidia.cdi.k8s.io/pod", f"{names.CDI_KIND}={GUESSED}"),
    ]
    for number, (key, device) in enumerate([*((key, "nvidia.com/gpu=all") for key in CDI_KEYS), *ours]):
        marks = {key: device}
        yield Attempt(
            name=f"cdi-{number}",
            what=f"the annotation `{key}: {device}`",
            by=f"{REMOVED}; `gpushare-cdi`",
            pod=pod(marks=marks),
            ends=Ends.NOTHING,
            without_webhook=CDI,
            same_as=IMAGE_PLAIN,
        )
    yield Attempt(
        name="cdi-share",
        what="all such annotations of `cdi.k8s.io` beside a share",
        by=f"{REMOVED}; `gpushare-cdi`",
        pod=pod(container(limits={names.GPU_MEM: 1}), marks=dict.fromkeys(CDI_KEYS, "nvidia.com/gpu=all")),
        ends=Ends.GRANTED,
        same_as=SHARE,
    )


def _overflowing(node: str) -> Iterator[Attempt]:
    resources = (MIG, "nvidia.com/gpu.shared", HOSTDEV, names.GPU, names.GPU_MEM, names.GPU_PERCENT)
    amounts = ("10E", str(INT64 - 1), str(INT64 // 2), "1000000001")
    for number, resource in enumerate(resources):
        is_ours = number >= 3
        for amount in amounts:
            yield Attempt(
                name=f"overflow-{number}-{amount.lower()}",
                what=f"an amount of `{resource}` that leaves 64 bits, or nearly",
                by="the webhook" if is_ours else f"the webhook; `{names.AMOUNTS_POLICY}`",
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
            what="amounts whose sum leaves 64 bits, over containers, init containers and sidecars",
            by=f"the webhook; `{names.AMOUNTS_POLICY}`",
            pod=tried,
            ends=Ends.REFUSED,
            says="more than any node can have",
            without_webhook=POLICY if name in {"init", "sidecars"} else OVERFLOW,
        )
    yield Attempt(
        name="product-of-gpus",
        what="a product of GPUs and memory that leaves the range",
        by="the webhook",
        pod=pod(container(limits={names.GPU_MEM: 10**9 - 1}), marks={names.ANNOTATION_GPUS: "64"}),
        ends=Ends.REFUSED,
        says="exceed any node",
    )
    yield Attempt(
        name="overflow-on-a-preset-node",
        what="an amount that leaves 64 bits, with a preset `nodeName`",
        by="the webhook",
        pod=pod(container(limits={MIG: "10E"}), nodeName=node, **NVIDIA),
        ends=Ends.REFUSED,
        says="bypasses the scheduler",
        without_webhook=POLICY,
    )
    yield Attempt(
        name="much",
        what="more of another plugin's GPU than any node has",
        by="kube-scheduler",
        pod=pod(container(limits={MIG: 10**9}), **NVIDIA),
        ends=Ends.WAITS,
    )
    yield Attempt(
        name="of-the-pod",
        what="an amount that leaves 64 bits, in the resources of the pod",
        by="the API server",
        pod=pod(resources={"limits": {MIG: "10E"}}, **NVIDIA),
        ends=Ends.REFUSED,
        says="Unsupported value",
        old_ends=Ends.NOTHING,  # the field is dropped
        same_as=IMAGE,
    )
    yield Attempt(
        name="quota-name",
        what="`requests.nvidia.com/…` as a resource",
        by="the API server",
        pod=pod(container(limits={f"requests.{MIG}": "10E"}), **NVIDIA),
        ends=Ends.REFUSED,
        says="extended resource name",
    )
    yield Attempt(
        name="request-without-limit",
        what="another plugin's GPU in `requests` only",
        by="the API server",
        pod=pod({**container(), "resources": {"requests": {MIG: "1"}}}, **NVIDIA),
        ends=Ends.REFUSED,
        says="Limit must be set",
    )


def _other_plugins(node: str) -> Iterator[Attempt]:
    yield Attempt(
        name="mig",
        what="another plugin's GPU that no node has, and `all`",
        by="kube-scheduler",
        pod=pod(container(limits={MIG: 1}, env=[ALL]), **NVIDIA),
        ends=Ends.WAITS,
    )
    yield Attempt(
        name="hostdev",
        what="another resource of NVIDIA's that no node has",
        by="kube-scheduler",
        pod=pod(container(limits={HOSTDEV: 1}), **NVIDIA),
        ends=Ends.WAITS,
    )
    # The kubelet ignores a resource that its node does not have.
    yield Attempt(
        name="hostdev-on-a-preset-node",
        what="another resource of NVIDIA's, with a preset `nodeName`",
        by=HOOK,
        pod=pod(container(limits={HOSTDEV: 1}), nodeName=node, **NVIDIA),
        ends=Ends.NOTHING,
        without_webhook=UNCOMPLETED,
    )
    for resource in (MIG, "nvidia.com/gpu.shared"):
        yield Attempt(
            name=f"preset-node-{resource.rpartition('/')[2]}",
            what="another plugin's GPU, with a preset `nodeName`",
            by=f"the webhook; `{names.ISOLATION_POLICY}`",
            pod=pod(container(limits={resource: 1}), nodeName=node, **NVIDIA),
            ends=Ends.REFUSED,
            says="bypasses the scheduler",
            without_webhook=UNCOMPLETED,
        )
    yield Attempt(
        name="zero-of-another",
        what="0 of another plugin's GPU",
        by=HOOK,
        pod=pod(container(limits={MIG: 0}), **NVIDIA),
        ends=Ends.NOTHING,
        without_webhook=UNCOMPLETED,
    )
    yield Attempt(
        name="share-on-a-preset-node",
        what="a share and `all`, with a preset `nodeName`",
        by=HOOK,
        pod=pod(container(limits={names.GPU_MEM: 1}, env=[ALL]), nodeName=node),
        ends=Ends.GRANTED,
    )
    yield Attempt(
        name="another-scheduler",
        what="a share, by another scheduler",
        by="no one binds it",
        pod=pod(container(limits={names.GPU_MEM: 1}), schedulerName="none"),
        ends=Ends.WAITS,
    )


BAD: Final = {
    "nothing": "0",
    "fraction": "half a unit",
    "negative": "-1",
    "percents": "101 %",
    "both": "memory and a percentage",
    "count": "a number of GPUs (`aliyun.com/gpu-count`)",
    "core": "compute alone",
}


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
        yield Attempt(
            name=f"bad-{name}",
            what=f"a request for {BAD[name]}",
            by="the webhook or the API server",
            pod=pod(container(limits=limits)),
            ends=Ends.REFUSED,
            says=says,
        )
    yield Attempt(
        name="bad-totals",
        what="a forged `gpushare.dev/limits-are-totals`",
        by="the webhook",
        pod=pod(container(limits={names.GPU_MEM: 1}), marks={names.ANNOTATION_TOTALS: "false"}),
        ends=Ends.REFUSED,
        says=names.ANNOTATION_TOTALS,
    )
    many = [container(f"c{i}", {names.GPU_MEM: 1}) for i in range(65)]
    yield Attempt(
        name="bad-many",
        what="65 containers that ask for shares",
        by="the webhook",
        pod=pod(*many),
        ends=Ends.REFUSED,
        says="containers ask for GPUs",
    )
    thousands = [container(f"c{i}") for i in range(513)]
    yield Attempt(
        name="bad-thousands",
        what="513 containers",
        by="the webhook",
        pod=pod(*thousands),
        ends=Ends.REFUSED,
        says="more than any node runs",
    )
