"""Every row of docs/request.md's tables: devices, environment, annotations, the node's ledger and the tables agree.

Each runs on a node of each way to hand GPUs over.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Final

import pytest

from gpushare import names
from gpushare.identity import NodeName
from gpushare.wire import requests
from localcluster.cluster import BUSYBOX_IMAGE
from release.pages.requests import EXAMPLES as ALL_EXAMPLES, RESOURCE_CONFIG, Example
from tests.e2e import checks, disturb
from tests.e2e.checks import Grants
from tests.e2e.conftest import PLACES, PROFILE, fresh_namespace
from tests.e2e.system import HOSTNAME, Json, System, shown_by_inspect

T4 = {"model": "Tesla T4", "memoryMiB": 15109}
SMALL = {"model": "NVIDIA A100-PCIE-10GB", "memoryMiB": 10 * 1024}
BIG = {"model": "NVIDIA A100-SXM4-80GB", "memoryMiB": 81920}
MIXED: Final = {"gpus": [SMALL, {**T4, "count": 2}, {**BIG, "count": 3}]}
"""Every node has GPUs of three kinds."""

EXAMPLES: Final = tuple(each for each in ALL_EXAMPLES if not each.request().shape.gpus.enforced)
"""Those that simulated GPUs can serve: nothing enforces a limit on them."""

PAIRS: Final = ("same", "other")
"""Examples that mean something only beside a second pod."""


def document(example: Example, name: str, place: str) -> Json:
    pod = example.pod()
    pod["metadata"] |= {"name": name}
    del pod["metadata"]["namespace"]
    pod["spec"]["containers"][0]["image"] = BUSYBOX_IMAGE
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    pod["spec"]["nodeSelector"] = {HOSTNAME: place}
    if example.name == "same":  # on a GPU with room for the second one
        pod["metadata"]["annotations"] |= {names.ANNOTATION_POLICY: "spread"}
    return pod


class Granted:
    """All examples, running on one node, and everything that is known about them."""

    def __init__(self, system: System, namespace: str, place: str) -> None:
        self.place = place
        pods = system.all_running(namespace, len(EXAMPLES) + len(PAIRS))
        self.pods: Mapping[str, Json] = {pod["metadata"]["name"]: pod for pod in pods}
        self.grants = Grants.of(system)
        self.environments = {pod: variables for (pod, _), variables in system.environments(namespace).items()}
        self.ledger = system.ledgers()[NodeName(place)]
        self.inspected = next(node for node in system.inspect()["nodes"] if node["name"] == place)
        self.table = shown_by_inspect(system, namespace)

    def devices(self, name: str) -> set[str]:
        return set(checks.seen_by(self.environments[name]).told.split(","))


def create(system: System, namespace: str, place: str) -> None:
    """One after another where the order decides: whole GPUs first, because shares would touch those that they need."""
    order = sorted(EXAMPLES, key=lambda example: example.name != "whole")
    for count, example in enumerate(order, 1):
        system.create(namespace, document(example, example.name, place))
        if example.name in (*PAIRS, "whole"):
            system.all_running(namespace, count)
    seconds = [document(example, f"{example.name}-2", place) for example in order if example.name in PAIRS]
    system.create(namespace, *seconds)


@pytest.fixture(scope="module")
def everything(system: System) -> Iterator[Mapping[str, Granted]]:
    with disturb.exchanged_gpus(system, MIXED, PROFILE), ExitStack() as stack:
        namespaces = {place: stack.enter_context(fresh_namespace(system, place)) for place in PLACES}
        for place, namespace in namespaces.items():
            create(system, namespace, place)
        granted = {place: Granted(system, namespace, place) for place, namespace in namespaces.items()}
        checks.the_ledger_is_right(system)
        yield granted


@pytest.fixture(params=PLACES)
def granted(everything: Mapping[str, Granted], request: pytest.FixtureRequest) -> Granted:
    return everything[request.param]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_all_that_tells_of_a_grant_tells_the_same(granted: Granted, example: Example) -> None:
    (request,) = example.request().shape.containers
    pod, ledger = granted.pods[example.name], granted.ledger
    notes, allocation = pod["metadata"]["annotations"], ledger.allocations[pod["metadata"]["uid"]]
    (grant,) = allocation.grants
    known = [ledger.inventory.by_uuid[uuid] for uuid in grant.gpus]

    # The decision is what was asked for.
    assert len(set(grant.gpus)) == request.gpu_count
    assert grant.memory_mib == min(request.need(gpu).memory_mib for gpu in known)
    assert (grant.compute_percent, grant.whole) == (request.compute_percent, request.whole)
    assert not any(example.request().shape.gpus.why_not(gpu) for gpu in known)

    # The annotations say it.
    assert notes["devices.gpushare.dev/main"] == ",".join(grant.gpus)
    assert notes["memory.gpushare.dev/main"] == str(grant.memory_mib)
    assert notes["index.gpushare.dev/main"] == ",".join(str(gpu.index) for gpu in known)

    # The container sees it.
    environment = granted.environments[example.name]
    assert checks.seen_by(environment) == granted.grants.to(pod, "main")
    limits = ",".join(f"{i}={grant.memory_mib}M" for i in range(request.gpu_count))
    assert environment.get(names.ENV_MPS_MEMORY_LIMIT) == (None if request.whole else limits)
    assert environment.get(names.ENV_MEMORY_MIB) == (None if request.whole else str(grant.memory_mib))
    percent = str(request.compute_percent) if request.compute_percent and not request.whole else None
    assert environment.get(names.ENV_MPS_THREAD_PERCENTAGE) == percent

    # The kubelet counts it.
    resource, amount = requests.counted(request, RESOURCE_CONFIG.unit)
    assert pod["spec"]["containers"][0]["resources"]["limits"][resource] == str(amount)

    # The controller's ledger and the table have it.
    held = {ledger.inventory.by_uuid[uuid].index: held.memory_mib for uuid, held in ledger.held(allocation).items()}
    reported = {
        device["id"]: entry["usedGPU"]
        for device in granted.inspected["devs"]
        for entry in device["pods"]
        if (entry["namespace"], entry["name"]) == (pod["metadata"]["namespace"], example.name)
    }
    assert reported == {index: ledger.inventory.unit.ceil(mib) for index, mib in held.items()}
    assert granted.table[example.name] == held


def test_pods_that_want_each_others_gpu_share_it_and_those_that_do_not_are_apart(granted: Granted) -> None:
    assert granted.devices("same") == granted.devices("same-2")
    assert not granted.devices("other") & granted.devices("other-2")


def test_a_mixed_node_counts_every_gpu_by_its_own_size(system: System, granted: Granted) -> None:
    ledger, node = granted.ledger, granted.inspected
    assert [ledger.inventory.unit.floor(gpu.memory_mib) for gpu in ledger.inventory.gpus] == [10, 14, 14, 80, 80, 80]
    assert (node["totalGPU"], [device["totalGPU"] for device in node["devs"]]) == (278, [10, 14, 14, 80, 80, 80])
    status = system.node(granted.place)["status"]["allocatable"]
    resources = (names.GPU_MEM, names.GPU_PERCENT, names.GPU, names.GPU_COUNT, names.GPU_CORE)
    assert [status[each] for each in resources] == ["278", "600", "6", "6", "600"]
