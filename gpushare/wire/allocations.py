"""`gpushare.dev/allocation` and the annotations derived from it, all written by one Binding."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from gpushare import names
from gpushare.errors import InvalidRequestError, WireError
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Allocation, Grant
from gpushare.model.request import ContainerKind, PodRequest
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import fields, interop, pods, requests

_MIB: Final = re.compile(r"[0-9]{1,15}")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def encode(allocation: Allocation) -> str:
    """The annotation's value. Readers of version 1 do not know whole GPUs and would count too little of them."""
    whole = any(grant.whole for grant in allocation.grants)
    head: dict[str, Any] = {"version": 2, "minReader": 2} if whole else {"version": 1}
    return fields.dump_json(
        {**head, "node": allocation.node, "containers": [_container(grant) for grant in allocation.grants]}
    )


def _container(grant: Grant) -> dict[str, Any]:
    value: dict[str, Any] = {"name": grant.container, "kind": grant.kind.value}
    value |= {"gpus": grant.gpus, "memoryMiB": grant.memory_mib}
    more = {"computePercent": grant.compute_percent, "physical": grant.physical, "extraMiB": grant.extra_mib}
    return value | {key: said for key, said in {**more, "whole": grant.whole}.items() if said}


def decode(text: str, pod: PodRef, labels: Mapping[str, str] = _NONE) -> Allocation:
    """Read the annotation's value; the labels are the pod's. Raises WireError: this version cannot read it."""
    try:
        value = fields.load_versioned(text)
        return Allocation(
            pod=pod,
            node=NodeName(fields.needed(value, "node", "")),
            grants=tuple(
                _grant(entry, f"containers[{i}]")
                for i, entry in enumerate(fields.needed_objects(value, "containers", ""))
            ),
            labels=labels,
        )
    except WireError as error:
        raise WireError(f"annotation {names.ANNOTATION_ALLOCATION}: {error}") from error


def _container_grant(annotations: Mapping[str, str], container: ContainerName) -> Grant:
    devices, memory = names.PREFIX_DEVICES + container, names.PREFIX_MEMORY + container
    text = fields.text(annotations, devices, "metadata.annotations")
    gpus = _uuids(text.split(","), f"annotation {devices}", annotations.get(devices))
    mib = fields.text(annotations, memory, "metadata.annotations")
    if _MIB.fullmatch(mib) is None:
        raise WireError(f"annotation {memory}: expected a number of MiB, found {annotations.get(memory)!r:.100}")
    return Grant(container=container, gpus=gpus, memory_mib=int(mib))


def _uuids(gpus: Sequence[str], where: str, found: object) -> tuple[GpuUuid, ...]:
    if not all(gpus) or not 0 < len(set(gpus)) == len(gpus):
        raise WireError(f"{where}: expected UUIDs of different GPUs, found {found!r:.100}")
    return tuple(map(GpuUuid, gpus))


def _grant(entry: fields.JsonObject, path: str) -> Grant:
    listed = fields.strings(entry, "gpus", path)
    gpus = _uuids(listed, f"{path}.gpus", list(listed))
    try:
        kind = ContainerKind(entry.get("kind"))
    except ValueError as error:
        problem = f"expected init, sidecar or app, found {entry.get('kind')!r:.100}"
        raise WireError(f"{path}.kind: {problem}") from error
    return Grant(
        container=ContainerName(fields.needed(entry, "name", path)),
        kind=kind,
        gpus=gpus,
        memory_mib=fields.integer(entry, "memoryMiB", path),
        compute_percent=fields.integer(entry, "computePercent", path, default=0),
        # Anything but false means whole, also what a later version may say: a GPU too much is held rather than shared.
        whole=bool(entry.get("whole", False)),
        physical=bool(entry.get("physical", False)),
        extra_mib=fields.integer(entry, "extraMiB", path, default=0),
    )


def binding_annotations(
    allocation: Allocation, inventory: NodeInventory, assumed_ns: int, request: PodRequest | None = None
) -> dict[str, str]:
    """Everything that the Binding writes on the pod; every GPU of the allocation is in the inventory.

    `assumed_ns` is the Unix time of the decision in nanoseconds, Aliyun's format. Without the request nothing is
    written in the ways of ACK and nano-gpu.
    """
    unit = inventory.unit
    result = {names.ANNOTATION_ALLOCATION: encode(allocation)}
    for grant in allocation.grants:
        gpus = [inventory.by_uuid[uuid] for uuid in grant.gpus]
        result[names.PREFIX_DEVICES + grant.container] = ",".join(grant.gpus)
        result[names.PREFIX_MEMORY + grant.container] = str(grant.memory_mib)
        result[names.PREFIX_INDEX + grant.container] = ",".join(str(gpu.index) for gpu in gpus)
        result[names.PREFIX_CAPACITY + grant.container] = str(unit.floor(min(gpu.memory_mib for gpu in gpus)))
    return result | interop.annotations(allocation, inventory, assumed_ns, request)


def granted(pod: pods.Pod, unit: MemoryUnit) -> Allocation | None:
    """What a bound pod was given, by this system or by one that it replaces, in units of its node; None if nothing.

    Raises WireError: the annotation cannot be read or speaks of another node.
    """
    node = pods.node_of(pod)
    if node is None:
        return None
    if names.ANNOTATION_ALLOCATION not in pods.annotations(pod):
        return interop.allocation(pod, pods.ref(pod), node, unit)
    text = fields.text(pods.annotations(pod), names.ANNOTATION_ALLOCATION, "metadata.annotations")
    written = decode(text, pods.ref(pod), pods.labels(pod))
    if written.node != node:
        raise WireError(
            f"annotation {names.ANNOTATION_ALLOCATION}: made for node {written.node}, but the pod is on {node}"
        )
    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpus:
    """What a bound pod holds, for a ledger in which what cannot be read must not count as nothing."""

    allocation: Allocation | None
    problem: str = ""  # why its own annotation cannot be read; `allocation` is then what the others of its Binding tell


def held(pod: pods.Pod, resource_config: ResourceConfig, unit: MemoryUnit) -> HeldGpus:
    """What a bound pod holds, from whichever annotation can be read. Raises WireError if none can."""
    try:
        return HeldGpus(allocation=granted(pod, unit))
    except WireError as error:
        node = pods.node_of(pod)
        if node is None or names.ANNOTATION_ALLOCATION not in pods.annotations(pod):
            raise
        try:
            allocation = _of_containers(pod, node, resource_config)
        except WireError as other:
            raise WireError(f"{error}; and {other}") from error
        return HeldGpus(allocation=allocation, problem=str(error))


def _of_containers(pod: pods.Pod, node: NodeName, resource_config: ResourceConfig) -> Allocation:
    """The same decision from the annotations of each container that asks for GPUs, and from the pod's own request.

    They do not tell kinds of containers, so all shares are added up: never less than the pod holds. Raises WireError:
    they do not tell of all these containers.
    """
    try:
        asked = requests.shape_of(pod, resource_config)
    except InvalidRequestError:
        asked = None
    wanted = {} if asked is None else {request.container: request for request in asked.containers}
    grants = []
    for name in map(ContainerName, pods.asking(pod, resource_config)):
        grant = _container_grant(pods.annotations(pod), name)
        if asked is not None and name in wanted:
            compute_percent, whole = wanted[name].compute_percent, wanted[name].whole
            grant = replace(grant, compute_percent=compute_percent, whole=whole, physical=asked.gpus.physical)
        grants.append(grant)
    return Allocation(pod=pods.ref(pod), node=node, grants=tuple(grants), labels=pods.labels(pod))
