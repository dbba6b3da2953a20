"""Nodes and pods as API objects, and an API that serves them in pages."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from gpushare import names
from gpushare.identity import GpuUuid, NodeName, PodRef, PodUid
from gpushare.kube import api as kube
from gpushare.model.allocation import Allocation, Grant
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.units import GIB, MemoryUnit
from gpushare.wire import allocation as allocation_wire
from gpushare.wire import inventory as inventory_wire

Object = dict[str, Any]
T = TypeVar("T")

CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"


def node(
    name: str = "node-a",
    *,
    address: str | None = "192.168.0.71",
    allocatable: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Object:
    addresses = [{"type": "Hostname", "address": name}]
    addresses += [{"type": "InternalIP", "address": address}] if address else []
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "status": {"addresses": addresses, "allocatable": allocatable or {}},
    }


def aliyun_node(name: str = "node-a", *, mem: str = "30", count: str = "2", address: str = "192.168.0.71") -> Object:
    return node(name, address=address, allocatable={names.GPU_MEM: mem, names.GPU_COUNT: count})


def our_node(
    name: str = "node-a",
    *memory_mib: int,
    unit: MemoryUnit = GIB,
    unhealthy: Sequence[int] = (),
    address: str | None = "192.168.0.71",
    instances: Sequence[Gpu] = (),
) -> Object:
    inventory = NodeInventory(
        node=NodeName(name),
        unit=unit,
        gpus=tuple(
            Gpu(
                uuid=GpuUuid(f"GPU-{name}-{i}"),
                index=i,
                model="Tesla T4",
                memory_mib=mib,
                health=GpuHealth.UNHEALTHY if i in unhealthy else GpuHealth.HEALTHY,
                reason="Xid 79: GPU has fallen off the bus" if i in unhealthy else "",
            )
            for i, mib in enumerate(memory_mib)
        )
        + tuple(instances),
    )
    return node(name, address=address, annotations={names.ANNOTATION_INVENTORY: inventory_wire.encode(inventory)})


def pod(
    name: str,
    *,
    namespace: str = "default",
    on: str = "node-a",
    mem: int | str = 3,
    annotations: dict[str, str] | None = None,
    phase: str = "Running",
) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": annotations or {}},
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": {"limits": {names.GPU_MEM: str(mem)}}}]},
        "status": {"phase": phase},
    }


def aliyun_pod(name: str, *, gpu: int, mem: int, namespace: str = "default", phase: str = "Running") -> Object:
    return pod(name, namespace=namespace, mem=mem, annotations={names.ALIYUN_IDX: str(gpu)}, phase=phase)


def ack_pod(name: str, shares: str, *, mem: int) -> Object:
    return pod(name, mem=mem, annotations={names.ACK_ALLOCATION: shares})


def our_pod(
    name: str, *gpus: str, mib: int, namespace: str = "default", on: str = "node-a", made_for: str | None = None
) -> Object:
    who = PodRef(namespace=namespace, name=name, uid=PodUid(f"uid-{name}"))
    grant = Grant(container="main", gpus=tuple(GpuUuid(gpu) for gpu in gpus), memory_mib=mib)  # type: ignore[arg-type] # a plain text reads better in a test
    allocation = Allocation(pod=who, node=NodeName(made_for or on), grants=(grant,))
    text = allocation_wire.encode(allocation)
    return pod(name, namespace=namespace, on=on, mem=mib // 1024, annotations={names.ANNOTATION_ALLOCATION: text})


def given(name: str, allocation: Allocation, *, namespace: str = "default", mem: int | str = 3) -> Object:
    """A running pod with this allocation."""
    text = allocation_wire.encode(allocation)
    annotations = {names.ANNOTATION_ALLOCATION: text}
    return pod(name, namespace=namespace, on=allocation.node, mem=mem, annotations=annotations)


def unhealthy_gpus(node: str, gpus: str) -> Object:
    """Aliyun's ConfigMap of GPUs that must not be used."""
    return {"metadata": {"name": f"unhealthy-gpu-{node}", "namespace": "kube-system"}, "data": {"gpus": gpus}}


class PagedApi:
    """Serves nodes, pods and ConfigMaps, `page` objects at a time, and remembers what it was asked."""

    def __init__(
        self,
        nodes: Sequence[Object] = (),
        pods: Sequence[Object] = (),
        config_maps: Sequence[Object] = (),
        *,
        page: int = 500,
    ) -> None:
        self.collections = {"/api/v1/nodes": list(nodes), "/api/v1/pods": list(pods), CONFIG_MAPS: list(config_maps)}
        self.page = page
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.failures: list[kube.KubeError] = []
        """Raised instead of the next answers."""

    def get(self, path: str, params: kube.Params | None = None, *, timeout_s: float = 5.0) -> Object:
        query = dict(params or {})
        self.asked.append((path, query))
        if self.failures:
            raise self.failures.pop(0)
        if path in self.collections:
            return self._list(self.collections[path], query)
        name = path.rsplit("/", 1)[-1]
        for known in self.collections["/api/v1/nodes"]:
            if known["metadata"]["name"] == name:
                return known
        raise kube.NotFoundError(f'nodes "{name}" not found')

    def read_object(self, path: str, *, keep: Callable[[Object], T], timeout_s: float = 5.0) -> T:
        return keep(self.get(path, timeout_s=timeout_s))

    def list_page(
        self, path: str, params: kube.Params | None = None, *, keep: Callable[[Object], T], timeout_s: float = 300.0
    ) -> kube.Page[T]:
        found = self.get(path, params, timeout_s=timeout_s)
        items = [keep(item) for item in found["items"]]
        return kube.Page(items=items, version="1", more=found["metadata"].get("continue", ""))

    def _list(self, items: list[Object], query: dict[str, str]) -> Object:
        start = int(query.get("continue", "0"))
        end = start + self.page
        selector = query.get("fieldSelector", "")
        chosen = [item for item in items if _selected(item, selector)]
        metadata = {"continue": str(end)} if end < len(chosen) else {}
        return {"metadata": metadata, "items": chosen[start:end]}

    def create(
        self,
        path: str,
        body: Object,
        params: kube.Params | None = None,
        *,
        timeout_s: float = 5.0,
        precondition: kube.Precondition | None = None,
    ) -> Object:
        raise AssertionError("a report changes nothing")

    def replace(self, path: str, body: Object, *, timeout_s: float = 5.0) -> Object:
        raise AssertionError("a report changes nothing")

    def patch(
        self,
        path: str,
        body: Object | Sequence[Object],
        *,
        kind: kube.PatchKind = kube.PatchKind.MERGE,
        params: kube.Params | None = None,
        timeout_s: float = 5.0,
        precondition: kube.Precondition | None = None,
    ) -> Object:
        raise AssertionError("a report changes nothing")

    def delete(
        self,
        path: str,
        body: Object | None = None,
        *,
        timeout_s: float = 5.0,
        precondition: kube.Precondition | None = None,
    ) -> Object:
        raise AssertionError("a report changes nothing")

    def watch(self, path: str, params: kube.Params, *, timeout_s: float) -> Iterator[Object]:
        raise AssertionError("a report is read once")

    def ask(self, path: str, *, timeout_s: float = 5.0) -> kube.Reply:
        raise AssertionError("a report needs no text")


def _selected(item: Object, selector: str) -> bool:
    node_name = item.get("spec", {}).get("nodeName", "")
    tests: dict[str, Callable[[], bool]] = {"": lambda: True, "spec.nodeName!=": lambda: bool(node_name)}
    if selector in tests:
        return tests[selector]()
    return bool(node_name == selector.removeprefix("spec.nodeName="))
