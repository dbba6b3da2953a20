"""What of ResourceClaims is prepared on this node, and whether another fits beside it. Pure.

The API server checks no sums, and two schedulers overbook: what is prepared is counted here once more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from deviceplugin.pods import HeldPod
from gpushare import names, units
from gpushare.identity import ContainerName, GpuUuid
from gpushare.model.gpu import Gpu, HandOver, NodeInventory
from gpushare.model.ledger import Allocation, Grant, Held
from gpushare.units import MIB
from gpushare.wire import fields, pods as pods_wire
from gpushare.wire.claims import Claim, Share, device_name, pod_of, sums
from gpushare.wire.fields import JsonObject
from gpushare.wire.pods import Pod

_NAMED: Final = 6  # claims that a refusal names
_ALL: Final = 100


def by_device(inventory: NodeInventory) -> Mapping[str, Gpu]:
    return {device_name(gpu.uuid): gpu for gpu in inventory.dra}


def why_not(claim: Claim, prepared: Mapping[str, Claim], inventory: NodeInventory) -> str:
    """Why a claim cannot be prepared beside those that are; empty if it can."""
    if inventory.hand_over is not HandOver.CDI:
        return f"this node hands over by {inventory.hand_over.value}, and claims need cdi; the kubelet will try again"
    before = prepared.get(claim.uid)
    if before and not before.assumed and before.shares != claim.shares:
        return "what it was allocated before is in use here; delete its pods, and the kubelet will try again"
    gpus = by_device(inventory)
    others = [each for uid, each in prepared.items() if uid != claim.uid]
    held, wanted = sums(others), sums([claim])
    for device, (memory, compute) in wanted.items():
        gpu = gpus.get(device)
        if gpu is None:
            return _unknown(device, inventory)
        held_memory, held_compute = held.get(device, (0, 0))
        if (lack := _lack(memory, gpu.memory_mib * MIB - held_memory, _memory)) or (
            lack := _lack(compute, _ALL - held_compute, lambda percent: f"{percent} % of compute")
        ):
            about = f"GPU {gpu.label} ({gpu.model}, {units.memory(gpu.memory_mib)})"
            return f"{about} {lack}; {_holders(claim, others, device)}"
    return ""


def _lack(needed: int, free: int, spelled: Any) -> str:
    return f"has {spelled(max(free, 0))} left, and {spelled(needed)} are claimed" if needed > free else ""


def _memory(size: int) -> str:
    return units.memory(size // MIB) if size % MIB == 0 else f"{size} bytes"


def _holders(claim: Claim, others: Sequence[Claim], device: str) -> str:
    """For the Event of a tenant, who is told no names of other namespaces."""
    held = [(each, sum(share.memory for share in each.shares if share.device == device)) for each in others]
    own = sorted(((size, str(each)) for each, size in held if size and each.namespace == claim.namespace), reverse=True)
    told = [f"{name} ({_memory(size)})" for size, name in own[:_NAMED]]
    if len(own) > _NAMED:
        told.append(f"{len(own) - _NAMED} more")
    if foreign := sum(size for each, size in held if each.namespace != claim.namespace):
        told.append(f"claims of other namespaces ({_memory(foreign)})")
    return f"it is held by {', '.join(told)}; the kubelet will try again" if told else "it has no more"


def _unknown(device: str, inventory: NodeInventory) -> str:
    if any(device_name(gpu.uuid) == device for gpu in inventory.gpus):
        return (
            f"GPU {device} is shared by {names.GPU_MEM} now, not by claims; delete the pod, so that another is chosen"
        )
    return f"node {inventory.node} has no GPU {device} for claims; delete the pod, so that another is chosen"


def held_by_pods(pods: Iterable[Pod], prepared: Iterable[Claim], inventory: NodeInventory) -> Iterator[HeldPod]:
    """What reduced pods have by claims: each container all that it uses, and the pod each claim once.

    A pod with access for administrators, which has no amount, is left out.
    """
    known, gpus = {str(claim): claim for claim in prepared}, by_device(inventory)
    for pod in pods:
        ref = pods_wire.ref(pod)
        claims = {
            each["name"]: known[name]
            for each in fields.objects(fields.mapping(pod, "spec", "pod"), "resourceClaims", "spec")
            if (name := f"{ref.namespace}/{each['resourceClaimName']}") in known
        }
        held = _held(claims.values(), gpus)
        if not held or any(share.admin for claim in claims.values() for share in claim.shares):
            continue
        grants = [
            Grant(container=ContainerName(container["name"]), gpus=(gpu,), memory_mib=part.memory_mib)
            for _, _, container in pods_wire.containers(pod)
            for gpu, part in _held(_used(container, claims), gpus).items()
        ]
        yield HeldPod(
            allocation=Allocation(pod=ref, node=inventory.node, grants=tuple(grants)),
            assumed=0,
            container_ids=pods_wire.container_ids(pod),
            annotations=pods_wire.annotations(pod),
            held=held,
        )


def _used(container: Mapping[str, Any], claims: Mapping[str, Claim]) -> Iterator[Claim]:
    """What a container has of each claim; all of one of which it names no request."""
    uses = {(each["name"], each["request"]) for each in container["resources"].get("claims", ())}
    for name, claim in claims.items():
        shares = (share for share in claim.shares if uses & {(name, ""), (name, share.request)})
        yield replace(claim, shares=tuple(shares))


def _held(claims: Iterable[Claim], gpus: Mapping[str, Gpu]) -> Mapping[GpuUuid, Held]:
    return {
        gpus[device].uuid: Held(-(-memory // MIB), compute)
        for device, (memory, compute) in sums(claims).items()
        if device in gpus
    }


def encode(prepared: Iterable[Claim]) -> str:
    """A checkpoint."""
    return fields.dump_json({"version": 1, "claims": [_encoded(claim) for claim in prepared]})


def _encoded(claim: Claim) -> JsonObject:
    shares = [
        {
            "request": share.request,
            "device": share.device,
            "shareID": share.share_id,
            "memory": share.memory,
            "compute": share.compute,
            "admin": share.admin,
        }
        for share in claim.shares
    ]
    pod = claim.pod and {"name": claim.pod.name, "uid": claim.pod.uid}
    identity = {"uid": claim.uid, "namespace": claim.namespace, "name": claim.name}
    return {**identity, "shares": shares, "pod": pod, "assumed": claim.assumed}


def decode(text: str) -> tuple[Claim, ...]:
    """Read a checkpoint. Raises WireError: it is none, or of a later version."""
    return tuple(
        _decoded(entry, f"claims[{i}]")
        for i, entry in enumerate(fields.needed_objects(fields.load_versioned(text), "claims", ""))
    )


def _decoded(entry: JsonObject, path: str) -> Claim:
    namespace, pod = fields.needed(entry, "namespace", path), fields.mapping(entry, "pod", path)
    shares = tuple(
        Share(
            request=fields.needed(each, "request", path),
            device=fields.needed(each, "device", path),
            share_id=fields.text(each, "shareID", path),
            memory=fields.integer(each, "memory", path),
            compute=fields.integer(each, "compute", path),
            admin=each.get("admin") is True,
        )
        for each in fields.objects(entry, "shares", path)
    )
    return Claim(
        uid=fields.needed(entry, "uid", path),
        namespace=namespace,
        name=fields.needed(entry, "name", path),
        shares=shares,
        pod=pod_of(pod, namespace) if pod else None,
    )
