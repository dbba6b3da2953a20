"""What holds limits: the interface of its back ends, and which of them works on which GPU of this node.

It is proven, shown, and put in place before a container starts. Two back ends are here: one only writes variables,
which frameworks obey and programs may ignore; for MIG instances, the hardware does the rest. Others are files beside
this one, each with its name in `gpushare.model.gpu.Limit`, whose order is that of `auto`, and a line in `main.py`.
"""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Final, Protocol

from deviceplugin.causes import NONE, Cause, Code
from deviceplugin.cdi import ContainerEdits
from gpushare import names
from gpushare.errors import GpuShareError
from gpushare.identity import GpuUuid, PodRef
from gpushare.model.gpu import NO_LIMIT, Gpu, GpuHealth, HandOver, Limit, NodeInventory
from gpushare.model.ledger import Grant, mib_on
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import MIB
from gpushare.wire import frameworks
from gpushare.wire.frameworks import Framework

_LOG: Final = logging.getLogger(__name__)
PROVE_S: Final = 10.0
_AGAIN_S: Final = 2.0  # until a back end that worked and then did not is tried once more
_NO_EDITS: Final = Cause(
    Code.NO_MOUNTS,
    "it needs mounts in containers, and this node hands GPUs over by envvar, which brings none; by cdi or volume-mounts"
    " it works",
)
AUTO: Final = "auto"
_LONGEST: Final = 200  # of why one back end does not hold, as it is published
_NOT_ASKED: Final = Cause(Code.NOT_ASKED, "the order of limits of this node leaves it out or puts it later")
_NO_INSTANCE: Final = Cause(Code.OTHER, "it is not a MIG instance")  # logged, never published: see `_possible`
_SIMULATED: Final = Cause(Code.SIMULATED, "no driver can be asked: its GPUs are simulated")
_AUTO: Final = tuple(limit for limit in Limit if limit is not Limit.WATCHDOG)
PROVEN: Final = NONE  # what a back end says of a GPU on which it works
Proofs = Mapping[GpuUuid, Cause]  # of one back end: `PROVEN`, or why it does not work on that GPU and what to do
Variables = tuple[tuple[str, str], ...]
_MPS_USABLE: Final = 0.95  # under MPS, the context of a process counts against its limit: some hundred MiB
Order = tuple[Limit, ...]  # back ends that may be used, first choice first
ProofsOfAll = Mapping[Limit, Proofs]


class LimitError(GpuShareError):
    """A limit cannot be put in place; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedStart:
    """A container that was accepted and is about to start. What is known of its pod is what `pods.reduce` keeps."""

    pod: PodRef
    grant: Grant
    of_pod: tuple[Grant, ...]  # of all containers of the pod, in the order in which they start
    alternatives: tuple[Grant, ...] = ()  # of containers that have the same devices: any of them may be the one
    inventory: NodeInventory
    variables: frozenset[str] = frozenset()  # names of variables in the container's own `env`
    open_env: bool = False  # whether it takes variables from elsewhere as well (envFrom)
    image: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.inventory.gpus if gpu.uuid in self.grant.gpus)

    def memory_mib(self, gpu: Gpu) -> int:
        return min(mib_on(self.grant, gpu), gpu.memory_mib)


class LimitBackend(Protocol):
    """One way to hold limits. Safe for use by many threads; each call ends in time by itself.

    Nothing is called once a container runs: what must go on is a part of its own in `main`, as `ContainerLimits`.
    """

    @property
    def limit(self) -> Limit: ...

    @property
    def needs_edits(self) -> bool:
        """Whether it works through mounts and variables, which a container gets by a CDI spec only: not by envvar.

        Where there is something to limit, its `prepare` then returns a mount: by that, `handover.devices` knows that a
        container without a spec lacks it.
        """

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        """Whether it works, by a real call where one can be made; asked every 10 s. Never raises, leaves nothing."""

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        """Put a container's limit in place on some of its GPUs; variables beat the pod's own. May raise LimitError."""


class AdvisoryBackend:
    """Works everywhere and holds nothing: programs may ignore variables. Without a CDI spec, the webhook's remain."""

    limit: ClassVar[Limit] = Limit.ADVISORY
    needs_edits: ClassVar[bool] = False

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        return {gpu.uuid: PROVEN for gpu in gpus}

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        return ContainerEdits(env=reported(start, gpus, lambda gpu: gpu.memory_mib))


