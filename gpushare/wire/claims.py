"""ResourceClaims as they are allocated, and the names of GPUs in them."""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare import names, units
from gpushare.errors import WireError
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.request import ContainerRequest
from gpushare.units import MIB
from gpushare.wire import fields
from gpushare.wire.fields import JsonObject

API: Final = "/apis/resource.k8s.io/v1"
_MOST: Final = 32  # results of one claim, as the API server has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a request of a claim has of one GPU."""

    request: str
    device: str  # the GPU's name in ResourceSlices
    share_id: str = ""
    memory: int = 0  # bytes
    compute: int = 0  # per cent
    admin: bool = False  # access for administrators, which counts nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    uid: str
    namespace: str
    name: str
    shares: tuple[Share, ...]
    pod: PodRef | None = None  # the first for which it is reserved
    assumed: bool = False  # allocated, and perhaps prepared: what a lost checkpoint said is not known

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def requests(self) -> Mapping[str, Sequence[Share]]:
        found: dict[str, list[Share]] = {}
        for share in self.shares:
            found.setdefault(share.request, []).append(share)
        return found

    def cdi_device(self, request: str) -> str:
        """The name of a CDI device. No one can guess it who cannot read UIDs, and no other claim ever has it."""
        digest = hashlib.sha256(f"{self.uid}/{request}".encode()).hexdigest()
        return f"c{digest[:16]}-{digest[16:32]}"


def device_name(gpu: GpuUuid) -> str:
    """A DNS label that stands for this GPU, whatever its number is after the next boot."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")[:63]


def reduce(claim: JsonObject) -> JsonObject:
    """A claim without what is not looked at. May raise WireError."""
    metadata, status = fields.mapping(claim, "metadata", "claim"), fields.mapping(claim, "status", "claim")
    allocation = fields.mapping(status, "allocation", "status")
    devices = fields.mapping(allocation, "devices", "status.allocation")
    results = [
        result
        for result in fields.objects(devices, "results", "status.allocation.devices")
        if result.get("driver") == names.DRA_DRIVER
    ]
    owners = fields.objects(metadata, "ownerReferences", "metadata")
    return {
        "metadata": {key: metadata.get(key) for key in ("namespace", "name", "uid")},
        "owner": [
            {key: owner.get(key) for key in ("name", "uid")}
            for owner in owners
            if owner.get("kind") == "Pod" and owner.get("controller") is True
        ][:1],
        "asks": list(_asks(fields.mapping(claim, "spec", "claim"))),
        "allocated": bool(allocation),
        "results": results[:_MOST],
        "reservedFor": fields.objects(status, "reservedFor", "status")[:1],
    }


def _asks(spec: JsonObject) -> Iterator[JsonObject]:
    """Requests for shares; of alternatives the first, which kube-scheduler prefers."""
    requests = fields.objects(fields.mapping(spec, "devices", "spec"), "requests", "spec.devices")
    for i, request in enumerate(requests[:_MOST]):
        path = f"spec.devices.requests[{i}]"
        choices = fields.objects(request, "firstAvailable", path)
        asked = choices[0] if choices else fields.mapping(request, "exactly", path)
        if asked.get("deviceClassName") == names.DEVICE_CLASS and asked.get("adminAccess") is not True:
            amounts = fields.mapping(fields.mapping(asked, "capacity", path), "requests", f"{path}.capacity")
            yield {
                "request": fields.needed(request, "name", path),
                "count": fields.integer(asked, "count", path, default=1, least=1),
                "consumedCapacity": {
                    key: amounts[key] for key in (names.DRA_MEMORY, names.DRA_COMPUTE) if key in amounts
                },
            }


def asked(claim: JsonObject) -> tuple[ContainerRequest, ...]:
    """What a reduced claim waits for, a container for each request; nothing once it is allocated. Raises WireError."""
    found = []
    for i, ask in enumerate(fields.objects(claim, "asks", "") if not claim["allocated"] else ()):
        path, amounts = f"spec.devices.requests[{i}]", ask["consumedCapacity"]
        memory = _amount(amounts, names.DRA_MEMORY, path, least=0)
        found.append(
            ContainerRequest(
                container=ContainerName(ask["request"]),
                memory_mib=-(-memory // MIB),
                memory_percent=0 if memory else 100,
                compute_percent=min(_amount(amounts, names.DRA_COMPUTE, path, least=0), 100),
                gpu_count=ask["count"],
            )
        )
    return tuple(found)


def owner(claim: JsonObject) -> PodRef | None:
    """The pod for which a reduced claim was made of a template; None if it was not."""
    namespace = fields.needed(fields.mapping(claim, "metadata", ""), "namespace", "metadata")
    return next((pod_of(each, namespace) for each in fields.objects(claim, "owner", "metadata")), None)


def read(claim: JsonObject, pool: NodeName) -> Claim:
    """A reduced claim as it is allocated on this node. Raises WireError: it cannot be prepared here as it is."""
    metadata = fields.mapping(claim, "metadata", "")
    namespace, name = (fields.needed(metadata, key, "metadata") for key in ("namespace", "name"))
    results = fields.objects(claim, "results", "")
    if not results:
        raise WireError("it is not allocated; kube-scheduler allocates it before it binds the pod")
    others = {str(result.get("pool")) for result in results} - {pool}
    if others:
        raise WireError(f"it is allocated on {', '.join(sorted(others))}, and this is node {pool}")
    pods = fields.objects(claim, "reservedFor", "status")
    return Claim(
        uid=fields.needed(metadata, "uid", "metadata"),
        namespace=namespace,
        name=name,
        shares=tuple(_share(result, f"status.allocation.devices.results[{i}]") for i, result in enumerate(results)),
        pod=pod_of(pods[0], namespace) if pods and pods[0].get("resource") == "pods" else None,
    )


def _share(result: JsonObject, path: str) -> Share:
    admin = result.get("adminAccess") is True
    consumed = fields.mapping(result, "consumedCapacity", path)
    return Share(
        request=fields.needed(result, "request", path).partition("/")[0],  # of alternatives, what pods name
        device=fields.needed(result, "device", path),
        share_id=fields.text(result, "shareID", path),
        memory=0 if admin else _amount(consumed, names.DRA_MEMORY, path, least=MIB),
        compute=0 if admin else _amount(consumed, names.DRA_COMPUTE, path, least=0),
        admin=admin,
    )


def _amount(consumed: JsonObject, name: str, path: str, *, least: int) -> int:
    value = consumed.get(name, consumed.get(f"{names.DRA_DRIVER}/{name}", 0))
    amount = units.quantity(value)
    if amount is None or not amount.is_finite() or amount < least:
        raise WireError(f"{path}.consumedCapacity.{name}: {value!r:.80} is no amount; expected {least} or more")
    return math.ceil(amount)


def pod_of(entry: JsonObject, namespace: str) -> PodRef:
    name, uid = (fields.text(entry, key, "status.reservedFor[0]") for key in ("name", "uid"))
    return PodRef(namespace=namespace, name=name, uid=PodUid(uid))


def sums(claims: Iterable[Claim]) -> Mapping[str, tuple[int, int]]:
    """Bytes and per cent that are held of each device."""
    found: dict[str, tuple[int, int]] = {}
    for share in (share for claim in claims for share in claim.shares):
        memory, compute = found.get(share.device, (0, 0))
        found[share.device] = (memory + share.memory, compute + share.compute)
    return found
