"""Keeps the picture equal to the cluster: looks at what has changed, and asks device plugins what is used."""

import json
import logging
import re
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Any, Final

import orjson

from gpushare.errors import GpuShareError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import GIB
from gpushare_cli import console, usage
from gpushare_cli.dashboard import views
from gpushare_cli.dashboard.access import Scope
from gpushare_cli.dashboard.views import Happening, NodeView, Overview, Waiting
from gpushare_cli.dashboard.watching import Watched
from gpushare_cli.reading import Objects, Settings
from gpushare_cli.usage import NodeUse

_LOG: Final = logging.getLogger(__name__)
_TICK_S: Final = 1.0  # for which changes are collected, so that a thousand of them are one picture
_FIRST_S: Final = 0.2  # the same while there is none yet, and how late the end of the process is noticed
_USE_S: Final = 10.0
_ASKED_PER_S: Final = 20  # device plugins, through the API server: use is read less often from 200 nodes on
_LOOKS_S: Final = 90.0  # then it is no longer looked at; browsers let a page in the background ask once a minute
_ROWS: Final = 200  # of pods that wait: a job can make thousands, and all are sent and drawn at every change
_REST: Final = 5  # why pods wait is computed for no more than one part in so many of the time
_SCOPED: Final = 64
_SCOPED_SIZE: Final = 200_000  # in all: some 70 MB
_HIDDEN: Final = re.compile(f"[{console.HIDDEN}]")  # a tenant could write these to make text look like other text


@dataclass(frozen=True, kw_only=True)
class Picture:
    version: int
    nodes: Mapping[str, NodeView]
    overview: Overview
    waiting: tuple[Waiting, ...] = ()
    happenings: tuple[Happening, ...] = ()

    @cached_property
    def page(self) -> bytes:
        """Lines of JSON for browsers: the overview, pods that wait, what happened, and each node."""
        nodes = (view for _, view in sorted(self.nodes.items()))
        return b"\n".join(map(_json, (self.overview, self.waiting, self.happenings, *nodes)))


def _json(value: Any) -> bytes:
    r"""With the characters that hide as `\\u202e`, which is then read as these six."""
    try:
        text = orjson.dumps(value).decode()
    except TypeError:  # more than 64 bits: three pods that claim 2**63 MiB each, where nothing checks what pods claim
        text = json.dumps(value, default=_plain, ensure_ascii=False)
    return _HIDDEN.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else asdict(value)


