"""The format of a profile of simulated GPUs: decoded YAML -> Profile. Pure; every error names its path.

seed: 1                      # changes all UUIDs and the choice of GPUs below; 0 by default
gpus:
  - {model: NVIDIA A100-SXM4-80GB, memoryMiB: 81920, count: 8, numa: 0}
  - {model: NVIDIA A100-SXM4-40GB, memoryMiB: 40960, reservedMiB: 583}  # what the driver keeps cannot be shared
  - model: NVIDIA A100-SXM4-40GB  # in MIG mode: only its instances are shared
    memoryMiB: 40960
    mig:
      - {profile: 1g.5gb, memoryMiB: 4864, count: 3}
      - {profile: 3g.20gb, memoryMiB: 19968}
faults:                      # of GPUs by their number; without one the seed chooses
  - {gpu: 1, kind: xid, afterPolls: 3, recoversAfterPolls: 2}
  - {gpu: 9, instance: 0, kind: ecc}  # of one MIG instance; without instance, of all that the GPU has
  - {kind: lost, afterSeconds: 60}
nodes:                       # a node with other GPUs or faults
  node-b: {gpus: [{model: Tesla T4, memoryMiB: 15360}]}
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import MAX_GPUS, MAX_INSTANCES, Gpu, Limit, MigInstance, NodeInventory, mig_index
from gpushare.units import MemoryUnit
from gpushare.wire import fields

_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOP: Final = frozenset({"seed", "gpus", "faults", "nodes"})
_NODE: Final = frozenset({"seed", "gpus", "faults"})
_GPU: Final = frozenset({"model", "memoryMiB", "count", "numa", "uuid", "reservedMiB", "mig"})
_MIG: Final = frozenset({"profile", "memoryMiB", "count"})
_FAULT: Final = frozenset({"gpu", "instance", "kind", "afterPolls", "afterSeconds", "recoversAfterPolls"})


class FaultKind(Enum):
    XID = "xid"  # the driver reports a critical error: unhealthy
    ECC = "ecc"  # an uncorrectable memory error: unhealthy
    LOST = "lost"  # fell off the bus: no longer listed


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSpec:
    profile: str  # such as 1g.5gb
    memory_mib: int  # all of which can be used


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    model: str
    memory_mib: int
    numa: int | None = None
    uuid: str = ""  # empty for a derived one
    reserved_mib: int = 0  # what the driver keeps of the memory for itself
    mig: tuple[MigSpec, ...] | None = None  # the instances of each in MIG mode; None for GPUs that are not


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    gpu: int | None  # number on the node; None lets the seed choose
    kind: FaultKind
    instance: int | None = None  # number of the MIG instance that has it; None for the GPU with all its instances
    after_polls: int = 0
    after_seconds: float = 0.0
    recovers_after_polls: int | None = None  # None if it stays


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    seed: int
    gpus: tuple[GpuSpec, ...]  # each of the node's
    faults: tuple[Fault, ...]

    def offered(self, node: NodeName, index: int, *, reserved: bool = False) -> tuple[Gpu, ...]:
        """What the GPU with this number, from 0, offers before any fault: itself, or its instances.

        UUIDs differ between nodes. `reserved` counts memory that the driver keeps for itself.
        """
        spec = self.gpus[index]
        if spec.mig is None:
            gpu = Gpu(
                uuid=GpuUuid(spec.uuid or uuid_of("GPU", self.seed, node, index)),
                index=index,
                model=spec.model,
                memory_mib=spec.memory_mib - (0 if reserved else spec.reserved_mib),
                numa=spec.numa,
            )
            return (gpu,)
        return tuple(
            Gpu(
                uuid=GpuUuid(uuid_of("MIG", self.seed, node, index, number)),
                index=mig_index(index, number),
                model=f"{spec.model} MIG {mig.profile}",
                memory_mib=mig.memory_mib,
                numa=spec.numa,
                limit=Limit.MIG,
                mig=MigInstance(gpu=index, number=number, profile=mig.profile),
            )
            for number, mig in enumerate(spec.mig)
        )


def uuid_of(kind: str, *of: object) -> str:
    """The same in every run, different on every node, in NVIDIA's format."""
    text = hashlib.sha256("/".join(map(str, of)).encode()).hexdigest()
    return f"{kind}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def inventory(document: Any, node: NodeName, unit: MemoryUnit) -> NodeInventory:
    """The inventory that a node with this profile publishes, before any fault. Raises WireError."""
    profile = parse(document, node)
    gpus = (gpu.counted_in(unit) for index in range(len(profile.gpus)) for gpu in profile.offered(node, index))
    ordered = tuple(sorted(gpus, key=lambda gpu: gpu.index))
    return NodeInventory(node=node, gpus=ordered, unit=unit)


def nodes(document: Any) -> tuple[str, ...]:
    """The nodes that a profile names, in its order. Raises WireError."""
    return tuple(_overrides(_mapping(document, "", _TOP)))


