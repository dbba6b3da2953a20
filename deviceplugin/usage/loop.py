"""Reads what is used, again and again, for those who show it, and acts on containers that stay above their grant.

The watchdog tells of them, evicts their pod, or ends their processes.
"""

import logging
import signal
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deviceplugin import cgroups
from deviceplugin.cgroups import Process, Procfs, Sent
from deviceplugin.inventory import InventoryFeed
from deviceplugin.node import Refusals
from deviceplugin.source import ProcessLists
from deviceplugin.usage import join
from deviceplugin.usage.join import (
    Joined,
    Key,
    ListedSince,
    NodeUsage,
    OverGrant,
    Pods,
    Sample,
    State,
    UsageReading,
    WatchdogPolicy,
    WatchedContainer,
)
from gpushare import names, units
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import NodeInventory
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import MIB
from gpushare.wire import fields

_LOG: Final = logging.getLogger(__name__)
REASON_OVER: Final = "GpuShareOverGrant"
REASON_EVICTED: Final = "GpuShareEvicted"
REASON_KILLED: Final = "GpuShareKilled"
_EVICT_AGAIN_S: Final = 30.0
_IF_FORBIDDEN: Final = "apply the component manifests/watchdog-evict"
_NOT_EVICTED: Final[Mapping[type[kube.KubeError], str]] = {
    **dict.fromkeys((kube.NotFoundError, kube.ConflictError), "gone"),
    kube.TooManyRequestsError: "refused",  # a PodDisruptionBudget protects it for now
}
_READ_S: Final = 2.0  # time for the processes of one sample
_ACT_S: Final = 10.0  # time for all actions of one look
KILL_AFTER_S: Final = 10.0  # how long a process has to end by itself after SIGTERM
_FRESH_S: Final = 60.0
_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Latest:
    joined: Joined
    peaks: Mapping[Key, int]
    over: int | None  # how many are above their grant for too long; None without a watchdog
    listed: ListedSince


