"""`gpushare drain` on the real cluster: one GPU is emptied as budgets allow, and the dry run says what then happens."""

import threading

import pytest

from gpushare import names
from gpushare.model.request import Policy
from tests.e2e import checks
from tests.e2e.background import Background
from tests.e2e.system import (
    Json,
    Share,
    System,
    allocated,
    disruption_budget,
    gpushare,
    gpushare_json,
    is_ready,
    replica_set,
)

pytestmark = pytest.mark.e2e
NODE = "node-1"


def test_a_gpu_is_drained_as_its_budget_allows_and_takes_pods_again(system: System, namespace: str) -> None:
    """Three replicas of 4 GiB and a bare pod on one GPU, of which the budget wants two replicas at any time."""
    system.create(
        namespace, replica_set(bare("web", gib=4), 3), disruption_budget(system, "web", 2), bare("alone", gib=3)
    )
    pods = system.all_running(namespace, 4)
    watched = Watched(system, namespace, "app=web")
    card = card_of(pods)
    others = [pod for pod in pods if card not in allocated(pod)["c0"]]
    assert not others, "binpack puts them on one GPU"
    evictable = f"{NODE}/{card}"

    promised = gpushare_json(system, 3, "drain", evictable, "--dry-run")["planned"]
    assert steps(promised) == {"evict": 1, "wait": 2, "stay": 1}
    assert {each["why"] for each in promised if each["step"] == "wait"} == {"budget web allows no more evictions now"}
    assert [each["name"] for each in promised if each["step"] == "stay"] == ["alone"]
    assert {pod["metadata"]["uid"] for pod in system.pods(namespace)} == {pod["metadata"]["uid"] for pod in pods}

    try:
        # The replacements start on other GPUs, and then the budget allows the next eviction.
        with Background(watched.run):
            done = gpushare_json(system, 3, "drain", evictable)
            now = system.all_running(namespace, 4)
            moved = {pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"] != "alone"}
            system.eventually("the others are gone", lambda: watched.gone == moved)
        assert done["planned"] == promised
        assert [(each["name"], each["step"]) for each in done["left"]] == [("alone", "stay")]
        assert [pod["metadata"]["name"] for pod in now if card in allocated(pod)["c0"]] == ["alone"]
        assert watched.fewest == 2
        assert gpushare(system, "drain", evictable, "--force")[0] == 0
        assert not [pod for pod in system.pods(namespace) if card in allocated(pod)["c0"]]

        # It wants this GPU and no other, so it waits until it takes pods again.
        wanting = bare("wanting", gib=3)
        wanting["metadata"]["annotations"][names.ANNOTATION_UUID] = card
        system.create(namespace, wanting)
        system.eventually("told that it waits", lambda: system.events(namespace, "wanting"))
    finally:
        code, _, err = gpushare(system, "uncordon", evictable)
    assert code == 0, err
    (pod,) = system.running(namespace, "wanting")
    assert allocated(pod)["c0"] == (card,)
    checks.no_gpu_is_over_its_memory(system)


def test_a_drain_that_is_never_allowed_says_so_and_evicts_no_one(system: System, namespace: str) -> None:
    system.create(namespace, replica_set(bare("db", gib=5), 2), disruption_budget(system, "db", 2))
    pods = system.all_running(namespace, 2)
    target = f"{NODE}/{card_of(pods)}"
    try:
        code, out, err = gpushare(system, "drain", target, "--timeout", "12")
        assert code == 3, err
        assert out.count("budget db allows no more evictions now") == 2
        assert "stays cordoned" in err
    finally:
        gpushare(system, "uncordon", target)
    assert {pod["metadata"]["uid"] for pod in system.pods(namespace)} == {pod["metadata"]["uid"] for pod in pods}
    assert all(is_ready(pod) for pod in system.pods(namespace))


class Watched:
    """Every state of some pods from now on, none left out: what a budget counts of them."""

    def __init__(self, system: System, namespace: str, selector: str) -> None:
        self._api = system.api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = {"labelSelector": selector}
        listed = self._api.get(self._path, self._selector, timeout_s=30)
        self._version = listed["metadata"]["resourceVersion"]
        self._healthy = {pod["metadata"]["uid"] for pod in listed["items"] if is_healthy(pod)}
        self.fewest = len(self._healthy)
        self.gone: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop`."""
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


def bare(name: str, *, gib: int) -> Json:
    """A pod that nothing recreates."""
    pod = Share(name=name, gib=(gib,), annotations={names.ANNOTATION_POLICY: Policy.BINPACK.value}).document()
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": NODE}
    return pod


def card_of(pods: list[Json]) -> str:
    """The UUID of the GPU on which the most of them are."""
    found = [gpu for pod in pods for gpu in allocated(pod)["c0"]]
    return max(set(found), key=found.count)


def steps(planned: list[Json]) -> dict[str, int]:
    """How many of each."""
    words = [each["step"] for each in planned]
    return {word: words.count(word) for word in words}
