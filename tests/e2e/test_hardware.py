"""Nodes as they are in the field: very large and oversubscribed GPUs, MIG, and GPUs that are taken away or die."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest
import yaml

from gpushare import names
from tests.e2e import checks, disturb
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE, PROFILE
from tests.e2e.system import PROMPT_S, System, gpushare, make_pod, restarts

H200 = {"model": "NVIDIA H200", "memoryMiB": 143771, "count": 8}
TWO = {"model": "Tesla T4", "memoryMiB": 15360, "count": 2}
WHOLE = {"model": "NVIDIA A100-SXM4-40GB", "memoryMiB": 40960, "reservedMiB": 583}
INSTANCES = [{"profile": "1g.5gb", "memoryMiB": 4864, "count": 2}, {"profile": "3g.20gb", "memoryMiB": 19968}]
SPECIAL: Final = {
    "gpus": [TWO],
    "nodes": {"node-1": {"gpus": [WHOLE, {**WHOLE, "mig": INSTANCES}]}, "node-2": {"gpus": [H200]}},
}
USUAL: Final = yaml.safe_load(PROFILE)


Become = Callable[[Mapping[str, Any]], None]


@pytest.fixture(scope="module")
def become(system: System) -> Iterator[Become]:
    """Gives the nodes other GPUs, unless they have these. Pods keep theirs only if the cards stay."""
    had = [USUAL]

    def exchange(profile: Mapping[str, Any]) -> None:
        if profile != had[-1]:
            disturb.exchange_gpus(system, profile)
            had.append(profile)

    yield exchange
    exchange(USUAL)


def used(system: System, namespace: str) -> dict[str, tuple[str, str]]:
    """Node and numbers of the GPUs of all pods that run, by name."""
    return {
        pod["metadata"]["name"]: (pod["spec"]["nodeName"], pod["metadata"]["annotations"]["index.gpushare.dev/c0"])
        for pod in system.ready_pods(namespace)
    }


def test_gpus_that_an_administrator_takes_away_get_no_new_pods(system: System, become: Become, namespace: str) -> None:
    """By the node's annotation, and by Aliyun's ConfigMap with the blank entry that used to mean GPU 0."""
    become(USUAL)
    kubectl = system.cluster.kubectl
    kubectl("annotate", "node", "node-1", "gpushare.dev/cordoned-gpus=0,1,2")
    kubectl("create", "configmap", "-n", "kube-system", "unhealthy-gpu-node-2", "--from-literal=gpus=1, 2,3,")
    try:
        system.create(namespace, *[make_pod(f"p{i}", 20) for i in range(3)])
        expected = "free per GPU on node-1: cordoned, cordoned, cordoned, 6"
        system.eventually("an event with the numbers", lambda: expected in "".join(system.events(namespace)))
        left = {("node-1", "3"), ("node-2", "0")}
        system.eventually("the two GPUs that are left are used", lambda: {*used(system, namespace).values()} == left)
    finally:
        kubectl("annotate", "node", "node-1", "gpushare.dev/cordoned-gpus-")
        kubectl("delete", "configmap", "-n", "kube-system", "unhealthy-gpu-node-2")
    system.all_running(namespace, 3, timeout_s=PROMPT_S)


@contextmanager
def oversubscribed(system: System, gib: int) -> Iterator[None]:
    """Node 1 by half, by a label, which its plugin reads now and then."""

    def offers(gib: int) -> bool:
        return disturb.offered(system, "node-1") == gib * GPUS_PER_NODE

    system.label("node-1", names.LABEL_OVERSUBSCRIPTION, "1.5")
    try:
        system.eventually("the node offers half as much again", lambda: offers(gib))
        yield
    finally:
        system.label("node-1", names.LABEL_OVERSUBSCRIPTION, None)
    system.eventually("the node offers what it has", lambda: offers(GPU_GIB))


def test_pods_hold_more_than_a_gpu_has_but_none_that_refuses_that(
    system: System, become: Become, namespace: str
) -> None:
    """One that refuses goes elsewhere, commands say so, and nothing is taken back."""
    become(USUAL)
    grantable, held = GPU_GIB * 3 // 2, 2 * GPU_GIB - 16
    here = {names.ANNOTATION_UUID: system.inventories()["node-1"].gpus[0].uuid}
    never = {names.ANNOTATION_OVERSUBSCRIPTION: "never"}
    with oversubscribed(system, grantable):
        a, b = (make_pod(name, GPU_GIB - less, annotations=here) for name, less in {"a": 6, "b": 10}.items())
        *_, elsewhere = system.run(namespace, a, b, make_pod("elsewhere", 2, annotations=never))
        system.create(namespace, make_pod("nowhere", 2, annotations={**never, **here}))
        assert elsewhere["spec"]["nodeName"] == "node-2"
        system.wait_told(namespace, "nowhere", "oversubscribed")
        _, shown, _ = gpushare(system, "inspect", "node-1")
        assert f"node-1  0    1.5               {held}/{grantable}/{GPU_GIB}" in shown
        _, told, _ = gpushare(system, "explain", "a", "-n", namespace)
        percent = held * 100 // GPU_GIB
        assert f"{held} of {GPU_GIB} GiB ({percent}%), oversubscribed up to {grantable} GiB" in told
        _, found, _ = gpushare(system, "doctor")
        assert "oversubscribed by 1.5" in found
    # The pods run on, and only new ones find no room.
    assert [restarts(pod) for pod in system.running(namespace, "a", "b")] == [{"c0": 0}, {"c0": 0}]
    system.create(namespace, make_pod("late", 1, annotations=here))
    system.wait_told(namespace, "late", "free per GPU")
    disturb.start_again(system, namespace, "a", "b")


def test_eight_gpus_of_141_gib_are_shared_like_any_other(system: System, become: Become, namespace: str) -> None:
    become(SPECIAL)
    assert disturb.offered(system, "node-2") == 1120, "8 GPUs of 140 whole GiB"
    all_eight = make_pod("all-eight", 100, annotations={names.ANNOTATION_GPUS: "8"})
    checks.run_and_see_their_gpus(system, namespace, all_eight, make_pod("beside", 40, 40))
    checks.no_gpu_is_over_its_memory(system)
    system.create(namespace, make_pod("most", 140))
    system.delete(namespace, "all-eight")
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.running(namespace, "most"))
    checks.the_ledger_is_right(system)


def test_mig_instances_are_shared_beside_whole_gpus(system: System, become: Become, namespace: str) -> None:
    become(SPECIAL)
    only = {names.ANNOTATION_MIG: "only"}
    instances = [
        make_pod(name, gib, node="node-1", annotations=only)
        for name, gib in {"small": 4, "large": 19, "second": 4}.items()
    ]
    whole = make_pod("whole", 39, node="node-1", annotations={names.ANNOTATION_MIG: "never"})
    checks.run_and_see_their_gpus(system, namespace, *instances, whole)
    assert {*used(system, namespace).values()} == {("node-1", number) for number in ("0", "80", "81", "82")}
    checks.the_ledger_is_right(system)
    system.create(namespace, make_pod("too-large", 20, node="node-1", annotations=only))
    system.create(namespace, make_pod("two", 1, node="node-1", annotations={**only, names.ANNOTATION_GPUS: "2"}))
    system.wait_told(namespace, "too-large", "needs 20 GiB on one GPU")
    system.wait_told(namespace, "two", "which MIG instances cannot be")


def test_a_gpu_that_dies_takes_nothing_new_and_one_that_comes_back_does(
    system: System, become: Become, namespace: str
) -> None:
    first, second = {"gpu": 0, "kind": "xid"}, {"gpu": 1, "kind": "xid"}
    dead, half = {"gpus": [TWO], "faults": [first, second]}, {"gpus": [TWO], "faults": [first]}
    become({"gpus": [TWO], "nodes": {"node-1": dead, "node-2": half}})
    system.run(namespace, make_pod("first", 10))
    assert used(system, namespace) == {"first": ("node-2", "1")}, "the only GPU that works"

    system.create(namespace, make_pod("second", 10))
    system.wait_told(namespace, "second", "needs 10 GiB on one GPU; free per GPU on node-2: unhealthy, 5 GiB")

    become({"gpus": [TWO]})
    pods = system.running(namespace, "first", "second", timeout_s=PROMPT_S)
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    checks.no_gpu_is_over_its_memory(system)
