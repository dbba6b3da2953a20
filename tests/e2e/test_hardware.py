"""Nodes as they are in the field: how GPUs are chosen, very large nodes, GPUs that die and come back."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
import yaml

from gpushare import names
from tests.e2e import checks, gpus
from tests.e2e.conftest import PROFILE
from tests.e2e.system import PROMPT_S, Share, System, is_ready

pytestmark = pytest.mark.e2e

H200 = {"model": "NVIDIA H200", "memoryMiB": 143771, "count": 8}
TWO = {"model": "Tesla T4", "memoryMiB": 15360, "count": 2}
WHOLE = {"model": "NVIDIA A100-SXM4-40GB", "memoryMiB": 40960, "reservedMiB": 583}
INSTANCES = [{"profile": "1g.5gb", "memoryMiB": 4864, "count": 2}, {"profile": "3g.20gb", "memoryMiB": 19968}]
SPECIAL: Final = {
    "gpus": [TWO],
    "nodes": {"node-1": {"gpus": [WHOLE, {**WHOLE, "mig": INSTANCES}]}, "node-2": {"gpus": [H200]}},
}
USUAL: Final = yaml.safe_load(PROFILE)


class Cards:
    """The GPUs of the nodes, which are exchanged only for others."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._now = USUAL

    def become(self, profile: Mapping[str, Any]) -> None:
        """Afterwards the nodes have these. Pods that hold GPUs keep theirs only if the cards stay."""
        if profile != self._now:
            gpus.exchange(self._system, profile)
            self._now = profile


@pytest.fixture(scope="module")
def cards(system: System) -> Iterator[Cards]:
    found = Cards(system)
    yield found
    found.become(USUAL)


def test_binpack_puts_equal_pods_together_and_spread_apart(system: System, cards: Cards, namespace: str) -> None:
    cards.become(USUAL)
    policies = ("binpack", "spread")
    for i, policy in enumerate((*policies, *policies)):
        pod = Share(name=f"{policy}-{i}", gib=(3,), annotations={names.ANNOTATION_POLICY: policy}).document()
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": f"node-{1 + policies.index(policy)}"}
        system.create(namespace, pod)
        system.all_running(namespace, i + 1)
    chosen = {
        pod["metadata"]["name"]: pod["metadata"]["annotations"]["devices.gpushare.dev/c0"]
        for pod in system.pods(namespace)
    }
    assert chosen["binpack-0"] == chosen["binpack-2"]
    assert chosen["spread-1"] != chosen["spread-3"]


def test_gpus_that_an_administrator_takes_away_get_no_new_pods(system: System, cards: Cards, namespace: str) -> None:
    """By the node's annotation, and by Aliyun's ConfigMap with the blank entry that used to mean GPU 0."""
    cards.become(USUAL)
    kubectl = system.cluster.kubectl
    kubectl("annotate", "node", "node-1", "gpushare.dev/cordoned-gpus=0,1,2")
    kubectl("create", "configmap", "-n", "kube-system", "unhealthy-gpu-node-2", "--from-literal=gpus=1, 2,3,")
    try:
        system.create(namespace, *[Share(name=f"p{i}", gib=(20,)).document() for i in range(3)])
        expected = "free per GPU on node-1: cordoned, cordoned, cordoned, 6"
        names_of = [f"p{i}" for i in range(3)]
        system.eventually(
            "an event with the numbers",
            lambda: any(expected in "".join(system.events(namespace, name)) for name in names_of),
        )
        expected_gpus = {("node-1", "3"), ("node-2", "0")}
        system.eventually("the two GPUs that are left are used", lambda: used(system, namespace) == expected_gpus)
    finally:
        kubectl("annotate", "node", "node-1", "gpushare.dev/cordoned-gpus-")
        kubectl("delete", "configmap", "-n", "kube-system", "unhealthy-gpu-node-2")
    system.all_running(namespace, 3, timeout_s=PROMPT_S)


