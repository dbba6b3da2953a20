"""By what each GPU of the node is shared: by gpu-mem, or by ResourceClaims. A change waits until no one holds it.

What an administrator wants is in `gpushare.dev/mode` of the Node. A GPU that is to change takes nothing new, and it
changes when nothing is left on it: so each GPU has one writer at any time, the controller's ledger or kube-scheduler's.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from deviceplugin.causes import Cause, Code, both, code
from deviceplugin.node import NodeFacts
from gpushare import names
from gpushare.identity import GpuUuid
from gpushare.model.gpu import MODE_CHANGES, Gpu, GpuHealth, HandOver, Mode, NodeInventory
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire.modes import Wanted, parse

_LOG: Final = logging.getLogger(__name__)
SETTLED_S: Final = 15.0
"""After which a Binding or an allocation that was decided before a GPU was closed is known here."""
CLAIMS_S: Final = 30.0  # between two looks at all claims of the cluster
Holders = Callable[[NodeInventory], Collection[GpuUuid] | None]  # GPUs that are held; None while that is not known


def split(
    inventory: NodeInventory,
    present: Mapping[GpuUuid, Mode],
    wanted: Wanted | None,
    free: Collection[GpuUuid],
    problem: str = "",
) -> NodeInventory:
    """The inventory, whose `gpus` are all GPUs, with each in its mode. Pure.

    Args:
        inventory: of the node.
        present: the mode of each GPU now; one that is missing is new, and no one holds it.
        wanted: None if that is not known: nothing changes.
        free: GPUs that no one holds and that have been closed long enough.
        problem: why this cluster cannot have claims.
    """
    found: dict[Mode, list[Gpu]] = {mode: [] for mode in Mode}
    for gpu in inventory.gpus:
        now = present.get(gpu.uuid)
        goal = wanted.of(gpu) if wanted else now or Mode.DEVICE_PLUGIN
        mode = goal if now is None or gpu.uuid in free else now
        found[mode].append(gpu if mode is goal else closed(gpu, goal))
    if inventory.hand_over is not HandOver.CDI:
        problem = f"claims are handed over by CDI, and this node uses another way: {inventory.hand_over_reason}"
    claims = [replace(gpu, extra_mib=0) for gpu in found[Mode.DRA]]  # kube-scheduler oversubscribes nothing
    if problem:
        why = Cause(Code.DRA, problem)
        claims = [replace(gpu, health=GpuHealth.UNHEALTHY, reason=why) for gpu in claims]
    return replace(inventory, gpus=tuple(found[Mode.DEVICE_PLUGIN]), dra=tuple(claims))


def closed(gpu: Gpu, goal: Mode) -> Gpu:
    """What is to change takes nothing new."""
    holders = "pod" if goal is Mode.DRA else "ResourceClaim"
    why = Cause(Code.MODE, f"{MODE_CHANGES} to {goal.value} when no {holders} holds it any more")
    return replace(gpu, health=GpuHealth.UNHEALTHY, reason=both(why, Cause(code(gpu.reason), gpu.reason)))


@dataclass(kw_only=True)
class Modes:
    """The last stage of an inventory, which one thread makes."""

    node: Callable[[], NodeFacts | None]  # None until the Node was read
    clock: Clock
    pods: Holders = lambda _inventory: None  # which GPUs pods hold that asked by gpu-mem
    claims: Holders = lambda _inventory: None  # which GPUs ResourceClaims hold, or are allocated
    prepared: Callable[[NodeInventory], Collection[GpuUuid]] = lambda _inventory: ()  # those that this node knows of
    problem: Callable[[], str] = lambda: ""  # why the API server cannot have claims
    version: Callable[[], int] = lambda: 0  # of the inventory that was given last
    told: list[Callable[[], int]] = field(default_factory=list)  # the versions that each scheduler was told
    enabled: bool = False  # otherwise GPUs that have been given to claims wait until it is
    known: bool = field(init=False, default=False)  # whether the inventory has the modes that the Node says
    _present: dict[GpuUuid, Mode] = field(init=False, default_factory=dict)
    _claims_at: float = field(init=False, default=0.0)  # when they may be read again
    _since: dict[GpuUuid, tuple[Mode, float]] = field(init=False, default_factory=dict)  # what it changes to
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def assess(self, inventory: NodeInventory) -> NodeInventory:
        facts = self.node()
        wanted = self._wanted(facts)
        prepared = dict.fromkeys(self.prepared(inventory), Mode.DRA)  # whatever another version has published
        self._present = {**(facts.modes if facts else {}), **prepared, **self._present}
        if facts is None:
            return split(inventory, self._present, None, ())
        held = self.pods(inventory)
        for gpu in inventory.gpus:
            if held is None or gpu.uuid in held:  # one that no inventory has yet may be held all the same
                self._present.setdefault(gpu.uuid, Mode.DEVICE_PLUGIN)
        free = self._free(inventory, wanted) if wanted else ()
        found = split(inventory, self._present, wanted, free, self.problem())
        self._present = {gpu.uuid: mode for mode, gpus in found.of_modes.items() for gpu in gpus}
        self.known = True
        return found

    def _wanted(self, facts: NodeFacts | None) -> Wanted | None:
        if facts is None:
            return None
        if not self.enabled:
            return Wanted()
        try:
            wanted = parse(facts.mode)
        except ValueError as error:
            self._problems.say(
                "mode not read", problem=f"annotation {names.ANNOTATION_MODE}: {error}", level=logging.WARNING
            )
            return None
        self._problems.clear()
        return wanted

    def _free(self, inventory: NodeInventory, wanted: Wanted) -> Collection[GpuUuid]:
        """Of the GPUs that are to change, those that can."""
        now, is_told = self.clock.monotonic(), all(version() == self.version() for version in self.told)
        before, self._since = self._since, {}
        for gpu in inventory.gpus:
            goal, mode = wanted.of(gpu), self._present.get(gpu.uuid)
            if mode not in {None, goal}:
                known, since = before.get(gpu.uuid, (goal, now))
                self._since[gpu.uuid] = (goal, since if known is goal and is_told else now)
        due = {gpu: goal for gpu, (goal, since) in self._since.items() if now - since >= SETTLED_S}
        held = {*self.prepared(inventory)}
        due = {gpu: goal for gpu, goal in due.items() if gpu not in held}
        holders = {
            goal: ask(inventory) if goal in due.values() else None
            for goal, ask in ((Mode.DRA, self.pods), (Mode.DEVICE_PLUGIN, self._claims_now_and_then))
        }
        return {gpu for gpu, goal in due.items() if (held_of := holders[goal]) is not None and gpu not in held_of}

    def _claims_now_and_then(self, inventory: NodeInventory) -> Collection[GpuUuid] | None:
        """All claims of the cluster are a lot to read, and this is asked at every reading of the GPUs."""
        if (now := self.clock.monotonic()) < self._claims_at:
            return None
        self._claims_at = now + CLAIMS_S
        return self.claims(inventory)
