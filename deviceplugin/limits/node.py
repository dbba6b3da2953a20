"""The limits of one node: proves what works, shows it, and puts it in place before a container starts."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deviceplugin.cdi import ContainerEdits
from deviceplugin.limits import choose
from deviceplugin.limits.backend import LimitBackend, LimitedStart, LimitError, Proofs
from deviceplugin.limits.choose import ChosenLimits, OnFailure, Order
from gpushare import names
from gpushare.model.gpu import Gpu, HandOver, Limit, NodeInventory
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import frameworks

_LOG: Final = logging.getLogger(__name__)
PROVE_S: Final = 10.0
_AGAIN_S: Final = 2.0  # until a back end that worked and then did not is tried once more
_NO_EDITS: Final = (
    "it needs mounts in containers, and this node hands GPUs over by envvar, which brings none; by cdi or volume-mounts"
    " it works"
)


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
    _failed: choose.Failed = field(init=False, default=frozenset())
    _found: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def assess(self, inventory: NodeInventory) -> NodeInventory:
        """Proves what holds limits now and then, and after a failure at once."""
        label = self.label()
        if label is None:
            return inventory  # another order might be wanted here, so nothing starts by that of the setting
        wanted, problem = choose.wanted(self.wanted, label)
        if problem:
            self._found.say("label not read", level=logging.WARNING, problem=problem)
        seen = (wanted, inventory.hand_over, [(gpu.uuid, gpu.health) for gpu in inventory.gpus])
        now = self.clock.monotonic()
        if seen != self._seen or now >= self._prove_at:
            self._seen, self._prove_at = seen, now + PROVE_S
            proofs = choose.only_mps_on(
                {limit: self._proofs(limit, inventory) for limit in wanted}, self.exclusive(inventory.gpus)
            )
            kept, self._failed = choose.with_second_try(proofs, self._chosen, self._failed)
            if self._failed:
                self._prove_at = now + _AGAIN_S
            self._chosen = choose.choose(inventory.gpus, wanted, kept)
            self._found.say("limits proven", **_summary(wanted, proofs))
        return choose.with_limits(inventory, self._chosen)

    def prepare(self, start: LimitedStart) -> ContainerEdits:
        """Put the limits of a container in place on all its GPUs. May raise LimitError."""
        edits = ContainerEdits()
        groups: dict[Order, list[Gpu]] = {}  # together where the same works: variables name all GPUs of a container
        for gpu in start.gpus:
            groups.setdefault(self._chosen.candidates.get(gpu.uuid, ()), []).append(gpu)
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
            return {gpu.uuid: "no driver can be asked: its GPUs are simulated" for gpu in inventory.gpus}
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


def _summary(wanted: Order, proofs: Mapping[Limit, Proofs]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for limit in wanted:
        by_gpu = {gpu: why or "works" for gpu, why in proofs[limit].items()}
        found[limit.value] = by_gpu if len(set(by_gpu.values())) > 1 else next(iter(by_gpu.values()), "no GPUs")
    return found