class Live:
    """The picture of one cluster, as one user may see it."""

    def __init__(
        self,
        watched: Watched,
        scope: Scope,
        read_use: Callable[[Collection[NodeName]], Mapping[NodeName, NodeUse]],
        clock: Clock,
        settings: Settings,
        *,
        server: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        self.watched, self.scope, self._read_use = watched, scope, read_use
        self._changes = watched.follow(scope)
        self.clock, self._settings, self._server, self.notes = clock, settings, server, notes
        self.picture: Picture | None = None  # until everything was read for the first time
        self.asked = threading.Event()  # set when the picture has what is used, as far as that can be known
        self._uses: Mapping[NodeName, NodeUse] = {}
        self._use_read, self._looked_at = False, float("-inf")
        self._waiting: tuple[Waiting, ...] = ()
        self._waiting_due, self._waiting_at = True, float("-inf")
        self._seen: list[Happening] = []  # what no object tells, since the start
        self._ended: dict[str, Happening] = {}
        self._run: Final = secrets.token_urlsafe(6)  # an earlier process has pictures of the same versions

    def scoped_to(self, scope: Scope) -> "Live":
        """A picture of less, which is not to be started, but to be ticked: what is used is not asked for again."""

        def known(nodes: Collection[NodeName]) -> Mapping[NodeName, NodeUse]:
            return {node: self._uses[node] for node in nodes if node in self._uses}

        settings, server = self._settings, self._server
        return Live(self.watched, scope, known, self.clock, settings, server=server, notes=self.notes)

    @property
    def size(self) -> int:
        """GPUs, and pods on them."""
        views = self.picture.nodes.values() if self.picture else ()
        return sum(1 + len(card.blocks) for view in views for card in view.cards)

    def namespaces(self) -> list[str]:
        """Of pods that concern GPUs, and of what happened in the last hour. UnreachableError: not read yet."""
        if self.picture is None:
            raise kube.UnreachableError(self.watched.problem or "the dashboard has not read the whole cluster yet")
        subjects = (each.subject for each in self.picture.happenings)
        return sorted(
            {pod["metadata"]["namespace"] for pod in self.watched.objects(self.scope).pods}
            | {subject.partition("/")[0] for subject in subjects if "/" in subject}
        )

    def start(self, stop: threading.Event) -> None:
        self.watched.start(stop)
        self.repeat(self._tick_if_read, "picture failed", _TICK_S, stop)
        self.repeat(self._ask_if_due, "use not read", _USE_S, stop)

    def repeat(self, step: Callable[[], float], fault: str, rest_s: float, stop: threading.Event) -> None:
        """In a thread; `step` gives the seconds until the next one, `rest_s` is for those after a fault."""
        threading.Thread(target=self._repeat, args=(step, fault, rest_s, stop), name="picture", daemon=True).start()

    def _repeat(self, step: Callable[[], float], fault: str, rest_s: float, stop: threading.Event) -> None:
        while not stop.is_set():
            pause = rest_s
            try:
                pause = step()
            except Exception:  # noqa: BLE001 - the top of a thread
                if not stop.is_set():  # else the end of the process has cut it short
                    logs.event(_LOG, fault, level=logging.ERROR, exc_info=True)
            self.clock.wait(stop, pause)

    def look(self) -> Picture | None:
        """The picture, for somebody who goes on to look: what is used is read for them."""
        self._looked_at = self.clock.monotonic()
        return self.picture

    def page(self) -> tuple[str, bytes]:
        """The picture for browsers: an entity tag, and lines of JSON; none of these while there is no picture."""
        picture = self.look()
        return (f'"{self._run}.{picture.version}"', picture.page) if picture else (f'"{self._run}.0"', b"")

    def _tick_if_read(self) -> float:
        if not self.watched.is_read:
            return _FIRST_S
        self.tick()
        return _TICK_S

    def tick(self) -> None:
        use_read = self._use_read  # before the changes that say where it is to be drawn
        changed, gone = self.watched.take_changes(self._changes)
        now = self.clock.now()
        self._seen += [each for pod in gone if (each := views.deleted(pod, now)) is not None]
        try:
            self._draw(changed, now)
        except Exception:
            self.watched.mark(changed, self._changes)
            raise
        if use_read:
            self.asked.set()

    def _draw(self, changed: Set[str], now: datetime) -> None:
        nodes = dict(self.picture.nodes) if self.picture else {}
        for name in sorted(changed - {""}):
            before, view = nodes.pop(name, None), self._view(name)
            if before is not None:
                self._seen += views.grants(before, views.earliest(now))  # of pods that are gone now, too
            if self.picture is not None and self.scope.nodes:
                self._seen += views.health_changes(name, before, view, now)
            if view is not None:
                nodes[name] = view
        self._tell_ends(changed, now)
        self._waiting_due |= bool(changed)
        self._publish(nodes)
        if self._look_at_waiting():  # of a large cluster it takes a second: no bar waits for it
            self._publish(nodes)

    def _view(self, name: str) -> NodeView | None:
        node, pods, unhealthy = self.watched.node(name, self.scope)
        if self.scope.nodes:
            claims, use = self.watched.claims(name, self.scope), self._uses.get(NodeName(name))
            return views.of_node(node, pods, unhealthy, use, claims) if node is not None else None
        return views.of_unread_node(NodeName(name), pods, self._settings.memory_unit or GIB)

    def _tell_ends(self, changed: Iterable[str], now: datetime) -> None:
        for name in changed:
            for pod in self.watched.node(name, self.scope)[1]:
                if (ended := views.ended(pod)) is not None:
                    self._ended[ended.subject] = ended
        self._seen = list(views.latest(self._seen, now))
        recent = set(views.latest(self._ended.values(), now))
        self._ended = {subject: each for subject, each in self._ended.items() if each in recent}

    def _publish(self, nodes: Mapping[str, NodeView]) -> None:
        before, now = self.picture, self.clock.now()
        begin = views.earliest(now)
        found = [each for view in nodes.values() for each in views.grants(view, begin)]
        events = map(views.of_event, self.watched.events(self.scope))
        told = [each for each in events if each.at <= now.strftime(views.STAMP)]
        new = Picture(
            version=before.version if before else 0,
            nodes=nodes,
            overview=self._overview(nodes),
            waiting=self._waiting[:_ROWS],
            happenings=views.latest([*found, *told, *self._seen, *self._ended.values()], now),
        )
        if new != before:
            self.picture = replace(new, version=new.version + 1)

    def _overview(self, nodes: Mapping[str, NodeView]) -> Overview:
        notes = [*self.notes, *usage.notes(self._uses)]
        if unread := len({note for view in nodes.values() for note in view.notes}):
            notes.append(f"{unread} pods or nodes have annotations that cannot be read; see kubectl inspect gpushare")
        if hidden := sum(bool(view.claimed and not view.cards) for view in nodes.values()):
            notes.append(f"nodes that share all of their GPUs by ResourceClaims: {hidden}; see gpushare inspect")
        return Overview(
            server=self._server,
            complete=self.scope.complete,
            scope=self.scope.words,
            totals=views.totals(nodes.values(), sum(1 + each.others for each in self._waiting)),
            notes=tuple(notes),
            stale=self.watched.problem,
        )

    def _look_at_waiting(self) -> bool:
        began = self.clock.monotonic()
        if not self._waiting_due or began < self._waiting_at:
            return False
        objects = self.watched.objects(self.scope)
        pods_alone = Objects(pods=objects.pods, forbidden="nodes are left out")
        if not self.scope.complete:
            objects = pods_alone
        try:
            may_wait = any(map(views.may_wait, objects.pods))
            self._waiting = views.waiting(objects, self._settings) if may_wait else ()
        except GpuShareError as error:
            logs.event(_LOG, "queue not evaluated", level=logging.WARNING, error=str(error))
            self._waiting = views.waiting(pods_alone, self._settings)
        self._waiting_due = False
        now = self.clock.monotonic()
        self._waiting_at = now + _REST * (now - began)
        return True

    def _ask_if_due(self) -> float:
        if not self.use_is_due:
            return _FIRST_S
        self.ask_use()
        return max(_USE_S, len(self._uses) / _ASKED_PER_S)

    @property
    def use_is_due(self) -> bool:
        return self.picture is not None and (not self._use_read or self.is_looked_at)

    @property
    def is_looked_at(self) -> bool:
        return self.clock.monotonic() - self._looked_at < _LOOKS_S

    def ask_use(self) -> None:
        shown = self.picture.nodes.values() if self.picture else ()
        nodes = [NodeName(view.name) for view in shown if any(card.blocks for card in view.cards)]
        known = self._uses
        self._uses = self._read_use(nodes) if nodes and self.scope.nodes else {}
        differ = [name for name in {*known, *self._uses} if known.get(name) != self._uses.get(name)]
        self.watched.mark(differ, self._changes)
        self._use_read = True


class ScopedPictures:
    """Pictures for users who may see less than the whole. Safe for threads."""

    def __init__(self, whole: Live) -> None:
        self._whole, self._clock = whole, whole.clock
        self._lock = threading.Lock()
        self._lives: dict[Scope, Live] = {}

    def start(self, stop: threading.Event) -> None:
        self._whole.repeat(self.tick, "picture failed", _TICK_S, stop)

    def page(self, scope: Scope) -> tuple[str, bytes]:
        """As that of `Live`. Raises TooManyRequestsError: too many others are looked at."""
        self._whole.look()
        return (self._whole if scope == self._whole.scope else self._live(scope)).page()

    def tick(self) -> float:
        """Bring them up to date, and drop those that are not looked at. Half of a processor is left to others."""
        began = self._clock.monotonic()
        with self._lock:
            self._lives = {scope: live for scope, live in self._lives.items() if live.is_looked_at}
            lives = list(self._lives.items())
        for scope, live in lives:
            try:
                live.ask_use()
                live.tick()
            except Exception:
                with self._lock:
                    self._lives.pop(scope, None)  # so that the others go on
                raise
        return max(_TICK_S, self._clock.monotonic() - began)

    def _live(self, scope: Scope) -> Live:
        if (found := self._lives.get(scope)) is not None:
            return found
        with self._lock:
            if scope not in self._lives:
                sizes = [(live if live.picture else self._whole).size for live in self._lives.values()]
                if len(sizes) >= _SCOPED or sum(sizes) >= _SCOPED_SIZE:
                    raise kube.TooManyRequestsError("Too many users with other rights look; try again.")
                made = self._whole.scoped_to(scope)
                made.look()
                self._lives[scope] = made  # from here on `tick` draws it
            return self._lives[scope]
