"""Before a release: everything breaks at random while pods come and go, and nothing may ever be wrong.

`make soak SOAK_SECONDS=300 SOAK_SEED=7` breaks the same parts in the same order again. That its witness sees what is
wrong, and that its faults come in that order, is tested here without a cluster.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import pytest

from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import HandOver
from gpushare.model.ledger import NodeLedger
from gpushare.wire import allocations
from localcluster import installation
from localcluster.process import ClusterError, Process
from localcluster.provision import Say
from testing import builders
from tests.e2e import checks, disturb
from tests.e2e.checks import Grants
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import Json, System, is_incomplete, is_ready, make_pod, restarts

CHURN_S: Final = 0.7
MOST: Final = 36
SIZES: Final = ((1,), (1,), (3,), (7,), (GPU_GIB,), (2, 5), (1, 1, None), (4, None, 4))


@dataclass
class Churn:
    system: System
    namespace: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    _made: int = 0

    def run(self, stop: threading.Event) -> None:
        """A step at a time: another pod, or one less; pods that a node has rejected are deleted."""
        chance = random.Random(self.seed)
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        while not stop.wait(CHURN_S):
            try:
                pods = [pod for pod in self.system.pods(self.namespace) if "deletionTimestamp" not in pod["metadata"]]
                failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
                for pod in failed:
                    self.counts[f"rejected: {pod['status'].get('reason')}"] += 1
                    self._delete(pod)
                for pod in filter(is_incomplete, pods):
                    self.counts["came without the webhook"] += 1
                    self._delete(pod)
                if pods and chance.random() < len(pods) / MOST:
                    self._delete(chance.choice(pods))
                    self.counts["deleted"] += 1
                else:
                    self.system.api.create(path, self._pod(chance), timeout_s=30)
                    self.counts["created"] += 1
            except kube.NotFoundError:
                pass  # it went by itself
            except kube.KubeError as error:
                self.counts[f"refused: {type(error).__name__}"] += 1

    def _pod(self, chance: random.Random) -> Json:
        annotations = {names.ANNOTATION_GPUS: "2"} if chance.random() < 0.2 else {}
        size = chance.choice(SIZES)
        self._made += 1
        return make_pod(f"c{self._made:05}", *size, annotations=annotations)

    def _delete(self, pod: Json) -> None:
        body = {"gracePeriodSeconds": 1, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self.system.api.delete(kube.pod_path(self.namespace, pod["metadata"]["name"]), body, timeout_s=30)


SECRET: Final = f"/api/v1/namespaces/{names.NAMESPACE}/secrets/{names.WEBHOOK_SECRET}"
PAUSE_S: Final = (2.0, 14.0)
"""Between the end of one fault and the next; some come before the last one is over, others find all at rest."""

Fault = Callable[[System, random.Random], object]


def kill_one(component: str) -> Fault:
    def kill(system: System, chance: random.Random) -> None:
        if pods := disturb.component_pods(system, component):
            pod = chance.choice(sorted(pods, key=lambda one: str(one["metadata"]["name"])))
            disturb.kill(system, pod)

    return kill


def restart(system: System, store: Process) -> None:
    store.kill()
    system.cluster.control.start_store()
    system.cluster.control.wait_ready()


def rotate(system: System, chance: random.Random) -> None:
    system.api.patch(SECRET, {"metadata": {"annotations": {"gpushare.dev/rotate": str(chance.random())}}})


KINDS: Final[Mapping[str, Fault]] = {
    "leader": lambda system, _chance: disturb.kill_leader(system),
    "plugin": lambda system, chance: disturb.kill_plugin(system, chance.choice(system.cluster.nodes).name),
    "webhook": kill_one("webhook"),
    "scheduler": kill_one("scheduler"),
    "kubelet": lambda system, chance: disturb.only_restart_kubelet(chance.choice(system.cluster.nodes)),
    "containerd": lambda system, chance: chance.choice(system.cluster.nodes).restart_containerd(),
    "api_server": lambda system, _chance: restart(system, system.cluster.control.api_server),
    "etcd": lambda system, _chance: restart(system, system.cluster.control.etcd),
    "certificates": rotate,
}


@dataclass
class Faults:
    system: System
    seed: int
    say: Say
    done: Counter[str] = field(default_factory=Counter)
    impossible: Counter[str] = field(default_factory=Counter)
    """Kinds whose target was away because of an earlier fault."""

    def run(self, stop: threading.Event) -> None:
        """Break something, wait, and go on, until `stop`; every kind comes before any comes again."""
        # Apart, because how often a target is drawn depends on what is there.
        order, targets = random.Random(self.seed), random.Random(self.seed + 1)
        began = time.monotonic()
        round_: list[str] = []
        while not stop.is_set():
            round_ = round_ or order.sample(sorted(KINDS), len(KINDS))
            kind = round_.pop()
            self.say(f"fault after {time.monotonic() - began:5.0f} s: {kind}")
            try:
                KINDS[kind](self.system, targets)
            except (kube.KubeError, ClusterError, AssertionError) as error:
                self.impossible[kind] += 1
                self.say(f"not possible: {kind}: {str(error)[:200]}")
            else:
                self.done[kind] += 1
            stop.wait(order.uniform(*PAUSE_S))


LOOK_S: Final = 1.0
IN_DOUBT_S: Final = 180.0
"""So long the controller may hold more than the pods say: a Binding without an answer is in doubt for 120 s."""

Gpu = tuple[str, int]


@dataclass
class Witness:
    """What it has compared, and what was wrong."""

    system: System
    namespace: str
    clock: Callable[[], float] = time.monotonic
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _seen: set[tuple[str, str, int]] = field(default_factory=set)
    """Containers whose environment was compared: pod UID, container, restarts."""
    _differs_since: dict[Gpu, float] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        while not self.wrong and not stop.wait(LOOK_S):
            try:
                self.look()
            except (kube.KubeError, OSError, ValueError) as error:
                self.counts[f"rounds without an answer: {type(error).__name__}"] += 1

    def look(self) -> None:
        before = self.system.ledgers()
        self._sums(before)
        self._ledger(checks.held_of(before))
        grants = Grants({node: ledger.inventory for node, ledger in before.items()})
        for pod in self.system.pods(self.namespace):
            if is_ready(pod) and names.ANNOTATION_ALLOCATION not in pod["metadata"].get("annotations", {}):
                self.wrong.append(f"{pod['metadata']['name']} runs without a grant")
            elif is_ready(pod) and "deletionTimestamp" not in pod["metadata"]:
                self._environments(pod, grants)

    def _sums(self, ledgers: Mapping[NodeName, NodeLedger]) -> None:
        self.counts["sums of GPUs"] += sum(len(ledger.inventory.gpus) for ledger in ledgers.values())
        for node, ledger in ledgers.items():
            if over := ledger.over_committed():
                self.wrong.append(f"{node} is over its memory: {over}")

    def _ledger(self, expected: Mapping[Gpu, int]) -> None:
        told = checks.ledger_of_the_controller(self.system)
        self.counts["comparisons of the controller's ledger"] += 1
        now = self.clock()
        for gpu, units in expected.items():
            if told.get(gpu) == units:
                self._differs_since.pop(gpu, None)
            elif now - self._differs_since.setdefault(gpu, now) > IN_DOUBT_S:
                self.wrong.append(f"{gpu}: the controller says {told.get(gpu)}, the pods {units}, for {IN_DOUBT_S} s")

    def _environments(self, pod: Json, grants: Grants) -> None:
        for name, count in restarts(pod).items():
            key = (pod["metadata"]["uid"], name, count)
            printed = None if key in self._seen else self.system.environment(pod, name)
            if printed is None:
                continue
            self._seen.add(key)
            self.counts["environments of containers"] += 1
            if wrong := grants.wrong(pod, name, printed):
                self.wrong.append(wrong)


SECONDS: Final = float(os.environ.get("SOAK_SECONDS", "3600"))
SEED: Final = int(os.environ.get("SOAK_SEED") or time.time_ns() % 10**6)
SETTLED_S: Final = 900.0
"""A kubelet waits up to 300 s before it starts a container again that has ended several times."""


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 3 * SETTLED_S)
def test_no_container_sees_a_wrong_gpu_and_no_gpu_is_over_its_memory_whatever_breaks(
    system: System, namespace: str, say: Say
) -> None:
    say(f"soak of {SECONDS:.0f} s with SOAK_SEED={SEED}")
    faults, churn, witness = Faults(system, SEED, say), Churn(system, namespace, SEED), Witness(system, namespace)
    with disturb.Background(faults.run, churn.run, witness.run) as running:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not witness.wrong and not running.stop.wait(1):
            pass
    ended = time.monotonic()
    if not witness.wrong:
        installation.wait_ready(system.cluster, SETTLED_S)
        system.eventually("what waits fits nowhere", lambda: settled(system, namespace), timeout_s=SETTLED_S)
        witness.look()
    say(f"settled {time.monotonic() - ended:.0f} s after the last fault")
    say(f"faults: {dict(faults.done)}; not possible: {dict(faults.impossible)}")
    say(f"pods: {dict(churn.counts)}")
    say(f"compared: {dict(witness.counts)}")
    assert not witness.wrong, f"SOAK_SEED={SEED}: {witness.wrong}"
    checks.the_ledger_is_right(system)
    assert witness.counts["environments of containers"] > 0
    assert set(faults.done) == set(KINDS) or SECONDS < 300, "every kind of fault has happened"


def settled(system: System, namespace: str) -> bool:
    """Whether every pod either runs or has not been bound, or is about to be deleted."""
    pods = [pod for pod in system.pods(namespace) if pod["status"].get("phase") != "Failed"]
    return all(is_ready(pod) or is_incomplete(pod) or not pod["spec"].get("nodeName") for pod in pods)


def running_pod(name: str = "pod") -> Json:
    grant = builders.make_grant(0, gib=3)
    note = allocations.encode(builders.make_allocation(name, grant))
    pod = builders.make_pod(name=name, node="node-a", annotations={names.ANNOTATION_ALLOCATION: note}, phase="Running")
    pod["status"]["containerStatuses"] = [{"name": "main", "ready": True, "restartCount": 0}]
    return pod


def printed(devices: str) -> Mapping[str, str]:
    return {names.ENV_VISIBLE_DEVICES: devices, "PATH": "/bin"}


@dataclass
class Stub:
    listed: list[Json] = field(default_factory=lambda: [running_pod()])
    sees: Mapping[str, str] | None = field(default_factory=lambda: printed("GPU-0"))
    held: NodeLedger = field(default_factory=lambda: builders.make_ledger([15], {0: 3}))
    told: int = 3
    cluster: Any = None
    api: Any = None

    def pods(self, namespace: str, selector: str = "") -> list[Json]:
        return self.listed

    def environment(self, pod: Json, container: str) -> Mapping[str, str] | None:
        return self.sees

    def ledgers(self) -> Mapping[NodeName, NodeLedger]:
        return {NodeName("node-a"): self.held}

    def inspect(self) -> Json:
        return {"nodes": [{"name": "node-a", "devs": [{"id": "0", "usedGPU": self.told}]}]}


ONE: Final = "was granted GPUs GPU-0, nodes none, can open none"
TWO: Final = builders.make_ledger([15, 15], {0: 3})
CDI: Final = NodeLedger.of(replace(TWO.inventory, hand_over=HandOver.CDI), TWO.allocations.values())


def by_cdi(**sees: str) -> Mapping[str, Any]:
    """With a grant of the first of two GPUs."""
    return {"held": CDI, "sees": {**printed("GPU-0"), "DEVICES": "nvidia0", "OPENABLE": "0", **sees}}


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        ({}, ""),
        ({"sees": None}, ""),
        ({"sees": printed("GPU-1")}, f"pod/main: sees GPUs GPU-1, nodes none, can open none; {ONE}"),
        ({"sees": {}}, f"pod/main: sees GPUs ?, nodes none, can open none; {ONE}"),
        ({"listed": [{**running_pod(), "metadata": {"name": "pod"}}]}, "pod runs without a grant"),
        ({"held": builders.make_ledger([2], {0: 3})}, "node-a is over its memory"),
        (by_cdi(), ""),
        (by_cdi(NVIDIA_VISIBLE_DEVICES="void", GPUSHARE_VISIBLE_DEVICES="GPU-0"), ""),
        (by_cdi(NVIDIA_VISIBLE_DEVICES="all", GPUSHARE_VISIBLE_DEVICES="GPU-0"), "sees GPUs all beside GPU-0"),
        (by_cdi(DEVICES="nvidia1"), "nodes nvidia1, can open 0; was granted GPUs GPU-0, nodes nvidia0, can open 0"),
        (by_cdi(DEVICES="nvidia0,nvidia1"), "nodes nvidia0,nvidia1"),
        (by_cdi(DEVICES=""), "nodes none"),
        (by_cdi(OPENABLE="0,1"), "can open 0,1"),
        (by_cdi(OPENABLE=""), "can open none"),
    ],
)
def test_what_is_wrong_is_said(answers: Mapping[str, Any], wrong: str) -> None:
    found = Witness(cast("System", Stub(**answers)), "default")
    found.look()
    assert len(found.wrong) == bool(wrong)
    assert wrong in "".join(found.wrong)


def test_a_container_is_counted_once_and_not_before_it_has_printed() -> None:
    stub = Stub(sees=None)
    found = Witness(cast("System", stub), "default")
    counts = []
    for sees in (None, printed("GPU-0"), printed("GPU-0")):
        stub.sees = sees
        found.look()
        counts.append(found.counts["environments of containers"])
    assert (found.wrong, counts) == ([], [0, 1, 1])
    assert found.counts["comparisons of the controller's ledger"] == 3


@pytest.mark.parametrize(
    ("log", "expected"),
    [("HOSTNAME=pod\nNVIDIA_VISIBLE_DEVICES=GPU-0\nPATH=/bin\n", "GPU-0"), ("HOSTNAME=pod\n", None), ("", None)],
)
def test_output_counts_when_it_is_complete(log: str, expected: str | None) -> None:
    """A container runtime that is killed takes output along that it has not written."""

    class Api:
        def ask(self, path: str, *, timeout_s: float) -> kube.Reply:
            return kube.Reply(status=200, text=log)

    seen = System(cast("Any", None), cast("Any", Api())).environment(running_pod(), "main")
    assert (seen and seen[names.ENV_VISIBLE_DEVICES]) == expected


def test_a_controller_that_differs_is_wrong_only_when_it_stays_so() -> None:
    now, stub = [0.0], Stub()
    found = Witness(cast("System", stub), "default", clock=lambda: now[0])
    doubt = IN_DOUBT_S
    for at, told in ((0.0, 7), (doubt - 1, 3), (doubt - 1, 7), (2 * doubt - 1, 7)):
        now[0], stub.told = at, told
        found.look()
    assert found.wrong == []
    now[0] = 2 * doubt
    found.look()
    assert found.wrong == ["('node-a', 0): the controller says 7, the pods 3, for 180.0 s"]


def order(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    stop, said = threading.Event(), list[str]()

    def fault(_system: System, chance: object) -> None:
        if len(said) == 2 * len(KINDS):
            stop.set()

    monkeypatch.setitem(globals(), "KINDS", dict.fromkeys(KINDS, fault))
    monkeypatch.setitem(globals(), "PAUSE_S", (0.0, 0.0))
    Faults(cast("System", Stub()), seed, lambda line: said.append(line.rpartition(" ")[2])).run(stop)
    return said


def test_the_same_seed_breaks_the_same_parts_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    first = order(7, monkeypatch)
    assert order(7, monkeypatch) == first
    assert order(8, monkeypatch) != first
    assert sorted(first[: len(KINDS)]) == sorted(KINDS), "each once before any comes again"
