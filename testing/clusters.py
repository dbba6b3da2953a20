"""Clusters in memory for the dashboard: of any size, with pods of several namespaces, and everything that it shows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpushare import names
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef, PodUid
from gpushare.kube.api import ForbiddenError, Reply
from gpushare.model.gpu import Gpu, GpuHealth, Limit, NodeInventory
from gpushare.model.ledger import Allocation, Grant
from gpushare.units import GIB
from gpushare.wire import allocations
from testing.builders import Json, env_of, make_container, make_node, make_pod
from testing.cli.podding import mutated
from testing.fakes.kube import FakeKube

NODES = "/api/v1/nodes"
MODELS = (
    ("Tesla T4", 15, Limit.ADVISORY),
    ("NVIDIA A100-SXM4-80GB", 80, Limit.CGROUP),
    ("NVIDIA L40S", 45, Limit.MPS),
    ("NVIDIA H100 80GB HBM3", 80, Limit.CGROUP),
)
NAMESPACES = ("research", "serving", "notebooks", "vision", "ci")


def gpus(node: int, count: int) -> tuple[Gpu, ...]:
    model, gib, limit = MODELS[node % len(MODELS)]
    reason = "" if limit is Limit.CGROUP else "the driver is older than r615"
    return tuple(
        Gpu(
            uuid=GpuUuid(f"GPU-{node:05d}-{i}"),
            index=i,
            model=model,
            memory_mib=gib * 1024,
            limit=limit,
            limit_reason=reason,
        )
        for i in range(count)
    )


def node(number: int, found: Sequence[Gpu]) -> Json:
    inventory = NodeInventory(node=NodeName(name_of(number)), gpus=tuple(found), unit=GIB)
    return make_node(inventory, ip=f"10.0.{number // 250}.{number % 250 + 1}")


def name_of(number: int) -> str:
    return f"gpu-{number:04d}"


def stamp(minutes: float) -> str:
    """So many minutes ago."""
    return (datetime.now(UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def running(
    name: str, uuid: str, gib: int, *, on: str, namespace: str = "research", minutes: float = 90, index: int = 0
) -> Json:
    """A pod that holds so much of one GPU."""
    ref = PodRef(namespace=namespace, name=name, uid=PodUid(f"uid-{namespace}-{name}"))
    grant = Grant(container=ContainerName("main"), gpus=(GpuUuid(uuid),), memory_mib=gib * 1024)
    allocation = Allocation(pod=ref, node=NodeName(on), grants=(grant,))
    annotations = {
        names.ANNOTATION_ALLOCATION: allocations.encode(allocation),
        f"{names.PREFIX_INDEX}main": str(index),
        f"{names.PREFIX_CAPACITY}main": "15",
    }
    container = make_container("main", gib, env=[env_of("main")])
    pod = make_pod(container, name=name, namespace=namespace, node=on, annotations=annotations, phase="Running")
    pod["metadata"] |= {"uid": ref.uid, "creationTimestamp": stamp(minutes)}
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(minutes)}]
    return pod


def waiting(name: str, gib: int, *, namespace: str = "research", message: str = "") -> Json:
    """A pod that asks for so much and is on no node."""
    pod = mutated(make_pod(make_container("main", gib), name=name, namespace=namespace))
    pod["metadata"] |= {"uid": f"uid-{namespace}-{name}", "creationTimestamp": stamp(12)}
    if message:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod["status"]["conditions"] = [condition]
    return pod


def event(pod: Json, reason: str, message: str, *, minutes: float = 5) -> Json:
    """An Event on a pod."""
    meta = pod["metadata"]
    about = {"kind": "Pod", **{key: meta[key] for key in ("name", "namespace", "uid")}}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{reason.lower()}", "namespace": meta["namespace"]},
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": stamp(minutes),
    }


def add_pod(kube: FakeKube, pod: Json) -> None:
    kube.seed(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)


def add_event(kube: FakeKube, found: Json) -> None:
    kube.seed(f"/api/v1/namespaces/{found['metadata']['namespace']}/events", found)


def forbid(kube: FakeKube, holds: Callable[[str], bool]) -> None:
    """From now on, to its user, all paths of which this is true."""
    kube.fail_next(lambda call: holds(call.path), ForbiddenError("nodes is forbidden"), times=10**9)


def small() -> FakeKube:
    """One node with two GPUs, as somebody has who tries it at home."""
    kube = FakeKube()
    found = gpus(0, 2)
    kube.seed(NODES, node(0, found))
    for name, gpu, gib, namespace in (
        ("notebook-ada", 0, 6, "notebooks"),
        ("train-resnet", 0, 8, "research"),
        ("embed-api", 1, 4, "serving"),
    ):
        add_pod(kube, running(name, found[gpu].uuid, gib, on=name_of(0), namespace=namespace, minutes=25 - gib))
    wide = waiting("train-llm", 14, message="0/1 nodes are available: 1 needs 14 GiB on one GPU.")
    add_pod(kube, wide)
    add_event(kube, event(wide, "GpuShareNoRoom", "needs 14 GiB on one GPU; free per GPU on gpu-0000: 1, 11 GiB"))
    measured(kube, 0, {("notebooks", "notebook-ada"): (found[0], 2.5), ("research", "train-resnet"): (found[0], 8.5)})
    return kube


def large(count: int) -> FakeKube:
    """So many GPUs, eight on a node, about three quarters full."""
    kube = FakeKube()
    numbers = range((count + 7) // 8)
    for number in numbers:
        found = list(gpus(number, min(8, count - 8 * number)))
        if number % 17 == 3:
            found[0] = replace(found[0], health=GpuHealth.UNHEALTHY, reason="Xid 79: GPU has fallen off the bus")
        made = node(number, found)
        if number % 23 == 5:
            made["metadata"]["annotations"][names.ANNOTATION_CORDON] = "1"
        kube.seed(NODES, made)
        used: dict[tuple[str, str], tuple[Gpu, float]] = {}
        for gpu in found:
            _fill(kube, number, gpu, used)
        measured(kube, number, used)
    add_pod(kube, waiting("pretrain", 81, namespace="research"))
    return kube


def _fill(kube: FakeKube, number: int, gpu: Gpu, used: dict[tuple[str, str], tuple[Gpu, float]]) -> None:
    left = gpu.memory_mib // 1024 * ((number * 7 + gpu.index * 5) % 11) // 10
    for i in range(6):
        gib = min(left, 2 + (number * 5 + gpu.index * 3 + i * 7) % 23)
        if gib <= 0:
            return
        left -= gib
        namespace = NAMESPACES[(number + gpu.index + i) % len(NAMESPACES)]
        name = f"{namespace}-{number}-{gpu.index}-{i}"
        add_pod(kube, running(name, gpu.uuid, gib, on=name_of(number), namespace=namespace, index=gpu.index))
        part = 1.04 if limit_is_weak(gpu) and (number + gpu.index + i) % 19 == 2 else (3 + (number + 2 * i) % 7) / 10
        used[namespace, name] = gpu, gib * part


def limit_is_weak(gpu: Gpu) -> bool:
    """Whether a pod may use more than it was granted."""
    return not gpu.limit.enforced


def measured(kube: FakeKube, number: int, used: dict[tuple[str, str], tuple[Gpu, float]]) -> None:
    """The device plugin of a node tells so many GiB of these pods."""
    container = {"name": "plugin", "ports": [{"name": "metrics", "containerPort": 9400}]}
    plugin = make_pod(
        container,
        name=f"plugin-{number}",
        namespace=names.NAMESPACE,
        node=name_of(number),
        labels={"app.kubernetes.io/name": names.PLUGIN},
        phase="Running",
    )
    plugin["metadata"]["uid"] = f"uid-plugin-{number}"
    add_pod(kube, plugin)
    lines = ['gpushare_plugin_gpu_foreign_bytes{UUID="x"} 0']
    for (namespace, pod), (gpu, gib) in used.items():
        labels = f'UUID="{gpu.uuid}",container="main",namespace="{namespace}",pod="{pod}"'
        lines.append(f"gpushare_plugin_container_used_bytes{{{labels}}} {int(gib * 2**30)}")
    path = f"/api/v1/namespaces/{names.NAMESPACE}/pods/plugin-{number}:9400/proxy/metrics"
    kube.replies[path] = Reply(status=200, text="\n".join(lines) + "\n")
