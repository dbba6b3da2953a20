"""Prepares and unprepares ResourceClaims on this node.

The kubelet asks once for each claim. A container that restarts needs its CDI spec again, which a reboot removes, and a
kubelet that starts does not ask for what runs: so specs are written again from the checkpoint.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from deviceplugin.cdi import ContainerEdits
from deviceplugin.dra import claims
from deviceplugin.dra.store import ClaimError, ClaimStore
from deviceplugin.handover.devices import DeviceHandOver, HandOverError, Recipient
from deviceplugin.handover.spec_files import SpecFile
from deviceplugin.inventory import InventoryFeed
from deviceplugin.limits.node import LimitedStart, LimitError
from deviceplugin.pods import HeldPod
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import Gpu, Mode, NodeInventory
from gpushare.model.ledger import Allocation, Grant
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import MIB
from gpushare.wire import claims as wire, pods as pods_wire
from gpushare.wire.claims import API, Claim, Share, device_name
from gpushare.wire.pods import Pod

_LOG: Final = logging.getLogger(__name__)
_GET_S: Final = 5.0
_EVERY_S: Final = 10.0
_NONE: Final[Mapping[str, str]] = {}
_BY_SELECTOR: Final = "; kube-scheduler does not see the annotation: select GPUs by their attribute limit"


@dataclass(frozen=True, slots=True)
class ClaimRef:
    namespace: str
    name: str
    uid: str


@dataclass(kw_only=True)
class ClaimDriver:
    """Safe for use by many threads. The lock is held while claims are counted, never while anyone is asked."""

    node: NodeName
    api: KubeApi
    clock: Clock
    feed: InventoryFeed
    hand_over: DeviceHandOver
    limit: Callable[[LimitedStart], ContainerEdits]  # may raise LimitError
    store: ClaimStore
    find_pod: Callable[[PodUid], Pod | None]  # a reduced one of this node
    is_known: Callable[[], bool] = lambda: True  # whether the inventory has the modes that the Node says
    on_change: Callable[[], None] = lambda: None  # what is prepared is another
    outcomes: Counter[str] = field(init=False, default_factory=lambda: Counter(prepared=0, refused=0, unprepared=0))
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _written: tuple[int, frozenset[str]] = field(init=False, default=(0, frozenset()))  # for which inventory, of whom
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def gpus(self, inventory: NodeInventory) -> Collection[GpuUuid]:
        """Which GPUs claims hold here."""
        return _gpus((self.store.prepared or {}).values(), inventory)

    def holders(self, inventory: NodeInventory) -> Collection[GpuUuid] | None:
        """Which GPUs claims hold here, or are allocated; None while that cannot be read."""
        try:
            return {*self.gpus(inventory), *_gpus(self.store.allocated(), inventory)}
        except kube.KubeError as error:
            logs.event(_LOG, "claims not read", level=logging.WARNING, error=str(error))
            return None

    def claimed(self) -> Sequence[tuple[Gpu, int]]:
        """GPUs of mode dra or on which claims hold something, with the bytes of that."""
        latest, held = self.feed.latest, wire.sums((self.store.prepared or {}).values())
        every = latest.inventory.of_modes if latest else {}
        found = [
            (mode, gpu, held.get(device_name(gpu.uuid), (0, 0))[0]) for mode, gpus in every.items() for gpu in gpus
        ]
        return [(gpu, memory) for mode, gpu, memory in found if mode is Mode.DRA or memory]

    def prepare(self, ref: ClaimRef, is_wanted: Callable[[], bool] = lambda: True) -> Claim:
        """The claim with its devices made. May raise ClaimError. Args: is_wanted: whether the kubelet still waits."""
        try:
            claim = self._prepare(ref, is_wanted)
        except ClaimError:
            self._count("refused")
            raise
        self._count("prepared")
        self.on_change()
        return claim

    def _prepare(self, ref: ClaimRef, is_wanted: Callable[[], bool]) -> Claim:
        asked = self._read(ref)
        self.store.load()
        demand = self._demand(asked)
        with self._lock:
            latest, prepared = self.feed.latest, self.store.prepared or {}
            if latest is None or not self.is_known():
                raise ClaimError(f"the GPUs of node {self.node} are not known yet; the kubelet will try again")
            if not is_wanted():
                raise ClaimError("the kubelet no longer waits")
            if problem := claims.why_not(asked, prepared, latest.inventory):
                raise ClaimError(problem)
            self.store.keep({**prepared, asked.uid: asked})  # before anything that a crash would leave uncounted
        try:
            self._make(asked, latest.inventory, demand)
        except (HandOverError, LimitError) as error:
            if asked.uid not in prepared:
                self._forget(asked.uid)
            raise ClaimError(f"{error}{_BY_SELECTOR if demand else ''}") from error
        if asked.uid not in (self.store.prepared or {}):  # it was unprepared meanwhile
            self._remove(asked)
            raise ClaimError("the kubelet no longer waits")
        return asked

    def _demand(self, claim: Claim) -> Mapping[str, str]:
        """The annotation of the claim's pod that demands an enforced limit. Raises ClaimError: the pod is not known."""
        if claim.pod is None:
            return {}
        pod, known = self.find_pod(claim.pod.uid), (self.store.prepared or {}).get(claim.uid)
        if pod is None and (known is None or known.assumed):
            raise ClaimError(f"pod {claim.pod} is not known yet; the kubelet will try again")
        demand = {names.ANNOTATION_LIMIT: names.ENFORCED}
        return demand if pod and demand.items() <= pods_wire.annotations(pod).items() else {}

    def unprepare(self, uid: str) -> None:
        """Nothing of the claim runs any more. May raise ClaimError."""
        self.store.load()
        if self._forget(uid):
            self._count("unprepared")
            self.on_change()

    def _forget(self, uid: str) -> bool:
        with self._lock:
            prepared = self.store.prepared or {}
            if (claim := prepared.get(uid)) is None:
                return False
            self._remove(claim)
            self.store.drop(uid)
        return True

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1

    def run(self, stop: threading.Event) -> None:
        """Keep specs and checkpoint as they should be, until `stop` is set."""
        while not stop.is_set():
            self.restore()
            self.clock.wait(stop, _EVERY_S)

    def restore(self) -> None:
        """Write specs again that are missing, and all of them for other GPUs; forget what is wrongly assumed."""
        with suppress(ClaimError):
            self.store.load()
            for uid in self.store.check_assumed():
                self._forget(uid)
            with self._lock:
                self.store.save()
        latest = self.feed.latest
        if latest is None or self.store.prepared is None:
            return
        there, (version, done) = {*self.hand_over.files.found()}, self._written
        known = done if version == latest.version else frozenset()
        written = set()
        for claim in self.store.prepared.values():
            is_there = {SpecFile(claim.uid, claim.cdi_device(request)) for request in claim.requests} <= there
            if (is_there and claim.uid in known) or self._written_again(claim, latest.inventory):
                written.add(claim.uid)
        self._written = latest.version, frozenset(written)
        self._problems.keep(self.store.prepared.keys())

    def _written_again(self, claim: Claim, inventory: NodeInventory) -> bool:
        try:
            self._make(claim, inventory)
        except (HandOverError, LimitError) as error:
            about = {"claim": str(claim), "error": str(error)}
            self._problems.say("specs not written", claim.uid, level=logging.ERROR, **about)
            return False
        if claim.uid not in (self.store.prepared or {}):
            self._remove(claim)
        self._problems.clear(claim.uid)
        return True

    def _read(self, ref: ClaimRef) -> Claim:
        path = f"{API}/namespaces/{ref.namespace}/resourceclaims/{ref.name}"
        try:
            found = self.api.read_object(path, keep=wire.reduce, timeout_s=_GET_S)
            if found["metadata"]["uid"] != ref.uid:
                raise ClaimError(f"claim {ref.namespace}/{ref.name} was replaced; the kubelet will try again")
            return wire.read(found, self.node)
        except kube.KubeError as error:
            if known := (self.store.prepared or {}).get(ref.uid):
                return known
            raise ClaimError(
                f"claim {ref.namespace}/{ref.name} cannot be read ({error}); the kubelet will try again"
            ) from error
        except WireError as error:
            raise ClaimError(f"claim {ref.namespace}/{ref.name}: {error}") from error

    def _make(self, claim: Claim, inventory: NodeInventory, demand: Mapping[str, str] = _NONE) -> None:
        """Put limits in place and write the specs. May raise HandOverError, LimitError."""
        grants = grants_of(claim, inventory)
        others = [each for uid, each in (self.store.prepared or {}).items() if uid != claim.uid]
        beside: list[Grant] = []
        for each in (each for each in others if _pod(each) == _pod(claim)):
            with suppress(HandOverError):  # its GPU is gone
                beside += grants_of(each, inventory).values()
        found = []
        for request, grant in grants.items():
            limits = ContainerEdits()
            if grant.memory_mib:
                start = LimitedStart(
                    pod=_pod(claim),
                    grant=grant,
                    of_pod=(*grants.values(), *beside),
                    inventory=replace(inventory, gpus=inventory.dra, dra=()),
                    annotations=demand,
                )
                told = ContainerEdits(env=((names.ENV_MEMORY_MIB, str(grant.memory_mib)),))
                limits = told.merge(self.limit(start))
            found.append(
                Recipient(
                    uid=claim.uid,
                    container=grant.container,
                    runtime_class=names.RUNTIME_CLASS,  # it may be any: a claim does not know its pods
                    names=(claim.cdi_device(request),),
                    gpus=grant.gpus,
                    extra=limits,
                )
            )
        self.hand_over.make(found)

    def _remove(self, claim: Claim) -> None:
        self.hand_over.unmake(SpecFile(claim.uid, claim.cdi_device(request)) for request in claim.requests)


