"""ResourceSlices: the node's GPUs of mode dra, as kube-scheduler and CEL expressions see them."""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from deviceplugin.causes import Code, code
from deviceplugin.inventory import InventoryFeed, PostedInventory
from deviceplugin.node import NodeFacts
from deviceplugin.source import RawGpu
from gpushare import names
from gpushare.cluster.node_records import entries, gpu_names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.gpu import Gpu, GpuHealth
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock
from gpushare.units import MIB, binary
from gpushare.wire import claims as wire
from gpushare.wire.claims import API, Claim

_LOG: Final = logging.getLogger(__name__)
_PATH: Final = f"{API}/resourceslices"
_TIMEOUT_S: Final = 5.0
_LOOK_S: Final = 10.0  # between looks whether others changed or removed them
_SOON_S: Final = 0.5  # between writes: claims come and go in bursts
_MOST: Final = 64  # devices of one slice, where one may have taints
_LONGEST: Final = 64  # characters of an attribute
_VERSIONS: Final = ("Version", "cudaComputeCapability")
UNHEALTHY: Final = f"{names.DRA_DRIVER}/unhealthy"  # keys of taints
CORDONED: Final = f"{names.DRA_DRIVER}/cordoned"
_OFF: Final = (
    "the API server does not keep allowMultipleAllocations: it needs Kubernetes 1.36, or the feature"
    " DRAConsumableCapacity"
)


def devices(posted: PostedInventory, prepared: Iterable[Claim], cordon: str) -> Sequence[JsonObject]:
    """Those that take claims, the one with least memory left first: kube-scheduler takes the first that fits. Pure."""
    held = wire.sums(prepared)
    found = [
        (gpu.memory_mib * MIB - held.get(wire.device_name(gpu.uuid), (0, 0))[0], gpu.index, gpu)
        for gpu in posted.inventory.dra
        # What is to change, or cannot be handed over, is left out: taints can be tolerated.
        if gpu.memory_mib and code(gpu.reason) not in {Code.MODE, Code.DRA}
    ]
    ordered = [gpu for *_, gpu in sorted(found, key=lambda each: each[:2])]
    return [_device(gpu, posted.raw.get(gpu.uuid), cordon) for gpu in ordered]


def _device(gpu: Gpu, raw: RawGpu | None, cordon: str) -> JsonObject:
    attributes: dict[str, Any] = {
        name: {"version" if name.endswith(_VERSIONS) else "string": value[:_LONGEST]}
        for name, value in (raw.attributes if raw else ())
    }
    attributes |= {
        "type": {"string": "mig" if gpu.mig else "gpu"},
        "uuid": {"string": gpu.uuid[:_LONGEST]},
        "index": {"int": gpu.index},
        "productName": {"string": gpu.model[:_LONGEST]},
        "limit": {"string": gpu.limit.value},
    }
    if gpu.mig:
        attributes["profile"] = {"string": gpu.mig.profile[:_LONGEST]}
    if gpu.numa is not None:
        attributes["numaNode"] = {"int": gpu.numa}
    memory = gpu.memory_mib
    device: JsonObject = {
        "name": wire.device_name(gpu.uuid),
        "allowMultipleAllocations": True,
        "attributes": attributes,
        "capacity": {
            # A request that does not say how much takes all of it, as without shares.
            names.DRA_MEMORY: _capacity(binary(memory), least="1Mi", default=binary(memory)),
            names.DRA_COMPUTE: _capacity("100", least="0", default="0"),
        },
    }
    if taints := list(_taints(gpu, cordon)):
        device["taints"] = taints
    return device


def _capacity(most: str, *, least: str, default: str) -> JsonObject:
    """Without a step: kube-scheduler rounds up to it in 64 bits, and counts what is very large as less than nothing."""
    return {"value": most, "requestPolicy": {"default": default, "validRange": {"min": least, "max": most}}}


def _taints(gpu: Gpu, cordon: str) -> Iterator[JsonObject]:
    if gpu.health is GpuHealth.UNHEALTHY:
        yield {"key": UNHEALTHY, "effect": "NoSchedule"}
    if gpu_names(gpu) & set(entries(cordon)):
        yield {"key": CORDONED, "effect": "NoSchedule"}


def slice_name(node: NodeName, number: int) -> str:
    """Of a node's name that leaves no room, a digest stands for it."""
    short = node if len(node) <= 200 else hashlib.sha256(node.encode()).hexdigest()[:32]
    return f"{short}-{names.DRA_DRIVER}-{number}"


def specs(node: NodeName, found: Sequence[JsonObject], generation: int) -> Sequence[JsonObject]:
    """Of all slices of a node. Pure."""
    parts = [list(found[start : start + _MOST]) for start in range(0, len(found), _MOST)]
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(parts)}
    return [{"driver": names.DRA_DRIVER, "nodeName": node, "pool": pool, "devices": part} for part in parts]


