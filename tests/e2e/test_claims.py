"""GPUs that are shared by ResourceClaims (DRA) beside others of the same node that are shared by gpu-mem."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from uuid import uuid4

import pytest
import yaml

from gpushare import names
from gpushare.model.gpu import Gpu
from gpushare.wire.claims import device_name
from localcluster import process
from localcluster.process import ClusterError
from testing import pages
from testing.claims import template
from tests.e2e import checks, disturb
from tests.e2e.claims import (
    API,
    CLAIMED,
    NODE,
    Json,
    allocated,
    booked,
    claim_of,
    claiming,
    mode,
    need_server,
    of_claims,
    sharing_claims,
    slices,
)
from tests.e2e.conftest import GPU_GIB, PROFILE
from tests.e2e.system import FOUND, System, gpushare, gpushare_json, make_pod, restarts


@pytest.fixture(scope="module", autouse=True)
def _server(system: System) -> None:
    need_server(system)


@pytest.fixture(scope="module")
def dra(system: System) -> Iterator[Mapping[str, Gpu]]:
    """Two GPUs of the node for claims, by their names in slices, beside two for gpu-mem."""
    chosen = of_claims(system)
    with mode(system, ",".join(f"{gpu.uuid}=dra" for gpu in chosen.values()), CLAIMED):
        yield chosen


def test_each_container_sees_the_gpus_of_its_claim_beside_those_of_gpu_mem(
    system: System, dra: Mapping[str, Gpu], namespace: str
) -> None:
    beside = claiming("beside", "three")
    beside["spec"]["containers"].append({**make_pod("x", None)["spec"]["containers"][0], "name": "without"})
    system.create(namespace, template("three", 3), template("two-gpus", 4, count=2))
    system.create(namespace, beside, claiming("both", "two-gpus"), make_pod("mem", 3, node=NODE))
    pods = system.all_running(namespace, 3)
    checks.every_container_sees_exactly_its_gpus(system, namespace, [pods[2]])
    seen = system.environments(namespace)
    for pod, count in ((pods[0], 1), (pods[1], 2)):
        devices = [device for device, _ in allocated(claim_of(system, pod))]
        gpus = sorted((dra[device] for device in devices), key=lambda gpu: devices.index(device_name(gpu.uuid)))
        minors = ",".join(str(gpu.index) for gpu in sorted(gpus, key=lambda gpu: gpu.index))
        found = checks.seen_by(seen[pod["metadata"]["name"], "c0"])
        assert len({*devices}) == count
        assert found.told.split(",") == [gpu.uuid for gpu in gpus]
        assert (found.devices, found.openable) == (",".join(f"nvidia{each}" for each in minors.split(",")), minors)
    assert checks.seen_by(seen["beside", "without"]) == checks.NOTHING
    assert seen["beside", "c0"]["GPUSHARE_MEMORY_MIB"] == "3072"


def test_of_500_racing_claims_exactly_those_run_that_fit(
    system: System, dra: Mapping[str, Gpu], namespace: str
) -> None:
    system.create(namespace, template("one", 1))
    system.create(namespace, *(claiming(f"p{i}", "one") for i in range(500)))
    fit = CLAIMED * GPU_GIB
    system.eventually("all that fit run", lambda: len(system.ready_pods(namespace)) == fit)
    assert booked(system) == dict.fromkeys(dra, GPU_GIB << 30)
    seen = Counter(
        system.environments(namespace)[pod["metadata"]["name"], "c0"][names.ENV_GRANTED_DEVICES]
        for pod in system.ready_pods(namespace)
    )
    assert seen == {gpu.uuid: GPU_GIB for gpu in dra.values()}


def overbooked(namespace: str, name: str, device: str, gib: int) -> tuple[Json, Json]:
    """A claim, and a status that gives it memory of a device, whatever others have of it."""
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": template("x", gib)["spec"]["spec"],
    }
    result = {
        "driver": names.DRA_DRIVER,
        "pool": NODE,
        "device": device,
        "request": "gpu",
        "shareID": str(uuid4()),
        "consumedCapacity": {"memory": f"{gib}Gi", "compute": "0"},
    }
    return claim, {"allocation": {"devices": {"results": [result]}, "allocationTimestamp": "2026-01-01T00:00:00Z"}}


def test_a_second_schedulers_allocation_is_refused_with_numbers_until_there_is_room(
    system: System, dra: Mapping[str, Gpu], namespace: str
) -> None:
    system.create(namespace, template("twenty", 20))
    system.create(namespace, claiming("first", "twenty"))
    [first] = system.all_running(namespace, 1)
    [(device, _)] = allocated(claim_of(system, first))
    claim, status = overbooked(namespace, "forced", device, 20)
    path = f"{API}/namespaces/{namespace}/resourceclaims"
    made = system.api.create(path, claim)
    system.api.replace(f"{path}/forced/status", {**made, "status": status})
    second = claiming("second", "")
    second["spec"] |= {"nodeName": NODE, "resourceClaims": [{"name": "gpu", "resourceClaimName": "forced"}]}
    with sharing_claims(system):
        system.create(namespace, second)
    held_by = first["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    system.wait_told(namespace, "second", "has 6 GiB left, and 20 GiB are claimed", f"{namespace}/{held_by} (20 GiB)")
    assert not disturb.container_processes(system.pod(namespace, "second"))
    system.delete(namespace, "first")
    system.running(namespace, "second")


def test_claims_outlive_a_kubelet_that_is_killed_and_lost_specs(
    system: System, dra: Mapping[str, Gpu], namespace: str
) -> None:
    system.create(namespace, template("three", 3))
    system.create(namespace, claiming("a", "three"), claiming("b", "three"))
    before = system.all_running(namespace, 2)
    node = next(each for each in system.cluster.nodes if each.name == NODE)
    process.run([*node.enter, "sh", "-c", "rm /run/cdi/*"])
    disturb.restart_kubelet(system, node)
    system.eventually("slices", lambda: len(slices(system)) == CLAIMED)
    disturb.start_again(system, namespace, "a", "b")
    seen = system.environments(namespace)
    for pod in before:
        [(device, _)] = allocated(claim_of(system, pod))
        assert checks.seen_by(seen[pod["metadata"]["name"], "c0"]).told == dra[device].uuid


@pytest.mark.parametrize("kubelet", ["alive", "dead"])
def test_a_forced_deletion_never_makes_two_holders(
    system: System, dra: Mapping[str, Gpu], namespace: str, kubelet: str
) -> None:
    """The API server forgets the claim at once; its containers run on for a while, or until the kubelet is back."""
    system.create(namespace, template("most", 20))
    stubborn = claiming("old", "most")
    stubborn["spec"]["containers"][0]["command"] = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    stubborn["spec"]["terminationGracePeriodSeconds"] = 30
    system.create(namespace, stubborn, claiming("other", "most"))
    system.all_running(namespace, 2)
    old = system.pod(namespace, "old")
    system.create(namespace, claiming("new", "most"))
    node = next(each for each in system.cluster.nodes if each.name == NODE)
    if kubelet == "dead":
        node.stop_kubelet()
    system.delete(namespace, "old", force=True)
    system.eventually("the next is bound", lambda: system.pod(namespace, "new")["spec"].get("nodeName"))
    if kubelet == "dead":
        node.start_kubelet()

    def started() -> bool:
        holds = bool(disturb.container_processes(old))  # before the other is looked at: neither comes back
        new = system.pod(namespace, "new")
        runs = bool(new["status"].get("containerStatuses")) and bool(disturb.container_processes(new))
        assert not (holds and runs), "two pods hold 40 GiB of a GPU with 26 GiB"
        return runs

    system.eventually("the next runs", started)


def test_pods_that_name_one_claim_share_it(system: System, dra: Mapping[str, Gpu], namespace: str) -> None:
    claim, _ = overbooked(namespace, "shared", "", 3)
    system.create(namespace, claim)
    pods = [claiming(name, "") for name in ("a", "b")]
    for pod in pods:
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "shared"}]
    with pytest.raises(ClusterError, match="a claim that several pods name is counted once"):
        system.create(namespace, *pods)
    with sharing_claims(system):
        system.create(namespace, *pods)
    system.all_running(namespace, 2)
    assert sum(booked(system).values()) == 3 << 30
    seen = system.environments(namespace)
    assert seen["a", "c0"][names.ENV_GRANTED_DEVICES] == seen["b", "c0"][names.ENV_GRANTED_DEVICES]
    system.delete(namespace, "a")
    system.eventually("one is gone", lambda: len(system.pods(namespace)) == 1)
    disturb.start_again(system, namespace, "b")


def test_a_plugin_that_was_away_finds_all_as_it_was(system: System, dra: Mapping[str, Gpu], namespace: str) -> None:
    system.create(namespace, template("three", 3))
    system.create(namespace, claiming("stays", "three"), claiming("goes", "three"))
    system.all_running(namespace, 2)
    system.label(NODE, names.LABEL_SHARES, "false")
    try:
        system.eventually("slices are gone", lambda: not slices(system))  # half a minute later, by the kubelet
        system.delete(namespace, "goes")
        system.create(namespace, claiming("comes", "three"))
    finally:
        system.label(NODE, names.LABEL_SHARES, "true")
    system.running(namespace, "stays", "comes")
    system.eventually("it is gone", lambda: len(system.pods(namespace)) == 2)
    assert restarts(system.pod(namespace, "stays")) == {"c0": 0}
    assert sum(booked(system).values()) == 6 << 30


def test_a_plugin_that_cannot_reach_the_api_server_prepares_nothing_until_it_can(
    system: System, dra: Mapping[str, Gpu], namespace: str
) -> None:
    system.create(namespace, template("three", 3))
    system.create(namespace, claiming("before", "three"))
    system.all_running(namespace, 1)
    with disturb.cut_off(system, system.cluster.node(NODE), only_pods=True):
        system.create(namespace, claiming("while", "three"))
        system.wait_told(namespace, "while", "cannot be read")
        assert not disturb.container_processes(system.pod(namespace, "while"))
    before, while_ = system.running(namespace, "before", "while")
    assert restarts(before) == {"c0": 0}
    assert allocated(claim_of(system, while_)) == [
        (device, 3 << 30) for device, _ in allocated(claim_of(system, before))
    ]
    assert sum(booked(system).values()) == 6 << 30


def test_a_cordoned_gpu_takes_no_claims(system: System, dra: Mapping[str, Gpu], namespace: str) -> None:
    closed, open_ = sorted(dra.values(), key=lambda gpu: gpu.index)
    system.create(namespace, template("three", 3))
    system.cluster.kubectl("annotate", "node", NODE, f"{names.ANNOTATION_CORDON}={closed.uuid}")
    try:
        system.eventually("a taint", lambda: sum(bool(device.get("taints")) for device in slices(system)) == 1)
        system.create(namespace, *(claiming(f"p{i}", "three") for i in range(3)))
        for pod in system.all_running(namespace, 3):
            assert allocated(claim_of(system, pod)) == [(device_name(open_.uuid), 3 << 30)]
    finally:
        system.cluster.kubectl("annotate", "node", NODE, f"{names.ANNOTATION_CORDON}-")
    system.eventually("no taint", lambda: not any(device.get("taints") for device in slices(system)))


def test_a_pod_that_fits_on_no_gpu_is_told_the_numbers_and_so_is_who_asks(
    system: System, dra: Mapping[str, Gpu], namespace: str
) -> None:
    system.create(namespace, template("twenty", 20), template("five", 5))
    system.create(namespace, *(claiming(f"p{i}", "twenty") for i in range(CLAIMED)))
    system.all_running(namespace, CLAIMED)
    system.create(namespace, claiming("waits", "twenty"))
    free = ", ".join([str(GPU_GIB - 20)] * CLAIMED)
    numbers = f"needs 20 GiB on one GPU; free per GPU on {NODE}: {free} GiB"
    system.wait_told(namespace, "waits", numbers)
    told = gpushare_json(system, FOUND, "explain", f"{namespace}/waits")
    assert (told["headline"], numbers in told["summary"]) == ("waits; it fits on no node", True)
    assert gpushare_json(system, 0, "explain", f"{namespace}/p0")["summary"].startswith("it has 20 GiB of GPU ")
    code, shown, err = gpushare(system, "top", "--once", NODE)
    assert (code, f"{namespace}/p0" in shown) == (0, True), shown + err
    system.create(namespace, claiming("small", "five"))
    system.running(namespace, "small")
    system.delete(namespace, "p0")
    system.running(namespace, "waits")


def test_an_unhealthy_gpu_takes_no_claims_and_its_pods_are_told_and_stay(
    system: System, dra: Mapping[str, Gpu], namespace: str
) -> None:
    system.create(namespace, template("three", 3))
    system.create(namespace, claiming("before", "three"))
    [before] = system.all_running(namespace, 1)
    [(device, _)] = allocated(claim_of(system, before))
    usual = yaml.safe_load(PROFILE)
    dead = {"gpus": usual["gpus"], "faults": [{"gpu": dra[device].index, "kind": "xid"}]}
    with disturb.other_profile(system, {**usual, "nodes": {NODE: dead}}, usual):
        system.eventually("a taint", lambda: sum(bool(device.get("taints")) for device in slices(system)) == 1)
        system.create(namespace, *(claiming(f"p{i}", "three") for i in range(2)))
        for pod in system.running(namespace, "p0", "p1"):
            assert device not in [name for name, _ in allocated(claim_of(system, pod))]

        def told() -> bool:
            [status] = system.pod(namespace, "before")["status"]["containerStatuses"]
            return "Unhealthy" in str(status.get("allocatedResourcesStatus"))

        system.eventually("the pod's status says it", told)
        assert restarts(system.pod(namespace, "before")) == {"c0": 0}
        for effect in ({}, {"effect": "NoSchedule"}, {"effect": "NoExecute"}):
            tolerant = template("tolerant", 3)
            exactly = tolerant["spec"]["spec"]["devices"]["requests"][0]["exactly"]
            exactly["tolerations"] = [{"key": f"{names.DRA_DRIVER}/unhealthy", "operator": "Exists", **effect}]
            with pytest.raises(ClusterError, match="leads to GPUs that are unhealthy or cordoned"):
                system.create(namespace, tolerant)
    system.eventually("no taint", lambda: not any(device.get("taints") for device in slices(system)))


def test_a_claim_that_would_hold_the_scheduler_up_is_refused_and_others_are_bound_beside(
    system: System, dra: Mapping[str, Gpu], namespace: str
) -> None:
    request = template("x", 1)["spec"]["spec"]["devices"]["requests"][0]
    many = template("many", 1)
    many["spec"]["spec"]["devices"]["requests"] = [{**request, "name": f"r{i}"} for i in range(7)]
    with pytest.raises(ClusterError, match="may have 4 requests"):
        system.create(namespace, many)
    system.create(namespace, template("large", GPU_GIB + 1))
    system.create(namespace, *(claiming(f"waits-{i}", "large") for i in range(5)), make_pod("plain", None))
    system.running(namespace, "plain")


def test_the_pages_example_runs(system: System, dra: Mapping[str, Gpu], namespace: str) -> None:
    [block] = [each for each in pages.fenced("docs/claims.md") if each.language == "yaml"]
    made, pod = yaml.safe_load_all(block.text)
    container = pod["spec"]["containers"][0]
    container |= {key: make_pod("x")["spec"]["containers"][0][key] for key in ("image",)}
    del container["command"]
    system.create(namespace, made, pod)
    [running] = system.all_running(namespace, 1)
    assert [memory for _, memory in allocated(claim_of(system, running))] == [3 << 30]


def test_a_node_that_loses_its_power_has_its_claims_again(
    system: System, dra: Mapping[str, Gpu], namespace: str
) -> None:
    """Neither CDI specs nor sockets outlive it; the checkpoint does."""
    system.create(namespace, template("three", 3))
    system.create(namespace, claiming("a", "three"), claiming("goes", "three"))
    a, _ = system.all_running(namespace, 2)
    [(device, _)] = allocated(claim_of(system, a))
    node = next(each for each in system.cluster.nodes if each.name == NODE)
    for child in node.processes:  # the first one has all others of the node in its process namespace
        child.kill()
    system.delete(namespace, "goes", force=True)
    node.start()
    node.wait_kubelet()
    system.eventually("a has started again", lambda: disturb.has_started_again(system.pod(namespace, "a"), a))
    system.eventually("slices", lambda: len(slices(system)) == CLAIMED)
    assert checks.seen_by(system.environments(namespace)["a", "c0"]).told == dra[device].uuid
    assert sum(booked(system).values()) == 3 << 30
    system.eventually("what has ended is forgotten", lambda: prepared(system) == 3 << 30)


def prepared(system: System) -> int:
    """Bytes that the node counts."""
    found = re.findall(r"^gpushare_plugin_claimed_bytes.* (\S+)$", disturb.plugin_metrics(system, NODE), re.MULTILINE)
    return int(sum(map(float, found)))