@dataclass(kw_only=True)
class Watchdog:
    """Used by one thread. What it remembers is lost with the process, and then every grace period begins again."""

    policy: WatchdogPolicy  # the administrator's: what pods and namespaces ask for can only be stricter
    grace_s: float
    gap_s: float  # the longest time between two samples that count as one after the other
    tolerance_mib: int
    api: KubeApi
    table: Procfs
    events: Refusals
    clock: Clock
    _state: State = field(init=False, default_factory=dict)
    _namespaces: dict[str, tuple[float, WatchdogPolicy]] = field(init=False, default_factory=dict)  # as of when
    _evicted: dict[PodUid, float] = field(init=False, default_factory=dict)
    _signalled: dict[Process, float] = field(init=False, default_factory=dict)
    _first: int = field(init=False, default=0)  # whose turn is next, if the API server is too slow for all of them
    _reported: set[WatchedContainer] = field(init=False, default_factory=set)
    actions: Mapping[tuple[str, str], int] = field(init=False, default_factory=dict)
    """How often what was done, by action and result; replaced as a whole, as others read it."""

    def look(self, joined: Joined) -> int:
        """Judge a sample, the next after the one before. How many are above their grant for too long."""
        found = join.over_grants(joined, tolerance_mib=self.tolerance_mib)
        self._state = join.advance(self._state, found, joined, gap_s=self.gap_s)
        violations = join.due(self._state, found, grace_s=self.grace_s)
        self._forget(violations)
        until = self.clock.monotonic() + _ACT_S
        turn = violations[self._first :] + violations[: self._first]
        acted = 0
        while acted < len(turn) and self.clock.monotonic() < until:
            self._act(turn[acted], joined.at)
            acted += 1
        self._first = (self._first + acted) % max(1, len(turn))
        return len(violations)

    def _act(self, over: OverGrant, at: float) -> None:
        pod = over.pod
        policy = max(self.policy, pod.policy, self._asked_by(pod.ref.namespace))
        self._tell(over, REASON_OVER, "use less, or ask for more")
        if over.subject not in self._reported:
            self._reported.add(over.subject)
            self._done("report", "done", over)
        if policy is WatchdogPolicy.EVICT:
            self._evict(over, at)
        if policy is WatchdogPolicy.KILL:
            # Never an empty list: what is above its grant has processes.
            sent = [self._end(process, over, at) for process in over.processes]
            if Sent.DONE in sent:
                self._tell(over, REASON_KILLED, "so its processes on this GPU are ended")

    def _asked_by(self, namespace: str) -> WatchdogPolicy:
        """By its label; OFF if it asks for nothing, or cannot be read: then the node's own policy counts."""
        now = self.clock.monotonic()
        self._namespaces = {name: known for name, known in self._namespaces.items() if now - known[0] < _FRESH_S}
        if namespace not in self._namespaces:
            self._namespaces[namespace] = now, self._read(namespace)
        return self._namespaces[namespace][1]

    def _read(self, namespace: str) -> WatchdogPolicy:
        try:
            found = self.api.get(f"/api/v1/namespaces/{namespace}", timeout_s=_TIMEOUT_S)
            labels = fields.mapping(fields.mapping(found, "metadata", "namespace"), "labels", "metadata")
            return WatchdogPolicy.parse(str(labels.get(names.WATCHDOG, WatchdogPolicy.OFF)))
        except kube.ForbiddenError:
            return WatchdogPolicy.OFF  # a component that gives the right to act on it gives the right to read it
        except (kube.KubeError, WireError, ValueError) as error:
            logs.event(_LOG, "namespace unread", level=logging.WARNING, namespace=namespace, error=str(error))
            return WatchdogPolicy.OFF

    def _evict(self, over: OverGrant, at: float) -> None:
        uid = over.subject.pod
        if uid in self._evicted and at < self._evicted[uid] + _EVICT_AGAIN_S:
            return
        self._evicted[uid] = at
        result, problem = "done", ""
        try:
            kube.evict(self.api, over.pod.ref)
        except kube.KubeError as error:
            result, problem = _NOT_EVICTED.get(type(error), "failed"), str(error)
            if isinstance(error, kube.ForbiddenError):
                problem += f"; {_IF_FORBIDDEN}"
        self._done("evict", result, over, problem=problem)
        if result == "done":
            self._tell(over, REASON_EVICTED, "so the pod is evicted")

    def _end(self, process: Process, over: OverGrant, at: float) -> Sent | None:
        since = self._signalled.get(process)
        if since is not None and at < since + KILL_AFTER_S:
            return None
        self._signalled[process] = at
        action, number = ("terminate", signal.SIGTERM) if since is None else ("kill", signal.SIGKILL)
        sent = self.table.send(process, number)
        self._done(action, sent.value, over, pid=process.pid)
        return sent

    def _tell(self, over: OverGrant, reason: str, consequence: str) -> None:
        who = f"container {over.name}" if over.name else "the pod (or a container of it that was granted nothing)"
        unit, (used, granted) = units.in_one_unit(-(-over.used // MIB), over.granted_mib)
        uses = f"{who} uses {used} {unit} of GPU {over.subject.gpu}, of which it was granted {granted} {unit}"
        message = f"{uses}, for more than {self.grace_s:g} s; {consequence}"
        self.events.post(over.pod.ref, (over.subject.container, over.subject.gpu), reason, message)

    def _done(self, action: str, result: str, over: OverGrant, **more: Any) -> None:
        self.actions = {**self.actions, (action, result): self.actions.get((action, result), 0) + 1}
        who = {"pod": str(over.pod.ref), "container": over.name, "gpu": over.subject.gpu, **more}
        amounts: dict[str, Any] = {"granted_mib": over.granted_mib, "used_mib": over.used // MIB}
        logs.event(_LOG, "above its grant", level=logging.WARNING, **who, **amounts, action=action, result=result)

    def _forget(self, violations: Sequence[OverGrant]) -> None:
        """What was done to those that no longer are above their grant: should they be again, it all begins again."""
        subjects = {over.subject for over in violations}
        pods = {subject.pod for subject in subjects}
        processes = {each for over in violations for each in over.processes}
        self._reported &= subjects
        self._evicted = {pod: at for pod, at in self._evicted.items() if pod in pods}
        self._signalled = {process: at for process, at in self._signalled.items() if process in processes}


@dataclass(kw_only=True)
class UsageLoop:
    """Written by one thread, read by many: what is written is replaced as a whole."""

    lists: ProcessLists
    table: Procfs
    feed: InventoryFeed
    holding: Callable[[NodeInventory], Pods]  # the pods that hold GPUs now
    watchdog: Watchdog | None
    clock: Clock
    interval_s: float
    stale_s: float  # after so long without a sample nothing is known of what is used
    reading: UsageReading = UsageReading.ON
    latest: Latest | None = field(init=False, default=None)

    def view(self) -> NodeUsage | None:
        posted, latest = self.feed.latest, self.latest
        if posted is None:
            return None
        pods = self.holding(posted.inventory)
        if latest is None:
            return replace(join.view(posted.inventory, pods, None, {}), reading=self.reading)
        found = join.view(posted.inventory, pods, latest.joined if self._is_fresh(latest) else None, latest.peaks)
        if not found.foreign:
            return replace(found, reading=UsageReading.SILENT)
        return replace(found, reading=self.reading, over=latest.over)

    def unseen(self) -> Collection[GpuUuid]:
        """GPUs whose processes are not known; none before the first sample."""
        latest = self.latest
        if latest is None:
            return ()
        return latest.listed.keys() - (latest.joined.foreign.keys() if self._is_fresh(latest) else ())

    def _is_fresh(self, latest: Latest) -> bool:
        return self.clock.monotonic() - latest.joined.at < self.stale_s

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.look()
            self.clock.wait(stop, self.interval_s)

    def look(self) -> None:
        posted = self.feed.latest
        if posted is None:
            return
        latest = self.latest
        sample, listed = self._sample([gpu.uuid for gpu in posted.inventory.every], latest.listed if latest else {})
        pods = self.holding(posted.inventory)
        joined = join.join(sample, pods)
        peaks = join.peaks(latest.peaks if latest else {}, joined, pods)
        self.latest = latest = Latest(joined, peaks, latest.over if latest else None, listed)
        if self.watchdog is not None:  # it may wait for the API server
            self.latest = replace(latest, over=self.watchdog.look(joined))

    def _sample(self, gpus: Collection[GpuUuid], before: ListedSince) -> tuple[Sample, ListedSince]:
        at = self.clock.monotonic()
        lists = self.lists.read(gpus)
        now = self.clock.monotonic()
        if now - at >= self.stale_s:  # no one may be judged by what was so long ago
            lists = dict.fromkeys(gpus)
        listed = join.listed(before, lists, at)
        processes = cgroups.trusted_processes(join.since(listed), self.table, self.clock, until=now + _READ_S)
        return Sample(at=at, lists=lists, processes=processes), listed