def _gpus(held: Iterable[Claim], inventory: NodeInventory) -> Collection[GpuUuid]:
    known = {device_name(gpu.uuid): gpu.uuid for gpus in inventory.of_modes.values() for gpu in gpus}
    return {known[share.device] for claim in held for share in claim.shares if share.device in known}


def held_by_claims(prepared: Mapping[str, Claim], inventory: NodeInventory) -> Iterator[HeldPod]:
    """As if each claim were a pod's. Args: inventory: one whose `gpus` or `dra` are those of mode dra."""
    for claim in prepared.values():
        with suppress(HandOverError):
            grants = tuple(grants_of(claim, replace(inventory, gpus=(), dra=inventory.dra or inventory.gpus)).values())
            allocation = Allocation(pod=_pod(claim), node=inventory.node, grants=grants)
            yield HeldPod(allocation=allocation, assumed=0, container_ids={}, annotations={})


def grants_of(claim: Claim, inventory: NodeInventory) -> Mapping[str, Grant]:
    """By request. Raises HandOverError: a GPU is not of mode dra now."""
    gpus = claims.by_device(inventory)
    if missing := [share.device for share in claim.shares if share.device not in gpus]:
        raise HandOverError(f"node {inventory.node} has no GPU {missing[0]} for claims now")
    return {
        request: _grant(request, [(gpus[share.device].uuid, share) for share in shares])
        for request, shares in claim.requests.items()
    }


def _grant(request: str, shares: Sequence[tuple[GpuUuid, Share]]) -> Grant:
    """What one request has, the same on each GPU; the smallest where one GPU has more shares than another."""
    memory: dict[GpuUuid, int] = {}
    compute: dict[GpuUuid, int] = {}
    for gpu, share in shares:
        memory[gpu] = memory.get(gpu, 0) + share.memory
        compute[gpu] = compute.get(gpu, 0) + share.compute
    return Grant(
        container=ContainerName(request),
        gpus=tuple(memory),
        memory_mib=min(memory.values(), default=0) // MIB,
        compute_percent=min(compute.values(), default=0),
    )


def _pod(claim: Claim) -> PodRef:
    return claim.pod or PodRef(namespace=claim.namespace, name=claim.name, uid=PodUid(claim.uid))
