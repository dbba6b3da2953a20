"""Pods of a higher priority push others out, but only those whose GPU they can then use.

kube-scheduler 1.20.0 to 1.20.9 and 1.21.0 to 1.21.3 ask no extender about preemption (kubernetes/kubernetes#103019);
there, the test evicts in its place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pytest

from gpushare import names
from localcluster.provision import Version
from tests.apiserver import server as apiserver
from tests.apiserver.server import Json, Server, gpu_of

GPUS: Final = 4
WHOLE: Final = 16
HALF: Final = 8
PRIORITIES: Final = {"low": 10, "middle": 100, "high": 1000}
NODE: Final = "preempted"
PLAYED: Final = "none"
"""Scheduler of pods that the test schedules itself."""


@dataclass(frozen=True)
class Scheduler:
    """Anyone who evicts: kube-scheduler, or the test in its place."""

    server: Server
    namespace: str

    @property
    def asks(self) -> bool:
        return self.server.version >= Version(1, 22)

    def create(self, pod: Json) -> None:
        """A pod that needs others out of its way."""
        if not self.asks:
            pod["spec"]["schedulerName"] = PLAYED
        self.server.create_pod(self.namespace, pod)

    def makes_room(self, pod: str, given: Sequence[str]) -> Json:
        """Wait until the pod is bound. `given` are victims that free the node's sum, as kube-scheduler finds them."""
        if not self.asks:
            for name in self.victims(pod, given):
                self.server.delete_pod(self.namespace, name)
            uid = self.server.pod(self.namespace, pod)["metadata"]["uid"]
            binding = {"PodNamespace": self.namespace, "PodName": pod, "PodUID": uid, "Node": NODE}
            self.server.eventually("it is bound", lambda: not self.server.ask_extender("bind", binding)["Error"])
        [bound] = self.server.bound(self.namespace, pod)
        return bound

    def victims(self, pod: str, given: Sequence[str]) -> Sequence[str]:
        """Names of those whom the controller would evict in their place."""
        by_name = {one["metadata"]["name"]: one["metadata"]["uid"] for one in self.server.pods(self.namespace)}
        meta = {"Pods": [{"UID": by_name[name]} for name in given], "NumPDBViolations": 0}
        arguments = {"Pod": self.server.pod(self.namespace, pod), "NodeNameToMetaVictims": {NODE: meta}}
        answer = self.server.ask_extender("preempt", arguments)["NodeNameToMetaVictims"]
        by_uid = {uid: name for name, uid in by_name.items()}
        return [by_uid[victim["UID"]] for victim in answer.get(NODE, {"Pods": []})["Pods"]]


@pytest.fixture(autouse=True)
def node(server: Server) -> Iterator[None]:
    with server.node(NODE, (WHOLE,) * GPUS):
        yield


@pytest.fixture(autouse=True)
def classes(server: Server) -> Iterator[None]:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, value in PRIORITIES.items():
        server.api.create(path, {"metadata": {"name": f"test-{name}"}, "value": value})
    yield
    for name in PRIORITIES:
        server.api.delete(f"{path}/test-{name}")


def pod(name: str, gib: int, priority: str, **labels: str) -> Json:
    return apiserver.pod(name, gib, node=NODE, labels=labels, priorityClassName=f"test-{priority}")


def create(server: Server, namespace: str, *made: Json) -> dict[str, str]:
    """Wait until they are bound; their names and GPUs."""
    for each in made:
        server.create_pod(namespace, each)
    found = server.bound(namespace, *[each["metadata"]["name"] for each in made])
    return {each["metadata"]["name"]: gpu_of(each) for each in found}


def staying(server: Server, namespace: str) -> set[str]:
    return {one["metadata"]["name"] for one in server.pods(namespace)}


def test_only_pods_of_one_gpu_are_pushed_out_and_no_more_than_needed(server: Server, namespace: str) -> None:
    """Every GPU of the node holds two halves: any two victims free the sum, only a pair on one GPU frees the GPU."""
    before = create(server, namespace, *[pod(f"low-{i}", HALF, "low") for i in range(2 * GPUS)])
    scheduler = Scheduler(server, namespace)
    scheduler.create(pod("high", WHOLE, "high"))
    # Two whose GPUs differ: what kube-scheduler, which counts the node's sum, may well choose.
    apart = [next(name for name in before if before[name] == gpu) for gpu in sorted(set(before.values()))[:2]]
    high = scheduler.makes_room("high", apart)
    gone = before.keys() - staying(server, namespace)
    assert len(gone) == 2
    assert {before[name] for name in gone} == {gpu_of(high)}


def test_a_node_where_no_gpu_can_be_freed_loses_no_one(server: Server, namespace: str) -> None:
    """Pods of the same priority hold one half of every GPU: pushing out all others would not make a whole one."""
    mates = [pod(f"mate-{i}", HALF, "high", team="mates") for i in range(GPUS)]
    for mate in mates:
        mate["metadata"]["annotations"] = {names.ANNOTATION_OTHER_GPU: "team=mates"}
    create(server, namespace, *mates)
    create(server, namespace, *[pod(f"low-{i}", HALF, "low") for i in range(GPUS)])
    scheduler = Scheduler(server, namespace)
    scheduler.create(pod("waits", WHOLE, "high"))
    if scheduler.asks:
        server.eventually("it was tried", lambda: "preemption: " in "".join(server.events(namespace, "waits")))
    assert scheduler.victims("waits", ["low-0", "low-1"]) == []
    assert len(staying(server, namespace)) == 2 * GPUS + 1


def test_pods_that_a_disruption_budget_protects_go_last(server: Server, namespace: str) -> None:
    group = "policy/v1" if server.version >= Version(1, 21) else "policy/v1beta1"
    path = f"/apis/{group}/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": "100%", "selector": {"matchLabels": {"team": "protected"}}}
    server.api.create(path, {"metadata": {"name": "protected"}, "spec": spec})
    fillers = create(server, namespace, *[pod(f"full-{i}", WHOLE, "high") for i in range(GPUS - 2)])
    create(server, namespace, pod("guarded", WHOLE, "low", team="protected"), pod("open", WHOLE, "middle"))
    made = f"{path}/protected"
    server.eventually("counted", lambda: "disruptionsAllowed" in server.api.get(made).get("status", {}))
    scheduler = Scheduler(server, namespace)
    scheduler.create(pod("high", WHOLE, "high"))
    scheduler.makes_room("high", ["open"])
    assert staying(server, namespace) == {"high", "guarded", *fillers}
