"""Keeps the picture equal to the cluster: watches, asks device plugins what is used, and publishes what has changed."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare import names
from gpushare.errors import GpuShareError
from gpushare.identity import NodeName
from gpushare.kube.api import KubeApi
from gpushare.kube.watch import Reflector
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import GIB
from gpushare_cli import limits, usage
from gpushare_cli.dashboard import happenings, queue, views, watching
from gpushare_cli.dashboard.feed import Feed
from gpushare_cli.dashboard.model import Happening, NodeView, Overview, Totals, Waiting
from gpushare_cli.dashboard.state import Changes, State
from gpushare_cli.dashboard.watching import Found, Scope
from gpushare_cli.reading import Settings
from gpushare_cli.usage import NodeUse

_LOG: Final = logging.getLogger(__name__)
_GATHER_S: Final = 0.2
"""For which changes are collected, so that a thousand of them are one picture."""
_TICK_S: Final = 5.0
"""After which what depends on the time alone is looked at."""
_USE_S: Final = 10.0
_ASKED_PER_S: Final = 20
"""Device plugins, through the API server: what is used is read less often where there are more than 200 nodes."""
_STALE_S: Final = 150.0
"""All is well below some 100 s: see `Reflector.stale_for`."""
_TROUBLE_S: Final = 10.0
"""A stream that is cut, and taken up again at the next try, is nothing to tell."""
_ROWS: Final = 200
"""Of pods that wait. A job each can make thousands, and each of them would be sent and drawn at every change."""
_REST: Final = 5
"""The queue of waiting pods is computed for no more than one part in so many of the time."""


@dataclass(kw_only=True, eq=False)
class Live:
    """The picture of one cluster, as one user may see it."""

    api: KubeApi
    clock: Clock
    scope: Scope
    settings: Settings
    server: str = ""
    """How the cluster is called."""
    installation: str = names.NAMESPACE
    notes: tuple[str, ...] = ()
    feed: Feed = field(default_factory=Feed)
    state: State = field(default_factory=State)
    asked: threading.Event = field(init=False, default_factory=threading.Event)
    """Set when the picture has what is used, as far as that can be known."""
    _reflectors: Mapping[str, Reflector[Found]] = field(init=False)
    _views: dict[str, NodeView] = field(init=False, default_factory=dict)
    _totals: dict[str, Totals] = field(init=False, default_factory=dict)
    """Of each view: of a large cluster all together take too long for every change."""
    _uses: Mapping[NodeName, NodeUse] = field(init=False, default_factory=dict)
    _use_read: bool = field(init=False, default=False)
    _waiting: tuple[Waiting, ...] = field(init=False, default=())
    _queue_due: bool = field(init=False, default=True)
    _queue_at: float = field(init=False, default=float("-inf"))
    _seen: list[Happening] = field(init=False, default_factory=list)
    """What no object tells, since the start."""
    _ended: dict[str, Happening] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._reflectors = watching.reflectors(self.api, self.scope, self.state, self.clock)

    def start(self, stop: threading.Event) -> None:
        """Begin, in threads of its own that end with the process, or some time after `stop`."""
        for name, reflector in self._reflectors.items():
            threading.Thread(target=reflector.run, args=(stop,), name=name, daemon=True).start()
        for name, part in (("picture", self._run), ("use", self._ask)):
            threading.Thread(target=part, args=(stop,), name=name, daemon=True).start()

    @property
    def is_read(self) -> bool:
        """Whether all that must be read was read once."""
        return all(each.synced.is_set() for each in self._reflectors.values() if not each.optional)

    # The thread of the picture.

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.state.changed.wait(self._patience() if self.is_read else _GATHER_S)
            self.state.changed.clear()
            if not self.is_read:
                continue
            try:
                self.refresh()
            except Exception:  # noqa: BLE001 - the top of a thread
                self._tell_fault("picture failed", stop)
            self.clock.wait(stop, _GATHER_S)

    def _tell_fault(self, event: str, stop: threading.Event) -> None:
        """But not what the end of the process cuts short."""
        if not stop.is_set():
            logs.event(_LOG, event, level=logging.ERROR, exc_info=True)

    def _patience(self) -> float:
        """For how many seconds there is nothing to do but to wait for a change; negative for none."""
        until = self._queue_at - self.clock.monotonic() if self._queue_due else _TICK_S
        return min(until, _TICK_S)

    def refresh(self) -> None:
        """Publish what has changed."""
        use_read = self._use_read  # before the changes that say where it is to be drawn
        changes = self.state.take_changes()
        changed = {name: self._look_at(name) for name in sorted(changes.nodes) if name}
        self._tell_changes(changes, changed)
        for name, view in changed.items():
            self._views.pop(name, None)
            self._totals.pop(name, None)
            if view is not None:
                self._views[name] = view
                self._totals[name] = views.totals_of(view)
        self._queue_due |= bool(changes.nodes)
        told = self._happenings()
        self.feed.publish(changed, self._overview(), self._waiting[:_ROWS], told)
        self._look_at_queue()  # of a large cluster it takes a second: no bar waits for it
        self.feed.publish({}, self._overview(), self._waiting[:_ROWS], told)
        if use_read:
            self.asked.set()

    def _look_at(self, name: str) -> NodeView | None:
        node, pods, unhealthy = self.state.node(name)
        if self.scope.nodes:
            return views.of_node(node, pods, unhealthy, self._uses.get(NodeName(name))) if node is not None else None
        return views.of_unread_node(NodeName(name), pods, self.settings.memory_unit or GIB)

    def _tell_changes(self, changes: Changes, changed: Mapping[str, NodeView | None]) -> None:
        now = self.clock.now()
        for name, view in changed.items():
            if (before := self._views.get(name)) is not None:
                self._seen += happenings.of_view(before, happenings.since(now))  # of pods that are gone now, too
            if self.feed.picture is not None and self.scope.nodes:
                self._seen += happenings.between(before, view, now)
        self._seen += [each for pod in changes.gone if (each := happenings.of_deleted(pod, now)) is not None]
        for name in changes.nodes:
            for pod in self.state.node(name)[1]:
                if (ended := happenings.of_ended(pod)) is not None:
                    self._ended[ended.subject] = ended
        self._seen = list(happenings.latest(self._seen, now))
        recent = set(happenings.latest(self._ended.values(), now))
        self._ended = {subject: each for subject, each in self._ended.items() if each in recent}

    def _happenings(self) -> tuple[Happening, ...]:
        now = self.clock.now()
        begin = happenings.since(now)
        found = [each for view in self._views.values() for each in happenings.of_view(view, begin)]
        told = map(happenings.of_event, self.state.events())
        return happenings.latest([*found, *told, *self._seen, *self._ended.values()], now)

    def _look_at_queue(self) -> None:
        began = self.clock.monotonic()
        if not self._queue_due or began < self._queue_at:
            return
        cluster = self.state.cluster()
        try:
            if not self.scope.complete:
                self._waiting = queue.of_scheduler(cluster.pods, self.settings)
            elif any(queue.may_wait(pod) for pod in cluster.pods):
                self._waiting = queue.of_cluster(cluster, self.settings)
            else:
                self._waiting = ()
        except GpuShareError as error:
            logs.event(_LOG, "queue not evaluated", level=logging.WARNING, error=str(error))
            self._waiting = queue.of_scheduler(cluster.pods, self.settings)
        self._queue_due = False
        now = self.clock.monotonic()
        self._queue_at = now + _REST * (now - began)

    def _overview(self) -> Overview:
        waiting = sum(1 + each.others for each in self._waiting)
        unread = len({note for view in self._views.values() for note in view.notes})
        notes = [*self.notes, *limits.notes(self._uses)]
        if unread:
            notes.append(f"{unread} pods or nodes have annotations that cannot be read; see kubectl inspect gpushare")
        return Overview(
            server=self.server,
            complete=self.scope.complete,
            scope=self.scope.words,
            totals=views.totals(self._totals.values(), waiting),
            notes=tuple(notes),
            stale=self.problem,
        )

    @property
    def problem(self) -> str:
        """Why the cluster cannot be read at the moment; empty if it can."""
        needed = {name: each for name, each in self._reflectors.items() if not each.optional}
        failing = {name: why for name, each in needed.items() if (why := each.failing(_TROUBLE_S))}
        if failing:
            return f"this may be old: {', '.join(failing)} cannot be read ({next(iter(failing.values()))})"
        late = [name for name, each in needed.items() if each.stale_for() > _STALE_S]
        return f"the API server has not answered for minutes about {', '.join(late)}" if late else ""

    # The thread that asks what is used.

    def _ask(self, stop: threading.Event) -> None:
        while not stop.is_set():
            pause = _GATHER_S
            if self.use_is_due:
                try:
                    self.ask_use()
                except Exception:  # noqa: BLE001 - the top of a thread
                    self._tell_fault("use not read", stop)
                pause = max(_USE_S, len(self._uses) / _ASKED_PER_S)
            self.clock.wait(stop, pause)

    @property
    def use_is_due(self) -> bool:
        """Whether to ask: once, and then while anyone looks."""
        return self.feed.picture is not None and (not self._use_read or self.feed.is_followed)

    def ask_use(self) -> None:
        """Ask the device plugins of the nodes with pods what is used."""
        picture = self.feed.picture
        shown = picture.nodes.values() if picture is not None else ()
        nodes = [NodeName(view.name) for view in shown if any(card.blocks for card in view.cards)]
        known = self._uses
        self._uses = usage.read(self.api, nodes, self.installation) if nodes and self.scope.nodes else {}
        changed = [name for name in {*known, *self._uses} if known.get(name) != self._uses.get(name)]
        self.state.mark(changed)
        self._use_read = True
        self.state.changed.set()
