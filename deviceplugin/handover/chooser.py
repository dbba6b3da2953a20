"""Finds out, again and again, how this node hands GPUs over."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from deviceplugin.handover import choice
from deviceplugin.handover.choice import Facts, HandOverChoice
from deviceplugin.handover.spec_files import SpecFiles
from deviceplugin.node import NodeFacts, read_node
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import HandOver, NodeInventory
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock

_LOG: Final = logging.getLogger(__name__)
_TIMEOUT_S: Final = 3.0
_FIRST_S: Final = 2.0  # for which the first reading of the GPUs waits for the Node
_LOOK_S: Final = 10.0  # between looks at the directories
_NEW_S: Final = 30.0  # for which a node that has never shared waits for NVIDIA's specs to be written
_AWAY_S: Final = 600.0  # for which specs may be missing: they go at a reboot, or when driver or toolkit are replaced
_MISSING: Final = "NVIDIA's CDI specs are missing, without which no container starts"


@dataclass(kw_only=True)
class Chooser:
    api: KubeApi
    node: NodeName
    clock: Clock
    files: SpecFiles
    settings: Facts  # what does not change of what the choice depends on
    has_nvidia_specs: Callable[[], bool]
    recheck_s: float  # between readings of the Node
    known: threading.Event = field(default_factory=threading.Event)  # the Node was read, and nothing is waited for
    _latest: HandOverChoice = field(init=False)
    _asked: bool = field(init=False, default=False)
    _facts: NodeFacts = field(init=False, default_factory=NodeFacts)
    _read_at: float = field(init=False, default=float("-inf"))
    _specs_by: float | None = field(init=False, default=None)  # until when NVIDIA's specs may be missing

    def __post_init__(self) -> None:
        self._latest = choice.choose(self._gathered())

    def latest(self) -> HandOverChoice:
        """Before the Node was read, what is right on most nodes."""
        return self._latest

    def settled(self) -> HandOverChoice:
        """The latest. The first call waits a little for the Node to be read, so that others are told once."""
        if not self._asked:
            self._asked = True
            self.known.wait(_FIRST_S)
        return self._latest

    def agrees(self, inventory: NodeInventory) -> bool:
        """Whether an inventory says of the hand-over what the Node was read for: before, it is a guess."""
        return self.known.is_set() and inventory.hand_over is self._latest.way

    def limits_label(self) -> str | None:
        """`gpushare.dev/limits` of the Node; None until it was read."""
        return self._facts.limits_label if self.known.is_set() else None

    def oversubscription_label(self) -> str | None:
        return self._facts.oversubscription_label if self.known.is_set() else None

    def run(self, stop: threading.Event) -> None:
        backoff = Backoff()
        while not stop.is_set():
            try:
                self.look()
                backoff.reset()
                delay = _LOOK_S if self.known.is_set() else _FIRST_S
            except (kube.KubeError, WireError) as error:
                delay = backoff.next_s()
                logs.event(_LOG, "node not read", level=logging.WARNING, error=str(error), retry_s=delay)
            self.clock.wait(stop, delay)

    def look(self) -> None:
        """Look once. May raise KubeError, or WireError if what was read is no Node."""
        if self.clock.monotonic() - self._read_at >= self.recheck_s:
            self._facts = read_node(self.api.get(kube.node_path(self.node), timeout_s=_TIMEOUT_S))
            self._read_at = self.clock.monotonic()
        chosen = self._settled(self._gathered())
        if chosen is None:
            return
        if chosen != self._latest or not self.known.is_set():
            logs.event(_LOG, "hand-over", way=chosen.way.value, reason=chosen.reason)
        self._latest = chosen
        self.known.set()

    def _gathered(self) -> Facts:
        writable, nvidia_specs = self.files.writable(), self.has_nvidia_specs()
        return replace(self.settings, node=self._facts, writable=writable, nvidia_specs=nvidia_specs)

    def _settled(self, facts: Facts) -> HandOverChoice | None:
        """The choice; None while a new node may still get what a better one needs: a container keeps its first way."""
        now, chosen = self.clock.monotonic(), choice.choose(facts)
        if facts.nvidia_specs:
            self._specs_by = now + _AWAY_S
        elif self._specs_by is None:
            self._specs_by = now + {None: _NEW_S, HandOver.CDI: _AWAY_S}.get(facts.node.published, 0.0)
        with_specs = choice.choose(replace(facts, nvidia_specs=True))
        if with_specs.way is chosen.way or now >= self._specs_by:
            return chosen
        if facts.node.published is None and not self.known.is_set():
            return None
        return replace(with_specs, reason=f"{with_specs.reason}; {_MISSING}")