@dataclass(kw_only=True)
class SlicePublisher:
    """Writes the slices when GPUs or claims change, after each registration, and when others changed them."""

    api: KubeApi
    clock: Clock
    node: NodeName
    feed: InventoryFeed
    facts: Callable[[], NodeFacts | None]
    prepared: Callable[[], Mapping[str, Claim] | None]  # None while that is not known
    problem: str = ""  # why this API server cannot have them; empty if it can, as far as it was asked
    done: int = field(init=False, default=0)  # the inventory that they are of
    _probed: bool = field(init=False, default=False)
    _changed: threading.Event = field(init=False, default_factory=threading.Event)
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def wake(self) -> None:
        self._changed.set()

    def run(self, stop: threading.Event) -> None:
        backoff = Backoff()
        while not stop.is_set():
            self._changed.clear()
            facts, latest, prepared = self.facts(), self.feed.latest, self.prepared()
            if facts is not None and latest is not None and prepared is not None:
                try:
                    self._publish(devices(latest, prepared.values(), facts.cordon), facts.uid)
                except kube.KubeError as error:
                    self._problems.say("slices not published", level=logging.WARNING, error=_explained(error))
                    self.clock.wait(stop, backoff.next_s())
                    continue
                self.done = latest.version
                self._problems.clear()
                backoff.reset()
            self.clock.wait(stop, _SOON_S)
            self._wait(stop, latest.version if latest else 0)

    def _wait(self, stop: threading.Event, version: int) -> None:
        """Until something has changed, or it is time to look."""
        end = self.clock.monotonic() + _LOOK_S
        while not (stop.is_set() or self._changed.is_set()) and self.clock.monotonic() < end:
            if self.feed.newer(version, over=stop.is_set, seconds=_SOON_S / 2):
                return

    def _publish(self, found: Sequence[JsonObject], owner: str) -> None:
        selector = {"fieldSelector": f"spec.driver={names.DRA_DRIVER},spec.nodeName={self.node}"}
        try:
            listed = self.api.list_page(_PATH, selector, keep=lambda each: each, timeout_s=_TIMEOUT_S).items
            if not self._probed:
                self._probe()
        except kube.NotFoundError:
            self.problem = "the API server has no ResourceSlices (resource.k8s.io/v1): it needs Kubernetes 1.36"
            return
        if self.problem:
            return
        there = {each["metadata"]["name"]: each for each in listed}
        generation = max((each["spec"]["pool"]["generation"] for each in listed), default=1)
        by_name = self._named(found, generation)
        # A device may have come to another slice, so kube-scheduler must not take some of before with some of now.
        if (
            there
            and max(len(there), len(by_name)) > 1
            and any(_differs(there.get(name), spec) for name, spec in by_name.items())
        ):
            by_name = self._named(found, generation + 1)
        for name in there.keys() - by_name.keys():
            with suppress(kube.NotFoundError):
                self.api.delete(f"{_PATH}/{name}", timeout_s=_TIMEOUT_S)
        changed = {name: spec for name, spec in by_name.items() if _differs(there.get(name), spec)}
        for name, spec in changed.items():
            self._write(name, spec, there.get(name), owner)
        if changed:
            logs.event(_LOG, "slices published", slices=len(changed), devices=len(found))

    def _named(self, found: Sequence[JsonObject], generation: int) -> Mapping[str, JsonObject]:
        return {slice_name(self.node, number): spec for number, spec in enumerate(specs(self.node, found, generation))}

    def _probe(self) -> None:
        """A server without the feature drops what it does not know, and would give each GPU to the first claim."""
        device = {"name": "probe", "allowMultipleAllocations": True}
        (spec,) = specs(self.node, [device], 1)
        body = _slice("gpushare-probe", spec, "", self.node)
        written = self.api.create(_PATH, body, params={"dryRun": "All"}, timeout_s=_TIMEOUT_S)
        self._probed = all(each.get("allowMultipleAllocations") for each in written["spec"].get("devices") or ())
        self.problem = "" if self._probed else _OFF

    def _write(self, name: str, spec: JsonObject, known: JsonObject | None, owner: str) -> None:
        if known is not None:
            self.api.replace(f"{_PATH}/{name}", {**known, "spec": spec}, timeout_s=_TIMEOUT_S)
        else:
            self.api.create(_PATH, _slice(name, spec, owner, self.node), timeout_s=_TIMEOUT_S)


def _slice(name: str, spec: JsonObject, owner: str, node: NodeName) -> JsonObject:
    owned = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner, "controller": True}
    metadata = {"name": name, "ownerReferences": [owned] if owner else []}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _differs(known: JsonObject | None, spec: JsonObject) -> bool:
    """But for when taints came, which the API server adds."""
    return known is None or _without_times(known["spec"]) != spec


def _without_times(spec: JsonObject) -> JsonObject:
    found = []
    for device in spec.get("devices") or ():
        taints = [
            {key: value for key, value in taint.items() if key != "timeAdded"} for taint in device.get("taints", ())
        ]
        found.append({**device, "taints": taints} if taints else device)
    return {**spec, "devices": found}


def _explained(error: kube.KubeError) -> str:
    rights = "; the plugin's ClusterRole needs get, list, create, update and delete on resourceslices"
    return f"{error}{rights if isinstance(error, kube.ForbiddenError) else ''}"
