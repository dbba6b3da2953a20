"""What authors of pods are told, and how often: at once, then ever less often. Pure."""

from dataclasses import dataclass
from typing import Final

from gpushare import names
from gpushare.cluster import bypass
from gpushare.cluster.pod_records import Bound, Problem
from gpushare.identity import PodRef

_NOT_MUTATED: Final = (
    f"{names.WEBHOOK_SERVICE} did not change this pod when it was created, so its containers would not see the GPUs"
    " that they are given"
)
REASON_UNSCHEDULABLE: Final = "GpuShareUnschedulable"
REASON_WAITING: Final = "GpuShareWaiting"
REASON_NOT_MUTATED: Final = "GpuShareNotMutated"
REASON_WITHOUT_GPU: Final = "GpuShareWithoutGpu"
REASON_INVALID: Final = "GpuShareInvalidRequest"
REASON_REJECTED: Final = "GpuShareRejected"
REASON_BOUND_LATE: Final = "GpuShareBoundLate"
REASON_UNREADABLE: Final = "GpuShareUnreadableAllocation"
REASON_OVERRIDDEN: Final = "GpuShareDevicesOverridden"
FIRST_S: Final = 60.0
CAP_S: Final = 960.0
REPEAT_S: Final = 2700.0  # events live for an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class EventThrottle:
    at: float = float("-inf")  # monotonic seconds
    wait_s: float = FIRST_S  # how long to be silent after it
    text: str = ""

    def too_early(self, now: float) -> bool:
        return now - self.at < self.wait_s

    def after(self, text: str, now: float) -> "EventThrottle | None":
        """What was posted after this, or None if it is not the time."""
        if self.too_early(now) or (text == self.text and now - self.at < REPEAT_S):
            return None
        wait = min(self.wait_s * 2, CAP_S) if self.text else FIRST_S
        return EventThrottle(at=now, wait_s=wait, text=text)


NO_EVENT: Final = EventThrottle()


@dataclass(frozen=True, slots=True)
class Tell:
    pod: PodRef
    reason: str
    message: str


def invalid(pod: Bound, problem: str) -> Tell:
    message = f"it is on {pod.node} without GPUs, because what it asks for cannot be understood: {problem}"
    return Tell(pod.ref, REASON_INVALID, f"{message}; fix that in its manifest, then {bypass.again(pod.bypassed)}")


def waiting(pod: Bound, refusal: str) -> Tell:
    message = f"it came to {pod.node} without GPUs and waits there for room: {refusal}; to have it placed"
    return Tell(pod.ref, REASON_WAITING, f"{message} where there is room, {_elsewhere(pod)}")


def not_mutated(pod: Bound, who: str = "") -> Tell:
    """Its environment can never become right, and only its author recreates it: `who` says how, by its owner's kind."""
    message = f"{_NOT_MUTATED}; {who or bypass.again(None)} while {names.WEBHOOK_SERVICE} is running"
    return Tell(pod.ref, REASON_NOT_MUTATED, message)


def recreated(pod: Bound) -> Tell:
    message = f"{_NOT_MUTATED}; it is deleted now, so that its controller recreates it"
    return Tell(pod.ref, REASON_NOT_MUTATED, message)


def outdated(pod: Bound) -> Tell:
    message = f"{pod.node} handed GPUs over in another way when it came there, so its containers cannot start"
    return Tell(pod.ref, REASON_REJECTED, f"{message}; it is deleted now, so that its controller recreates it")


def without_gpu(pod: Bound) -> Tell:
    """It is too late for it: what its containers see was settled when they started."""
    started = f"its containers have started on {pod.node} without GPUs from {names.CONTROLLER_SERVICE}"
    return Tell(pod.ref, REASON_WITHOUT_GPU, f"{started}, and cannot be given any now; {_elsewhere(pod)}")


def _elsewhere(pod: Bound) -> str:
    return f"{bypass.again(pod.bypassed)} without spec.nodeName and with the scheduler {names.SCHEDULER}"


def rejected(pod: Bound) -> Tell:
    message = f"{pod.node} rejected it, as happens when a node starts again before its GPUs are reported: {pod.failed}"
    return Tell(pod.ref, REASON_REJECTED, f"{message}; {bypass.again(None)}")


def overridden(containers: str) -> str:
    """Its author chose devices, in containers whose names are given, comma-separated."""
    listed = containers.split(",")
    who = f"container{'s' if len(listed) > 1 else ''} {', '.join(listed)}"
    return (
        f"{who}: {names.ENV_VISIBLE_DEVICES} was replaced when the pod was created; a container sees the GPUs that it"
        " is given and no others; remove the variable from the pod's template"
    )


def unreadable(problem: Problem) -> str:
    if problem.counted:
        return f"its allocation cannot be read and is counted from its other annotations: {problem.why}"
    return (
        f"what this pod holds cannot be read, so its node takes no new pods: {problem.why}; delete it, or"
        " install the version of gpushare that bound it"
    )
