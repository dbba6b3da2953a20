"""What the soak runs beside each other: pods that come and go, faults of every part, and a witness of what is wrong."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.model.ledger import NodeLedger
from localcluster.process import ClusterError
from localcluster.provision import Say
from tests.e2e import checks, disturb
from tests.e2e.checks import Grants, seen_by
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import Json, System, is_incomplete, is_ready, make_pod

CHURN_S: Final = 0.7
MOST: Final = 36
SIZES: Final = ((1,), (1,), (3,), (7,), (GPU_GIB,), (2, 5), (1, 1, None), (4, None, 4))


@dataclass
class Churn:
    """Creates and deletes pods until it is stopped."""

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

Fault = Callable[[System, random.Random], None]


def kill_one(component: str) -> Fault:
    def kill(system: System, chance: random.Random) -> None:
        if pods := disturb.component_pods(system, component):
            pod = chance.choice(sorted(pods, key=lambda one: str(one["metadata"]["name"])))
            disturb.sigkill(pod)
            disturb.delete_now(system, pod)

    return kill


def restart_store(system: System) -> None:
    system.cluster.control.start_store()
    system.cluster.control.wait_ready()


def api_server(system: System, _chance: random.Random) -> None:
    system.cluster.control.api_server.kill()
    restart_store(system)


def etcd(system: System, _chance: random.Random) -> None:
    system.cluster.control.etcd.kill()
    restart_store(system)


def certificates(system: System, chance: random.Random) -> None:
    system.api.patch(SECRET, {"metadata": {"annotations": {"gpushare.dev/rotate": str(chance.random())}}})


KINDS: Final[Mapping[str, Fault]] = {
    "leader": lambda system, _chance: disturb.kill_leader(system),
    "plugin": lambda system, chance: disturb.kill_plugin(system, chance.choice(system.cluster.nodes).name),
    "webhook": kill_one("webhook"),
    "scheduler": kill_one("scheduler"),
    "kubelet": lambda system, chance: disturb.only_restart_kubelet(chance.choice(system.cluster.nodes)),
    "containerd": lambda system, chance: chance.choice(system.cluster.nodes).restart_containerd(),
    "api_server": api_server,
    "etcd": etcd,
    "certificates": certificates,
}


@dataclass
class Faults:
    """What breaks until it is stopped."""

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
        """Look until `stop`, or until something is wrong."""
        while not self.wrong and not stop.wait(LOOK_S):
            try:
                self.look()
            except (kube.KubeError, OSError, ValueError) as error:
                self.counts[f"rounds without an answer: {type(error).__name__}"] += 1

    def look(self) -> None:
        """Compare everything that can be compared now."""
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
        restarts = {status["name"]: status["restartCount"] for status in pod["status"]["containerStatuses"]}
        for container in pod["spec"]["containers"]:
            name = container["name"]
            key = (pod["metadata"]["uid"], name, restarts[name])
            if key in self._seen:
                continue
            printed = self.system.environment(pod, name)
            if printed is None:
                continue
            self._seen.add(key)
            self.counts["environments of containers"] += 1
            found, expected = seen_by(printed), grants.to(pod, name)
            if found != expected:
                self.wrong.append(f"{pod['metadata']['name']}/{name}: sees {found}; was granted {expected}")
