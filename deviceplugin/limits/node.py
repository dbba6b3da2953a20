"""The limits of one node: proves what works, shows it, and puts it in place before a container starts."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from deviceplugin.edits import ContainerEdits
from deviceplugin.limits import choose, variables
from deviceplugin.limits.backend import LimitBackend, LimitedStart, LimitError, Proofs
from deviceplugin.limits.choose import Chosen, Order
from gpushare import names
from gpushare.model.gpu import Gpu, HandOver, Limit, NodeInventory
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
PROVE_S: Final = 10.0
_AGAIN_S: Final = 2.0
"""Until a back end that worked and then did not is tried once more."""
_NO_EDITS: Final = (
    "it needs mounts in containers, and this node hands GPUs over by envvar, which brings none; by cdi or volume-mounts"
    " it works"
)


class OnFailure(Enum):
    """What happens if the chosen back end fails when a container starts."""

    REFUSE = "refuse"
    """The container does not start; the kubelet tries again."""
    NEXT = "next"
    """The next back end that works on the GPU holds the limit."""


@dataclass(kw_only=True)
class NodeLimits:
    """`assess` is called by one thread, `prepare` by many."""

    backends: Mapping[Limit, LimitBackend]
    wanted: Order
    on_failure: OnFailure
    clock: Clock
    label: Callable[[], str | None] = lambda: ""
    """The label `gpushare.dev/limits` of the Node, which beats the setting; None until the Node was read."""
    unshared: Callable[[Sequence[Gpu]], Proofs] = lambda _gpus: {}
    """Why programs cannot use a GPU side by side unless MPS serves them; GPUs on which they can are not in it."""
    _chosen: Chosen = field(init=False, default_factory=Chosen)
    _seen: object = field(init=False, default=None)
    """For which GPUs and settings this was chosen."""
    _prove_at: float = field(init=False, default=0.0)
    _failed: choose.Failed = field(init=False, default=frozenset())
    _said: dict[str, object] = field(init=False, default_factory=dict)

    def assess(self, inventory: NodeInventory) -> NodeInventory:
        """The inventory with what holds the limit of each GPU. Proves it now and then, and after a failure at once."""
        label = self.label()
        if label is None:
            return inventory  # another order might be wanted here, so nothing starts by that of the setting
        wanted, problem = choose.wanted(self.wanted, label)
        if problem:
            self._say("label not read", logging.WARNING, problem=problem)
        seen = (wanted, inventory.hand_over, [(gpu.uuid, gpu.health) for gpu in inventory.gpus])
        now = self.clock.monotonic()
        if seen != self._seen or now >= self._prove_at:
            self._seen, self._prove_at = seen, now + PROVE_S
            proofs = choose.without(
                {limit: self._proofs(limit, inventory) for limit in wanted}, self.unshared(inventory.gpus)
            )
            kept, self._failed = choose.spared(proofs, self._chosen, self._failed)
            if self._failed:
                self._prove_at = now + _AGAIN_S
            self._chosen = choose.choose(inventory.gpus, wanted, kept)
            self._say("limits proven", logging.INFO, **_told(wanted, proofs))
        return choose.shown(inventory, self._chosen)

    def prepare(self, start: LimitedStart) -> ContainerEdits:
        """Put the limits of a container in place on all its GPUs.

        Raises:
            LimitError: one cannot be held, and nothing else may hold it.
        """
        edits = ContainerEdits()
        groups = _by_candidates(start.gpus, self._chosen)
        for candidates, gpus in groups:
            edits = edits.merge(self._prepare(start, gpus, candidates))
        if len(groups) > 1:  # a framework's variable counts for all GPUs, and elsewhere would be one limit too many
            edits = replace(edits, env=tuple(each for each in edits.env if each[0] not in variables.READ))
        return edits

    def _prepare(self, start: LimitedStart, gpus: Sequence[Gpu], candidates: Order) -> ContainerEdits:
        # A container that has its GPUs to itself has no share that anything could hold it within.
        is_demanded = start.annotations.get(names.ANNOTATION_LIMIT) == names.ENFORCED and not start.grant.whole
        allowed = [limit for limit in candidates if limit.enforced or not is_demanded]
        if not allowed:
            raise LimitError(_nothing(gpus, candidates))
        if is_demanded and (part := next((gpu for gpu in gpus if _is_part_of_mig(start, gpu, allowed[0])), None)):
            raise LimitError(_part_of_mig(part))
        for limit in allowed:
            try:
                return self.backends[limit].prepare(start, gpus)
            except LimitError as error:
                self._prove_at = 0.0
                logs.event(
                    _LOG, "limit failed", level=logging.ERROR, pod=str(start.pod), limit=limit.value, error=str(error)
                )
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

    def _say(self, event: str, level: int, **fields: Any) -> None:
        """Log it when it changes."""
        if fields != self._said.get(event):
            logs.event(_LOG, event, level=level, **fields)
        self._said[event] = fields


def _by_candidates(gpus: Sequence[Gpu], chosen: Chosen) -> Sequence[tuple[Order, tuple[Gpu, ...]]]:
    """GPUs on which the same back ends work, together: variables name all GPUs of a container at once."""
    groups: dict[Order, tuple[Gpu, ...]] = {}
    for gpu in gpus:
        candidates = chosen.candidates.get(gpu.uuid, ())
        groups[candidates] = (*groups.get(candidates, ()), gpu)
    return tuple(groups.items())


def _is_part_of_mig(start: LimitedStart, gpu: Gpu, limit: Limit) -> bool:
    return replace(gpu, limit=limit).limit_of(start.memory_mib(gpu)) is not limit


def _part_of_mig(gpu: Gpu) -> str:
    return (
        f"the pod demands {names.ANNOTATION_LIMIT}: {names.ENFORCED}, and was given a part of MIG instance {gpu.uuid},"
        f" within which nothing enforces limits; ask for all of its {gpu.memory_mib} MiB, or for none with"
        f" {names.ANNOTATION_MIG}: never"
    )


def _nothing(gpus: Sequence[Gpu], candidates: Order) -> str:
    which = ", ".join(gpu.uuid for gpu in gpus)
    if candidates:
        return (
            f"the pod demands {names.ANNOTATION_LIMIT}: {names.ENFORCED}, and on {which} of this node limits are"
            f" {candidates[0].value} only; delete the pod and create it again, so that it is placed where they are held"
        )
    return f"nothing holds limits on {which} yet, or the Node was not read yet; the kubelet will try again"


def _told(wanted: Order, proofs: Mapping[Limit, Proofs]) -> dict[str, Any]:
    """In few words where all GPUs are alike."""
    told: dict[str, Any] = {}
    for limit in wanted:
        by_gpu = {gpu: why or "works" for gpu, why in proofs[limit].items()}
        told[limit.value] = by_gpu if len(set(by_gpu.values())) > 1 else next(iter(by_gpu.values()), "no GPUs")
    return told
