"""Acts on containers that stay above their grant: tells of them, evicts their pod, or ends their processes."""

import logging
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from deviceplugin.counts import Counts
from deviceplugin.refusals import Refusals
from deviceplugin.usage import overuse, procfs
from deviceplugin.usage.join import MIB, Joined
from deviceplugin.usage.namespaces import Namespaces
from deviceplugin.usage.overuse import Excess, State, Subject
from deviceplugin.usage.procfs import ProcessTable, Sent
from deviceplugin.usage.values import Policy, Process
from gpushare import units
from gpushare.identity import PodUid
from gpushare.kube import pods as kube_pods
from gpushare.kube.api import KubeApi
from gpushare.kube.pods import Evicted
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
REASON_OVER: Final = "GpuShareOverGrant"
REASON_EVICTED: Final = "GpuShareEvicted"
REASON_KILLED: Final = "GpuShareKilled"
T = TypeVar("T")
_EVICT_AGAIN_S: Final = 30.0
_IF_FORBIDDEN: Final = "apply the component manifests/watchdog-evict"
_ACT_S: Final = 10.0
"""Time for all actions of one look."""
KILL_AFTER_S: Final = 10.0
"""How long a process has to end by itself after SIGTERM."""


@dataclass(kw_only=True)
class Watchdog:
    """Used by one thread. What it remembers is lost with the process, and then every grace period begins again."""

    policy: Policy
    """The administrator's: what pods and namespaces ask for can only be stricter."""
    grace_s: float
    gap_s: float
    """The longest time between two samples that count as one after the other."""
    tolerance_mib: int
    api: KubeApi
    table: ProcessTable
    events: Refusals
    namespaces: Namespaces
    counts: Counts
    clock: Clock
    _state: State = field(init=False, default_factory=dict)
    _evicted: dict[PodUid, float] = field(init=False, default_factory=dict)
    _signalled: dict[Process, float] = field(init=False, default_factory=dict)
    _first: int = field(init=False, default=0)
    """Whose turn is next, if the API server is too slow for all of them."""
    _reported: set[Subject] = field(init=False, default_factory=set)

    def look(self, joined: Joined) -> int:
        """Judge a sample, the next after the one before. How many are above their grant for too long."""
        found = overuse.excesses(joined, tolerance_mib=self.tolerance_mib)
        self._state = overuse.advance(self._state, found, joined, gap_s=self.gap_s)
        guilty = overuse.due(self._state, found, grace_s=self.grace_s)
        self._forget(guilty)
        until = self.clock.monotonic() + _ACT_S
        turn = guilty[self._first :] + guilty[: self._first]
        acted = 0
        while acted < len(turn) and self.clock.monotonic() < until:
            self._act(turn[acted], joined.at)
            acted += 1
        self._first = (self._first + acted) % max(1, len(turn))
        return len(guilty)

    def _act(self, excess: Excess, at: float) -> None:
        pod = excess.pod
        policy = max(self.policy, pod.policy, self.namespaces.policy(pod.ref.namespace))
        self._tell(excess, REASON_OVER, "use less, or ask for more")
        if excess.subject not in self._reported:
            self._reported.add(excess.subject)
            self._done("report", "done", excess)
        if policy is Policy.EVICT:
            self._evict(excess, at)
        if policy is Policy.KILL:
            # Never an empty list: what is above its grant has processes.
            sent = [self._end(process, excess, at) for process in excess.processes]
            if Sent.DONE in sent:
                self._tell(excess, REASON_KILLED, "so its processes on this GPU are ended")

    def _evict(self, excess: Excess, at: float) -> None:
        uid = excess.subject.pod
        if uid in self._evicted and at < self._evicted[uid] + _EVICT_AGAIN_S:
            return
        self._evicted[uid] = at
        outcome, problem = kube_pods.evict(self.api, excess.pod.ref, if_forbidden=_IF_FORBIDDEN)
        self._done("evict", outcome.value, excess, problem=problem)
        if outcome is Evicted.DONE:
            self._tell(excess, REASON_EVICTED, "so the pod is evicted")

    def _end(self, process: Process, excess: Excess, at: float) -> Sent | None:
        since = self._signalled.get(process)
        if since is not None and at < since + KILL_AFTER_S:
            return None
        self._signalled[process] = at
        action, number = ("terminate", signal.SIGTERM) if since is None else ("kill", signal.SIGKILL)
        sent = procfs.send(self.table, process, number)
        self._done(action, sent.value, excess, pid=process.pid)
        return sent

    def _tell(self, excess: Excess, reason: str, consequence: str) -> None:
        who = f"container {excess.name}" if excess.name else "the pod (or a container of it that was granted nothing)"
        message = (
            f"{who} uses {units.memory(-(-excess.used // MIB))} of GPU {excess.subject.gpu}, of which it was granted"
            f" {units.memory(excess.granted_mib)}, for more than {self.grace_s:g} s; {consequence}"
        )
        self.events.post(excess.pod.ref, (excess.subject.container, excess.subject.gpu), reason, message)

    def _done(self, action: str, result: str, excess: Excess, **more: Any) -> None:
        self.counts.watchdog(action, result)
        logs.event(
            _LOG,
            "above its grant",
            level=logging.WARNING,
            pod=str(excess.pod.ref),
            container=excess.name,
            gpu=excess.subject.gpu,
            granted_mib=excess.granted_mib,
            used_mib=excess.used // MIB,
            action=action,
            result=result,
            **more,
        )

    def _forget(self, guilty: Iterable[Excess]) -> None:
        """What was done to those that are not guilty any more: should they be again, it all begins again."""
        subjects, processes = set[Subject](), set[Process]()
        for excess in guilty:
            subjects.add(excess.subject)
            processes.update(excess.processes)
        self._reported &= subjects
        self._evicted = _only(self._evicted, {subject.pod for subject in subjects})
        self._signalled = _only(self._signalled, processes)


def _only(known: dict[T, float], keys: set[T]) -> dict[T, float]:
    return {key: value for key, value in known.items() if key in keys}
