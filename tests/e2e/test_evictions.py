"""`gpushare drain` and `defrag` on the real cluster: what the dry run says is what happens, as budgets allow."""

import threading
from collections import Counter
from typing import Final

from gpushare import names
from gpushare.model.request import Policy
from tests.e2e import checks
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.disturb import Background
from tests.e2e.system import Json, System, allocated, disruption_budget, gpushare, gpushare_json, make_pod, replica_set

NODE: Final = "node-1"


def uids(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def packed(name: str, gib: int) -> Json:
    """A pod that nothing recreates, on the node's fullest GPU."""
    return make_pod(name, gib, node=NODE, annotations={names.ANNOTATION_POLICY: Policy.BINPACK.value})


def test_a_gpu_is_drained_as_its_budget_allows_and_takes_pods_again(system: System, namespace: str) -> None:
    """Three replicas of 4 GiB and a bare pod on one GPU, of which the budget wants two replicas at any time."""
    system.create(namespace, replica_set(packed("web", 4), 3), disruption_budget(system, "web", 2), packed("alone", 3))
    pods = system.all_running(namespace, 4)
    watched = Watched(system, namespace, "app=web")
    [card] = {gpu for pod in pods for gpu in allocated(pod)["c0"]}  # binpack puts them on one GPU
    target = f"{NODE}/{card}"

    promised = gpushare_json(system, 3, "drain", target, "--dry-run")["planned"]
    assert Counter(each["step"] for each in promised) == {"evict": 1, "wait": 2, "stay": 1}
    assert {each["why"] for each in promised if each["step"] == "wait"} == {"budget web allows no more evictions now"}
    assert [each["name"] for each in promised if each["step"] == "stay"] == ["alone"]
    assert uids(system.pods(namespace)) == uids(pods)

    try:
        # The replacements start on other GPUs, and then the budget allows the next eviction.
        with Background(watched.run):
            done = gpushare_json(system, 3, "drain", target)
            now = system.all_running(namespace, 4)
            moved = uids([pod for pod in pods if pod["metadata"]["name"] != "alone"])
            system.eventually("the others are gone", lambda: watched.gone == moved)
        assert done["planned"] == promised
        assert [(each["name"], each["step"]) for each in done["left"]] == [("alone", "stay")]
        assert [pod["metadata"]["name"] for pod in now if card in allocated(pod)["c0"]] == ["alone"]
        assert watched.fewest == 2
        assert gpushare(system, "drain", target, "--force")[0] == 0
        assert not [pod for pod in system.pods(namespace) if card in allocated(pod)["c0"]]

        # It wants this GPU and no other, so it waits until it takes pods again.
        system.create(namespace, make_pod("wanting", 3, annotations={names.ANNOTATION_UUID: card}))
        system.eventually("told that it waits", lambda: system.events(namespace, "wanting"))
    finally:
        code, _, err = gpushare(system, "uncordon", target)
    assert code == 0, err
    (pod,) = system.running(namespace, "wanting")
    assert allocated(pod)["c0"] == (card,)
    checks.no_gpu_is_over_its_memory(system)


class Watched:
    """Every state of some pods from now on, none left out: what a budget counts of them."""

    def __init__(self, system: System, namespace: str, selector: str) -> None:
        self._api = system.api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = {"labelSelector": selector}
        listed = self._api.get(self._path, self._selector, timeout_s=30)
        self._version = listed["metadata"]["resourceVersion"]
        self._healthy = uids([pod for pod in listed["items"] if is_healthy(pod)])
        self.fewest = len(self._healthy)
        self.gone: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            since = {**self._selector, "resourceVersion": self._version}
            for event in self._api.watch(self._path, since, timeout_s=3):
                self._see(event["type"], event["object"])

    def _see(self, kind: str, pod: Json) -> None:
        assert kind in {"ADDED", "MODIFIED", "DELETED"}, pod
        uid, self._version = pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
        if kind == "DELETED":
            self.gone.add(uid)
        if kind != "DELETED" and is_healthy(pod):
            self._healthy.add(uid)
        else:
            self._healthy.discard(uid)
        self.fewest = min(self.fewest, len(self._healthy))


def is_healthy(pod: Json) -> bool:
    """As budgets count: it is ready, and no one has asked for its end."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def test_one_small_pod_moves_and_the_large_one_runs(system: System, namespace: str) -> None:
    """Each GPU but one has a bare pod that leaves 6 GiB; that one has 4 GiB of a workload, with a budget."""
    system.create(namespace, replica_set(make_pod("small", 4)), disruption_budget(system, "small", 0))
    [small] = system.all_running(namespace, 1)
    gpus = {gpu.uuid for inventory in system.inventories().values() for gpu in inventory.gpus}
    others = ({names.ANNOTATION_UUID: gpu} for gpu in gpus - {*allocated(small)["c0"]})
    system.run(namespace, *(make_pod(f"full-{i}", GPU_GIB - 6, annotations=each) for i, each in enumerate(others)))
    system.create(namespace, make_pod("large", GPU_GIB))
    system.eventually("it waits", lambda: system.events(namespace, "large"))

    promised = gpushare_json(system, 0, "defrag", f"{namespace}/large", "--dry-run")
    [eviction] = promised["plan"]["evictions"]
    assert eviction["name"] == small["metadata"]["name"]
    assert promised["plan"]["gpus"] == list(allocated(small)["c0"])
    assert uids([system.pod(namespace, eviction["name"])]) == uids([small])

    done = gpushare_json(system, 0, "defrag", f"{namespace}/large", "--yes")
    assert done["plan"] == promised["plan"]
    assert done["node"] == small["spec"]["nodeName"]
    [running] = system.running(namespace, "large")
    assert list(allocated(running)["c0"]) == promised["plan"]["gpus"]
    assert not uids([small]) & uids(system.all_running(namespace, 2 * GPUS_PER_NODE + 1)), "it has moved"
    for node in system.nodes():
        assert names.ANNOTATION_CORDON not in node["metadata"]["annotations"]
    checks.the_ledger_is_right(system)