def parse(document: Any, node: NodeName) -> Profile:
    """The profile of one node. Raises WireError: the document is wrong, also in the part of another node."""
    top = _mapping(document, "", _TOP)
    overrides = _overrides(top)
    # A node has its own faults or none: those at the top are about the GPUs at the top.
    shared = {key: top[key] for key in ("seed", "gpus") if key in top}
    by_node = {name: _profile({**shared, **own}, f"nodes.{name}", own) for name, own in overrides.items()}
    return by_node[node] if node in by_node else _profile(top, "", top)


def _overrides(top: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    nodes = fields.mapping(top, "nodes", "")
    return {str(name): _mapping(value, f"nodes.{name}", _NODE) for name, value in nodes.items()}


def _profile(merged: Mapping[str, Any], path: str, own: Mapping[str, Any]) -> Profile:
    """Args: own: what the part at `path` says itself; the rest of `merged` is said at the top."""

    def place(key: str) -> str:
        return path if key in own else ""

    at = fields.at(place("gpus"), "gpus")
    gpus = [_gpu(gpu, f"{at}[{i}]") for i, gpu in enumerate(fields.needed_array(merged, "gpus", place("gpus")))]
    total = sum(count for _, count in gpus)
    if not 1 <= total <= MAX_GPUS:
        raise WireError(f"{at}: {total} GPUs; a node has 1 to {MAX_GPUS}")
    uuids = [gpu.uuid for gpu, _ in gpus if gpu.uuid]
    if len(set(uuids)) != len(uuids):
        raise WireError(f"{at}: two GPUs with the same uuid; leave uuid out to have them derived")
    faults, where = fields.objects(merged, "faults", place("faults")), fields.at(place("faults"), "faults")
    return Profile(
        seed=fields.integer(merged, "seed", place("seed"), default=0),
        gpus=tuple(gpu for gpu, count in gpus for _ in range(count)),
        faults=tuple(_fault(fault, f"{where}[{i}]", total) for i, fault in enumerate(faults)),
    )


def _gpu(entry: object, path: str) -> tuple[GpuSpec, int]:
    """And how many of them."""
    value = _mapping(entry, path, _GPU)
    uuid, count = fields.text(value, "uuid", path), fields.integer(value, "count", path, default=1, least=1)
    if uuid and not _UUID.fullmatch(uuid):
        raise WireError(f"{path}.uuid: expected GPU- and 32 hexadecimal digits in NVIDIA's groups, found {uuid!r:.100}")
    if uuid and count > 1:
        raise WireError(f"{path}.uuid: {count} GPUs cannot share one; leave it out or set count to 1")
    memory_mib = fields.integer(value, "memoryMiB", path, least=1)
    reserved_mib = fields.integer(value, "reservedMiB", path, default=0)
    if reserved_mib >= memory_mib:
        raise WireError(f"{path}.reservedMiB: {reserved_mib} MiB of {memory_mib} leave nothing to share")
    spec = GpuSpec(
        model=fields.needed(value, "model", path),
        memory_mib=memory_mib,
        reserved_mib=reserved_mib,
        mig=_instances(value, path) if "mig" in value else None,
        numa=fields.optional_integer(value, "numa", path),
        uuid=uuid,
    )
    return spec, count


def _instances(gpu: Mapping[str, Any], path: str) -> tuple[MigSpec, ...]:
    entries = enumerate(fields.needed_array(gpu, "mig", path))
    found = tuple(spec for i, entry in entries for spec in _mig(entry, f"{path}.mig[{i}]"))
    if len(found) > MAX_INSTANCES:
        raise WireError(f"{path}.mig: {len(found)} instances; a GPU has up to {MAX_INSTANCES}")
    return found


def _mig(entry: object, path: str) -> tuple[MigSpec, ...]:
    value = _mapping(entry, path, _MIG)
    spec = MigSpec(
        profile=fields.needed(value, "profile", path), memory_mib=fields.integer(value, "memoryMiB", path, least=1)
    )
    return (spec,) * min(fields.integer(value, "count", path, default=1, least=1), MAX_INSTANCES + 1)


def _fault(entry: object, path: str, total: int) -> Fault:
    value = _mapping(entry, path, _FAULT)
    try:
        kind = FaultKind(value.get("kind"))
    except ValueError as error:
        known = ", ".join(kind.value for kind in FaultKind)
        raise WireError(f"{path}.kind: expected one of {known}, found {value.get('kind')!r:.100}") from error
    gpu = fields.optional_integer(value, "gpu", path)
    if gpu is not None and gpu >= total:
        raise WireError(f"{path}.gpu: there is no GPU {gpu}; the node has 0 to {total - 1}")
    seconds = value.get("afterSeconds", 0)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
        raise fields.unexpected("a number, 0 or more", seconds, f"{path}.afterSeconds")
    return Fault(
        gpu=gpu,
        instance=fields.optional_integer(value, "instance", path),
        kind=kind,
        after_polls=fields.integer(value, "afterPolls", path, default=0),
        after_seconds=seconds,
        recovers_after_polls=fields.optional_integer(value, "recoversAfterPolls", path, least=1),
    )


def _mapping(value: object, path: str, known: frozenset[str]) -> Mapping[str, Any]:
    entries = fields.an_object(value, path)
    for key in entries:
        if key not in known:
            problem = f"unknown field {key!r:.100}; known are {', '.join(sorted(known))}"
            raise WireError(f"{path}: {problem}" if path else problem)
    return entries