class MigBackend(AdvisoryBackend):
    """The hardware keeps a container within its MIG instance; a part of one is advisory within it."""

    limit: ClassVar[Limit] = Limit.MIG

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        return {gpu.uuid: PROVEN if gpu.mig else _NO_INSTANCE for gpu in gpus}


def reported(start: LimitedStart, gpus: Sequence[Gpu], total_mib: Callable[[Gpu], int]) -> Variables:
    """Where CUDA reports so many MiB of a GPU, and nothing holds the container to its part. May raise LimitError."""
    share = _fraction(start, gpus, total_mib)
    memory = min(map(start.memory_mib, gpus))
    values = {
        Framework.JAX: share,
        Framework.PADDLE: str(memory),
        Framework.CUPY: str(memory * MIB),
        Framework.PYTORCH: f"per_process_memory_fraction:{share}",
    }
    return _told(start, values if share else {})


def mps_variables(start: LimitedStart, gpus: Sequence[Gpu]) -> Variables:
    """Under MPS, which holds the limit: for JAX, which takes three quarters of what CUDA reports, the whole GPU."""
    share = _fraction(start, gpus, lambda gpu: gpu.memory_mib, usable=_MPS_USABLE)
    return _told(start, {Framework.JAX: share} if share else {})


def _told(start: LimitedStart, values: Mapping[Framework, str]) -> Variables:
    """Those that the pod wants and its author has not set, as far as that can be known. May raise LimitError."""
    try:
        wanted = frameworks.parse(start.annotations.get(names.ANNOTATION_FRAMEWORK_VARIABLES))
    except ValueError as error:
        raise LimitError(f"annotation {names.ANNOTATION_FRAMEWORK_VARIABLES}: {error}") from error
    if start.open_env:
        return ()
    known = ((frameworks.FRAMEWORK_VARIABLES[each], values[each]) for each in wanted if each in values)
    return tuple((variables[0], value) for variables, value in known if start.variables.isdisjoint(variables))


def _fraction(start: LimitedStart, gpus: Sequence[Gpu], total_mib: Callable[[Gpu], int], *, usable: float = 1.0) -> str:
    """The part of each total, rounded down, so that no GPU's share is exceeded; empty where it is everything."""
    totals = [(start.memory_mib(gpu), total_mib(gpu)) for gpu in gpus]
    part = min(memory / total if total else 1.0 for memory, total in totals)
    return "" if part >= 1 else f"{max(int(part * usable * 10_000), 1) / 10_000:.4f}"


def order(text: str) -> Order:
    """Read `auto`, or names with commas between them; mig, which the hardware holds, may be left out. ValueError."""
    if text == AUTO:
        return _AUTO
    chosen = [word.strip() for word in text.split(",")]
    known = {limit.value: limit for limit in _AUTO}
    if not set(chosen) <= known.keys() or len(set(chosen)) != len(chosen):
        raise ValueError(f"write {AUTO}, or some of {', '.join(known)}, each once, with commas between them")
    return tuple(dict.fromkeys((Limit.MIG, *(known[word] for word in chosen))))


class OnFailure(Enum):
    REFUSE = "refuse"  # the container does not start; the kubelet tries again
    NEXT = "next"  # the next back end that works on the GPU holds the limit


