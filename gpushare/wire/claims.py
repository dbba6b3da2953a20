"""ResourceClaims as they are allocated, and the names of GPUs in them."""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare import names, units
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName, PodRef, PodUid
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
    return {
        "metadata": {key: metadata.get(key) for key in ("namespace", "name", "uid")},
        "results": results[:_MOST],
        "reservedFor": fields.objects(status, "reservedFor", "status")[:1],
    }


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