def test_eight_gpus_of_141_gib_are_shared_like_any_other(system: System, cards: Cards, namespace: str) -> None:
    cards.become(SPECIAL)
    status = system.api.get("/api/v1/nodes/node-2")["status"]["allocatable"]
    assert status[names.GPU_MEM] == "1120", "8 GPUs of 140 whole GiB"
    system.create(namespace, Share(name="all-eight", gib=(100,), annotations={names.ANNOTATION_GPUS: "8"}).document())
    system.create(namespace, Share(name="beside", gib=(40, 40)).document())
    pods = system.all_running(namespace, 2)
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    checks.no_gpu_is_over_its_memory(system)
    system.create(namespace, Share(name="most", gib=(140,)).document())
    system.cluster.kubectl("delete", "pod", "-n", namespace, "all-eight", "--wait=false")
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.running(namespace, "most"))
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_ledger_equals_the_pods(system)


def test_mig_instances_are_shared_beside_whole_gpus(system: System, cards: Cards, namespace: str) -> None:
    cards.become(SPECIAL)
    only, never = {names.ANNOTATION_MIG: "only"}, {names.ANNOTATION_MIG: "never"}
    pods = [
        Share(name="small", gib=(4,), annotations=only).document(),
        Share(name="large", gib=(19,), annotations=only).document(),
        Share(name="second", gib=(4,), annotations=only).document(),
        Share(name="whole", gib=(39,), annotations=never).document(),
        Share(name="too-large", gib=(20,), annotations=only).document(),
        Share(name="two", gib=(1,), annotations={**only, names.ANNOTATION_GPUS: "2"}).document(),
    ]
    for pod in pods:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    system.create(namespace, *pods)
    system.eventually("four of them run", lambda: len(used(system, namespace)) == 4)
    assert used(system, namespace) == {("node-1", number) for number in ("0", "80", "81", "82")}
    running = [pod for pod in system.pods(namespace) if is_ready(pod)]
    checks.every_container_sees_exactly_its_gpus(system, namespace, running)
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_ledger_equals_the_pods(system)
    refused = {"too-large": "needs 20 GiB on one GPU", "two": "which MIG instances cannot be"}
    for name, why in refused.items():
        system.eventually("an event with the reason", lambda: why in "".join(system.events(namespace, name)))  # noqa: B023 - called at once


def test_a_gpu_that_dies_takes_nothing_new_and_one_that_comes_back_does(
    system: System, cards: Cards, namespace: str
) -> None:
    dead = {"gpus": [TWO], "faults": [{"gpu": 0, "kind": "xid"}, {"gpu": 1, "kind": "xid"}]}
    half = {"gpus": [TWO], "nodes": {"node-1": dead, "node-2": {"gpus": [TWO], "faults": [{"gpu": 0, "kind": "xid"}]}}}
    cards.become(half)
    system.create(namespace, Share(name="first", gib=(10,)).document())
    (first,) = system.all_running(namespace, 1)
    assert first["spec"]["nodeName"] == "node-2", "the only node with a GPU that works"
    assert first["metadata"]["annotations"]["index.gpushare.dev/c0"] == "1"

    system.create(namespace, Share(name="second", gib=(10,)).document())
    expected = "needs 10 GiB on one GPU; free per GPU on node-2: unhealthy, 5 GiB"
    system.eventually("an event with the numbers", lambda: expected in "".join(system.events(namespace, "second")))

    cards.become({"gpus": [TWO]})
    system.eventually("it runs", lambda: is_ready(system.pod(namespace, "second")), timeout_s=PROMPT_S)
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.all_running(namespace, 2))
    checks.no_gpu_is_over_its_memory(system)


def used(system: System, namespace: str) -> set[tuple[str, str]]:
    """Node and number of the GPUs of all pods that run."""
    running = [pod for pod in system.pods(namespace) if is_ready(pod)]
    return {(pod["spec"]["nodeName"], pod["metadata"]["annotations"]["index.gpushare.dev/c0"]) for pod in running}