@dataclass(frozen=True, slots=True)
class ChosenLimits:
    """What is wanted on this node, first choice first, and what of it works on which GPU. Pure."""

    wanted: Order = ()
    proofs: ProofsOfAll = field(default_factory=dict)

    def candidates(self, gpu: GpuUuid) -> Order:
        return tuple(limit for limit in self.wanted if self.proofs[limit].get(gpu) == PROVEN)

    def shown(self, inventory: NodeInventory) -> NodeInventory:
        """The inventory with what holds the limits. A GPU on which nothing wanted works takes no new containers."""
        return replace(inventory, gpus=tuple(map(self._shown, inventory.gpus)))

    def _shown(self, gpu: Gpu) -> Gpu:
        if candidates := self.candidates(gpu.uuid):
            return replace(gpu, limit=candidates[0], limit_reason=self._why_not_stronger(gpu, candidates[0]))
        if not self.wanted or gpu.health is not GpuHealth.HEALTHY:
            return gpu
        lacks = {limit: self.proofs[limit] for limit in _possible(gpu, self.wanted) if gpu.uuid in self.proofs[limit]}
        reason = f"{NO_LIMIT}: " + "; ".join(f"{limit.value}: {why[gpu.uuid]}" for limit, why in lacks.items())
        return replace(gpu, health=GpuHealth.UNHEALTHY, reason=Cause(Code.NOT_LIMITED, reason), limit=Limit.ADVISORY)

    def _why_not_stronger(self, gpu: Gpu, first: Limit) -> Cause:
        lacks = {limit: self.proofs.get(limit, {}).get(gpu.uuid) or _NOT_ASKED for limit in _possible(gpu, _AUTO)}
        stronger = list(itertools.takewhile(lambda limit: limit is not first, lacks))
        asked = (lacks[limit].code for limit in stronger if lacks[limit] is not _NOT_ASKED)
        text = "; ".join(f"{limit.value}: {lacks[limit]:.{_LONGEST}}" for limit in stronger)
        return Cause(next(asked, _NOT_ASKED.code), text) if text else NONE


def _possible(gpu: Gpu, limits: Order) -> Order:
    """Without what a whole GPU can never have."""
    return tuple(limit for limit in limits if gpu.mig or limit is not Limit.MIG)


Failed = frozenset[tuple[Limit, GpuUuid]]  # back ends that worked on a GPU, and then did not once


def with_second_try(proofs: ProofsOfAll, before: ChosenLimits, failed: Failed) -> tuple[ProofsOfAll, Failed]:
    """The proofs with a second try for what worked before, and what gets one.

    Meanwhile it still has to hold limits: one answer that went wrong must not weaken those of what starts just then.
    """
    fresh = {
        (limit, gpu)
        for limit, of_gpus in proofs.items()
        for gpu, why in of_gpus.items()
        if why != PROVEN and limit in before.candidates(gpu)
    } - failed
    kept = {
        limit: {gpu: PROVEN if (limit, gpu) in fresh else why for gpu, why in of_gpus.items()}
        for limit, of_gpus in proofs.items()
    }
    return kept, frozenset(fresh)


def wanted_order(setting: Order, label: str) -> tuple[Order, str]:
    """The order that counts on this node, and what is wrong with its label; dots stand there in place of commas."""
    if not label:
        return setting, ""
    try:
        return order(label.replace(".", ",")), ""
    except ValueError as error:
        return setting, f"label {names.LABEL_LIMITS}={label}: {error}; in a label, write dots instead of commas"


