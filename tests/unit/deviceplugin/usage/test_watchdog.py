"""What is done about containers above their grant."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from deviceplugin.cgroups import Process, Procfs
from deviceplugin.limits.node import AdvisoryBackend
from deviceplugin.node import Refusals
from deviceplugin.settings import Settings
from deviceplugin.usage import join
from deviceplugin.usage.join import WatchdogPolicy
from deviceplugin.usage.loop import Watchdog
from gpushare import names
from gpushare.identity import GpuUuid
from gpushare.kube import api as kube
from gpushare.model.gpu import Limit
from testing.builders import Json, make_grant, make_inventory
from testing.clock import ManualClock
from testing.deviceplugin.build import fields_of
from testing.deviceplugin.limits import start_of
from testing.deviceplugin.usage import holding, process, running_pod, sample, uid
from testing.fakes.kube import FakeKube

INVENTORY = make_inventory(16, 16)
POD = running_pod(1, make_grant(0), ids={"main": 11})
EVICTION = "/api/v1/namespaces/default/pods/pod-1/eviction"


@dataclass
class Machine(Procfs):
    processes: dict[int, Process] = field(default_factory=dict)
    sent: list[tuple[int, str]] = field(default_factory=list)
    allowed: bool = True

    def read(self, pid: int) -> Process | None:
        return self.processes.get(pid)

    @contextmanager
    def hold(self, pid: int) -> Iterator[Callable[[signal.Signals], None]]:
        if pid not in self.processes:
            raise ProcessLookupError
        if not self.allowed:
            raise PermissionError
        yield lambda number: self.sent.append((pid, number.name))


class Scene:
    """A watchdog with a grace period of 30 s over samples of every 10 s."""

    def __init__(
        self, policy: WatchdogPolicy = WatchdogPolicy.REPORT, *, tolerance_mib: int = 0, pod: Json = POD
    ) -> None:
        self.api, self.clock, self.machine = FakeKube(), ManualClock(), Machine()
        self.pod = pod
        self.api.seed("/api/v1/namespaces/default", {"metadata": {"name": "default"}})
        self.api.seed("/api/v1/namespaces/default/pods/pod-1", pod)
        self.dog = Watchdog(
            policy=policy,
            grace_s=30.0,
            gap_s=20.0,
            tolerance_mib=tolerance_mib,
            api=self.api,
            table=self.machine,
            events=Refusals(api=self.api, clock=self.clock),
            clock=self.clock,
        )

    def look(self, *mib: int | None, after: float = 10.0, container: int = 11, gpu: bool = True) -> int:
        """A sample after so many seconds, with processes 100, 101, ... that use so much of GPU-0."""
        self.clock.at += after
        processes = [process(100 + i, 1, container) for i in range(len(mib))]
        self.machine.processes = {each.pid: each for each in processes}
        lists = {"GPU-0": dict(zip(self.machine.processes, mib, strict=True)) if gpu else None, "GPU-1": {}}
        pods = holding([self.pod], INVENTORY)
        return self.dog.look(join.join(sample(lists, *processes, at=self.clock.at), pods))

    def looks(self, times: int, *mib: int | None, **how: Any) -> list[int]:
        return [self.look(*mib, **how) for _ in range(times)]

    def events(self) -> list[str]:
        """Their reasons, the oldest first; the API server sorts by name."""
        found = self.api.objects("/api/v1/namespaces/default/events")
        return [each["reason"] for each in sorted(found, key=lambda each: int(each["metadata"]["resourceVersion"]))]

    def asked(self) -> list[Any]:
        return [call.body for call in self.api.calls if call.path == EVICTION]


def test_a_container_is_told_once_when_the_grace_period_is_over(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    assert scene.looks(6, 2000, 1073) == [0, 0, 0, 1, 1, 1]
    (event,) = scene.api.objects("/api/v1/namespaces/default/events")
    assert event["reason"] == "GpuShareOverGrant"
    assert event["message"] == (
        "container main uses 3073 MiB of GPU GPU-0, of which it was granted 3072 MiB, for more than 30 s;"
        " use less, or ask for more"
    )
    assert scene.dog.actions == {("report", "done"): 1}
    assert len(fields_of(caplog, "above its grant")) == 1
    assert scene.machine.sent == []
    assert scene.asked() == []


def test_who_has_a_gpu_alone_may_use_what_rounding_left_out() -> None:
    """The driver counts in bytes, and a whole GPU in MiB, rounded down."""
    pod = running_pod(1, replace(make_grant(0, gib=16), whole=True), ids={"main": 11})
    scene = Scene(WatchdogPolicy.KILL, pod=pod)
    assert scene.looks(6, 16385) == [0] * 6
    assert scene.looks(6, 16385, container=99) == [0] * 6


def uses(*mib: int | None, **how: Any) -> Callable[[Scene], int]:
    return lambda scene: scene.look(*mib, **how)


ABOVE = uses(4000)


@pytest.mark.parametrize(
    ("looks", "over"),
    [
        ([*[ABOVE] * 3, uses(3000), *[ABOVE] * 4], 7),
        ([*[ABOVE] * 3, uses(4000, after=21), *[ABOVE] * 3], 6),
        ([*[ABOVE] * 3, uses(4000, gpu=False), ABOVE], 4),
        ([uses(None, 3073)] * 4, 3),
        ([uses(None, 3072)] * 4, 4),
    ],
    ids=["a moment below", "a long gap", "no answer for a moment", "one not told of", "none above by what is told"],
)
def test_a_sample_within_the_grant_or_a_gap_begins_it_again_and_what_is_not_known_does_not(
    looks: list[Callable[[Scene], int]], over: int
) -> None:
    """Args: over: the first look at which it is above for too long."""
    scene = Scene()
    assert [look(scene) for look in looks] == [0] * over + [1] * (len(looks) - over)


def test_a_container_that_holds_nothing_counts_with_its_pod() -> None:
    scene = Scene(WatchdogPolicy.KILL)
    assert scene.looks(6, 3072, container=99) == [0] * 6
    assert scene.looks(4, 3073, container=99) == [0, 0, 0, 1]
    event, _ = scene.api.objects("/api/v1/namespaces/default/events")
    assert event["message"].startswith("the pod (or a container of it that was granted nothing) uses 3073 MiB")
    assert scene.machine.sent == [(100, "SIGTERM")]


@pytest.mark.parametrize("version", ["policy/v1", "policy/v1beta1"])
def test_exactly_this_pod_is_evicted_and_again_if_it_stays(version: str) -> None:
    scene = Scene(WatchdogPolicy.EVICT)
    scene.api.evictions = version
    scene.looks(7, 4000)
    evictions = [body for body in scene.asked() if body["apiVersion"] == version]
    assert [body["deleteOptions"]["preconditions"]["uid"] for body in evictions] == [uid(1)] * 2  # 30 s later again
    assert scene.dog.actions == {("report", "done"): 1, ("evict", "done"): 2}
    assert scene.events() == ["GpuShareOverGrant", "GpuShareEvicted"]
    assert scene.machine.sent == []


def test_another_pod_of_the_same_name_is_not_evicted() -> None:
    scene = Scene(WatchdogPolicy.EVICT)
    scene.api.vanish("/api/v1/namespaces/default/pods/pod-1")
    other = running_pod(2, make_grant(0))
    other["metadata"]["name"] = "pod-1"
    scene.api.seed("/api/v1/namespaces/default/pods/pod-1", other)
    scene.looks(4, 4000)
    assert "deletionTimestamp" not in scene.api.read("/api/v1/namespaces/default/pods/pod-1")["metadata"]
    assert scene.dog.actions["evict", "gone"] == 1
    assert scene.events() == ["GpuShareOverGrant"]


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (kube.TooManyRequestsError("Cannot evict pod as it would violate the pod's disruption budget."), "refused"),
        (kube.ForbiddenError("pods/eviction is forbidden"), "failed"),
        (kube.UnreachableError("timed out"), "failed"),
    ],
)
def test_an_eviction_that_is_refused_is_tried_again(
    error: kube.KubeError, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(WatchdogPolicy.EVICT)
    scene.api.fail_next(lambda call: call.path == EVICTION, error)
    scene.looks(7, 4000)
    assert scene.dog.actions == {("report", "done"): 1, ("evict", result): 1, ("evict", "done"): 1}
    (failed,) = [each for each in fields_of(caplog, "above its grant") if each["result"] == result]
    assert str(error) in failed["problem"]
    if isinstance(error, kube.ForbiddenError):
        assert failed["problem"].endswith("; apply the component manifests/watchdog-evict")


def test_processes_are_asked_to_end_and_then_made_to() -> None:
    scene = Scene(WatchdogPolicy.KILL)
    scene.looks(4, 2000, 2000)
    assert scene.machine.sent == [(100, "SIGTERM"), (101, "SIGTERM")]
    scene.look(2000, 2000, after=9)
    assert len(scene.machine.sent) == 2
    scene.look(2000, 2000, after=1)
    assert scene.machine.sent[2:] == [(100, "SIGKILL"), (101, "SIGKILL")]
    assert scene.dog.actions == {("report", "done"): 1, ("terminate", "done"): 2, ("kill", "done"): 2}
    assert scene.events() == ["GpuShareOverGrant", "GpuShareKilled"]
    assert scene.asked() == []


def test_a_process_that_gives_its_memory_back_is_not_killed_nor_one_that_must_not_be_signalled() -> None:
    scene = Scene(WatchdogPolicy.KILL)
    for mib in (4000, 4000, 4000, 4000, 3000, 3000):
        scene.look(mib)
    assert scene.machine.sent == [(100, "SIGTERM")]
    scene = Scene(WatchdogPolicy.KILL)
    scene.machine.allowed = False
    scene.looks(4, 4000)
    assert scene.dog.actions == {("report", "done"): 1, ("terminate", "failed"): 1}
    assert scene.events() == ["GpuShareOverGrant"]


def test_one_that_is_above_its_grant_once_more_is_asked_to_end_again_before_it_is_killed() -> None:
    scene = Scene(WatchdogPolicy.KILL)
    for mib in (4000, 4000, 4000, 4000, 3000, 4000, 4000, 4000, 4000):
        scene.look(mib)
    assert scene.machine.sent == [(100, "SIGTERM")] * 2
    assert scene.dog.actions == {("report", "done"): 2, ("terminate", "done"): 2}


@pytest.mark.parametrize(
    ("node", "namespace", "author", "does"),
    [
        ("report", "", "", "report"),
        ("report", "evict", "", "evict"),
        ("report", "", "kill", "kill"),
        ("report", "evict", "kill", "kill"),
        ("kill", "report", "off", "kill"),
        ("evict", "off", "report", "evict"),
        ("report", "nonsense", "nonsense", "report"),
    ],
)
def test_the_strictest_policy_counts(node: str, namespace: str, author: str, does: str) -> None:
    pod = running_pod(1, make_grant(0), ids={"main": 11}, policy=author)
    scene = Scene(WatchdogPolicy.parse(node), pod=pod)
    labels = {"gpushare.dev/watchdog": namespace}
    scene.api.edit("/api/v1/namespaces/default", lambda found: found["metadata"].update(labels=labels))
    scene.looks(4, 4000)
    assert (bool(scene.asked()), bool(scene.machine.sent)) == (does == "evict", does == "kill")


def test_a_namespace_that_cannot_be_read_changes_nothing_and_is_read_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(WatchdogPolicy.REPORT)
    scene.api.vanish("/api/v1/namespaces/default")
    scene.looks(12, 4000)
    assert len(fields_of(caplog, "namespace unread")) == 2
    scene.clock.at += 60.0
    scene.dog._asked_by("other")
    assert list(scene.dog._namespaces) == ["other"], "what is old is forgotten"
    assert scene.events() == ["GpuShareOverGrant"]


def test_a_slow_api_server_keeps_no_pod_from_its_turn() -> None:
    scene = Scene(WatchdogPolicy.REPORT)

    class Slow(Refusals):
        def post(self, pod: Any, about: Any, reason: Any, message: Any) -> None:
            scene.clock.at += 6.0
            told.append(pod.name)

    told: list[str] = []
    scene.dog.events = Slow(api=scene.api, clock=scene.clock)
    pods = [running_pod(number, make_grant(0), ids={"main": number + 10}) for number in range(1, 6)]
    processes = [process(number, number, number + 10) for number in range(1, 6)]
    at = scene.clock.at
    for step in range(7):
        held = holding(pods, INVENTORY)
        lists = {"GPU-0": dict.fromkeys(range(1, 6), 4000), "GPU-1": {}}
        scene.dog.look(join.join(sample(lists, *processes, at=at + 10 * step), held))
    assert told == [f"pod-{number}" for number in (1, 2, 3, 4, 5, 1, 2, 3)]  # two in each look


@pytest.mark.parametrize(
    ("policy", "held", "shown"),
    [
        (WatchdogPolicy.OFF, Limit.ADVISORY, Limit.ADVISORY),
        (WatchdogPolicy.REPORT, Limit.ADVISORY, Limit.ADVISORY),
        (WatchdogPolicy.EVICT, Limit.ADVISORY, Limit.WATCHDOG),
        (WatchdogPolicy.KILL, Limit.ADVISORY, Limit.WATCHDOG),
        (WatchdogPolicy.KILL, Limit.HAMI_CORE, Limit.HAMI_CORE),
        (WatchdogPolicy.KILL, Limit.CGROUP, Limit.CGROUP),
    ],
)
def test_a_watchdog_that_acts_is_shown_where_nothing_stronger_holds(
    policy: WatchdogPolicy, held: Limit, shown: Limit
) -> None:
    inventory = replace(INVENTORY, gpus=tuple(replace(gpu, limit=held) for gpu in INVENTORY.gpus))
    assert {gpu.limit for gpu in join.with_watchdog(inventory, policy).gpus} == {shown}
    assert [gpu.limit for gpu in join.with_watchdog(inventory, policy, [GpuUuid("GPU-1")]).gpus] == [shown, held]


def test_a_program_that_obeys_its_variables_is_left_alone_by_default() -> None:
    """They give a framework the whole grant, and CUDA's context comes on top of that."""
    assert tuple(map(str, WatchdogPolicy)) == names.WATCHDOG_POLICIES, "those of which the webhook knows"
    told = dict(AdvisoryBackend().prepare(start := start_of(gib=3), start.gpus).env)
    [gpu] = start.gpus
    tensors = int(float(told["XLA_PYTHON_CLIENT_MEM_FRACTION"]) * gpu.memory_mib)
    context = 500  # MiB, of PyTorch on an H100
    tolerance = Settings().watchdog_tolerance_mib
    scene, strict = Scene(WatchdogPolicy.KILL, tolerance_mib=tolerance), Scene(WatchdogPolicy.KILL)
    assert scene.looks(6, tensors + context) == [0] * 6
    assert strict.looks(4, tensors + context) == [0, 0, 0, 1]
    assert scene.looks(4, 3072 + tolerance + 1) == [0, 0, 0, 1]