@dataclass(kw_only=True)
class NodeLimits:
    """`assess` is called by one thread, `prepare` by many."""

    backends: Mapping[Limit, LimitBackend]
    wanted: Order
    on_failure: OnFailure
    clock: Clock
    label: Callable[[], str | None] = lambda: ""  # of the Node, beats the setting; None until the Node was read
    exclusive: Callable[[Sequence[Gpu]], Proofs] = lambda _gpus: {}  # why only MPS can serve several programs
    _chosen: ChosenLimits = field(init=False, default_factory=ChosenLimits)
    _seen: object = field(init=False, default=None)  # for which GPUs and settings this was chosen
    _prove_at: float = field(init=False, default=0.0)
    _failed: Failed = field(init=False, default=frozenset())
    _found: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def assess(self, inventory: NodeInventory) -> NodeInventory:
        """Proves what holds limits now and then, and after a failure at once."""
        label = self.label()
        if label is None:
            return inventory  # another order might be wanted here, so nothing starts by that of the setting
        wanted, problem = wanted_order(self.wanted, label)
        if problem:
            self._found.say("label not read", level=logging.WARNING, problem=problem)
        seen = (wanted, inventory.hand_over, [(gpu.uuid, gpu.health) for gpu in inventory.gpus])
        now = self.clock.monotonic()
        if seen != self._seen or now >= self._prove_at:
            self._seen, self._prove_at = seen, now + PROVE_S
            found = {limit: self._proofs(limit, inventory) for limit in wanted}
            exclusive = self.exclusive(inventory.gpus)
            proofs = {limit: why if limit is Limit.MPS else {**why, **exclusive} for limit, why in found.items()}
            kept, self._failed = with_second_try(proofs, self._chosen, self._failed)
            if self._failed:
                self._prove_at = now + _AGAIN_S
            self._chosen = ChosenLimits(wanted, kept)
            self._found.say("limits proven", **_summary(wanted, proofs))
        return self._chosen.shown(inventory)

    def prepare(self, start: LimitedStart) -> ContainerEdits:
        """Put the limits of a container in place on all its GPUs. May raise LimitError."""
        edits = ContainerEdits()
        groups: dict[Order, list[Gpu]] = {}  # together where the same works: variables name all GPUs of a container
        for gpu in start.gpus:
            groups.setdefault(self._chosen.candidates(gpu.uuid), []).append(gpu)
        for candidates, gpus in groups.items():
            edits = edits.merge(self._prepare(start, gpus, candidates))
        if len(groups) > 1:  # a framework's variable counts for all GPUs, and elsewhere would be one limit too many
            edits = replace(edits, env=tuple(each for each in edits.env if each[0] not in frameworks.VARIABLES))
        return edits

    def _prepare(self, start: LimitedStart, gpus: Sequence[Gpu], candidates: Order) -> ContainerEdits:
        # A container that has its GPUs to itself has no share that anything could hold it within.
        is_demanded = start.annotations.get(names.ANNOTATION_LIMIT) == names.ENFORCED and not start.grant.whole
        allowed = [limit for limit in candidates if limit.enforced or not is_demanded]
        if not allowed:
            raise LimitError(_nothing(gpus, candidates))
        for gpu in gpus if is_demanded else ():
            if replace(gpu, limit=allowed[0]).limit_of(start.memory_mib(gpu)) is not allowed[0]:
                raise LimitError(
                    f"the pod demands {names.ANNOTATION_LIMIT}: {names.ENFORCED}, and was given a part of MIG instance"
                    f" {gpu.uuid}, within which nothing enforces limits; ask for all of its {gpu.memory_mib} MiB, or"
                    f" for none with {names.ANNOTATION_MIG}: never"
                )
        for limit in allowed:
            try:
                return self.backends[limit].prepare(start, gpus)
            except LimitError as error:
                self._prove_at = 0.0
                about = {"pod": str(start.pod), "limit": limit.value, "error": str(error)}
                logs.event(_LOG, "limit failed", level=logging.ERROR, exc_info=False, **about)
                if self.on_failure is OnFailure.REFUSE or limit is allowed[-1]:
                    raise LimitError(f"the memory limit ({limit.value}) cannot be set: {error}") from error
        raise AssertionError("unreachable: the last of the candidates was tried")

    def _proofs(self, limit: Limit, inventory: NodeInventory) -> Proofs:
        backend = self.backends.get(limit)
        if backend is None:
            return {gpu.uuid: _SIMULATED for gpu in inventory.gpus}
        if backend.needs_edits and inventory.hand_over is HandOver.ENVVAR:
            return {gpu.uuid: _NO_EDITS for gpu in inventory.gpus}
        return backend.prove(inventory.gpus)


def _nothing(gpus: Sequence[Gpu], candidates: Order) -> str:
    which = ", ".join(gpu.uuid for gpu in gpus)
    if candidates:
        return (
            f"the pod demands {names.ANNOTATION_LIMIT}: {names.ENFORCED}, and on {which} of this node limits are"
            f" {candidates[0].value} only; delete the pod and create it again, so that it is placed where they are held"
        )
    return f"nothing holds limits on {which} yet, or the Node was not read yet; the kubelet will try again"


def _summary(wanted: Order, proofs: ProofsOfAll) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for limit in wanted:
        by_gpu = {gpu: why or "works" for gpu, why in proofs[limit].items()}
        found[limit.value] = by_gpu if len(set(by_gpu.values())) > 1 else next(iter(by_gpu.values()), "no GPUs")
    return found
