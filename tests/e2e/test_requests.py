"""Every row of docs/reference/requests.md: environment, annotations, the node's ledger and the tables agree."""

import json
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from gpushare import names
from gpushare.identity import NodeName
from gpushare.model.ledger import NodeLedger
from gpushare.wire import parse_resources
from localcluster.cluster import BUSYBOX_IMAGE
from tests.docs.requests import EXAMPLES as ALL_EXAMPLES
from tests.docs.requests import RESOURCE_CONFIG, Example
from tests.e2e import checks, gpus, seen
from tests.e2e.conftest import PROFILE
from tests.e2e.seen import Grants
from tests.e2e.system import Json, System, shown_by_inspect

pytestmark = pytest.mark.e2e

T4 = {"model": "Tesla T4", "memoryMiB": 15109}
SMALL = {"model": "NVIDIA A100-PCIE-10GB", "memoryMiB": 10 * 1024}
BIG = {"model": "NVIDIA A100-SXM4-80GB", "memoryMiB": 81920}
MIXED: Final = {
    "gpus": [{**T4, "count": 10}],
    "nodes": {"node-1": {"gpus": [SMALL, {**T4, "count": 2}, {**BIG, "count": 3}]}},
}
"""node-1 has GPUs of three kinds, node-2 ten equal ones."""

EXAMPLES: Final = tuple(each for each in ALL_EXAMPLES if not each.request().shape.gpus.enforced)
"""Those that simulated GPUs can serve: nothing enforces a limit on them."""

PAIRS: Final = ("same", "other")
"""Examples that mean something only beside a second pod."""


def document(example: Example, name: str) -> Json:
    pod = example.pod()
    pod["metadata"] |= {"name": name}
    del pod["metadata"]["namespace"]
    pod["spec"]["containers"][0]["image"] = BUSYBOX_IMAGE
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    if example.name in PAIRS:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-2"}
    if example.name == "same":  # on a GPU with room for the second one
        pod["metadata"]["annotations"] |= {names.ANNOTATION_POLICY: "spread"}
    return pod


class Granted:
    """All examples, running, and everything that is known about them."""

    def __init__(self, system: System, namespace: str) -> None:
        pods = system.all_running(namespace, len(EXAMPLES) + len(PAIRS))
        self.pods: Mapping[str, Json] = {pod["metadata"]["name"]: pod for pod in pods}
        self.grants = Grants.of(system)
        self.environments = system.environments(namespace)
        self.ledgers = system.ledgers()
        self.inspected = system.inspect()
        self.table = shown_by_inspect(system, namespace)

    def ledger(self, name: str) -> NodeLedger:
        return self.ledgers[NodeName(self.pods[name]["spec"]["nodeName"])]

    def environment(self, name: str) -> Mapping[str, str]:
        return self.environments[name, "main"]

    def devices(self, name: str) -> set[str]:
        return set(seen.by(self.environment(name)).told.split(","))


@pytest.fixture(scope="module")
def granted(system: System) -> Iterator[Granted]:
    namespace = "e2e-requests"
    with gpus.exchanged(system, MIXED, PROFILE):
        system.cluster.kubectl("create", "namespace", namespace)
        account = ("get", "serviceaccount", "default", "-n", namespace)
        system.eventually("service account", lambda: system.cluster.kubectl(*account, check=False).returncode == 0)
        # Whole GPUs first: shares would touch the GPUs that they need.
        order = sorted(EXAMPLES, key=lambda example: example.name != "whole")
        for example in order:
            system.create(namespace, document(example, example.name))
            if example.name in (*PAIRS, "whole"):
                system.all_running(namespace, order.index(example) + 1)
        system.create(
            namespace, *[document(example, f"{example.name}-2") for example in order if example.name in PAIRS]
        )
        yield Granted(system, namespace)
        system.delete_all(namespace)
        system.cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_all_that_tells_of_a_grant_tells_the_same(granted: Granted, example: Example) -> None:
    (request,) = example.request().shape.containers
    pod, ledger = granted.pods[example.name], granted.ledger(example.name)
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
    environment = granted.environment(example.name)
    assert seen.by(environment) == granted.grants.to(pod, "main")
    limits = ",".join(f"{i}={grant.memory_mib}M" for i in range(request.gpu_count))
    assert environment.get(names.ENV_MPS_MEMORY_LIMIT) == (None if request.whole else limits)
    percent = str(request.compute_percent) if request.compute_percent and not request.whole else None
    assert environment.get(names.ENV_MPS_THREAD_PERCENTAGE) == percent

    # The kubelet counts it.
    resource, amount = parse_resources.counted(request, RESOURCE_CONFIG.unit)
    assert pod["spec"]["containers"][0]["resources"]["limits"][resource] == str(amount)

    # The controller's ledger and the table have it.
    held = {ledger.inventory.by_uuid[uuid].index: held.memory_mib for uuid, held in ledger.held(allocation).items()}
    (node,) = [node for node in granted.inspected["nodes"] if node["name"] == allocation.node]
    reported = {
        device["id"]: entry["usedGPU"]
        for device in node["devs"]
        for entry in device["pods"]
        if (entry["namespace"], entry["name"]) == (pod["metadata"]["namespace"], example.name)
    }
    assert reported == {index: ledger.inventory.unit.ceil(mib) for index, mib in held.items()}
    assert granted.table[example.name] == held


def test_no_gpu_is_over_committed_and_the_controllers_ledger_is_right(system: System, granted: Granted) -> None:
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_ledger_equals_the_pods(system)


def test_pods_that_want_each_others_gpu_share_it_and_those_that_do_not_are_apart(granted: Granted) -> None:
    assert granted.devices("same") == granted.devices("same-2")
    assert not granted.devices("other") & granted.devices("other-2")


def test_a_pod_of_percents_can_be_found_with_nano_gpus_words(system: System, granted: Granted) -> None:
    found = system.pods("e2e-requests", "nano-gpu/assume=true")
    assert [pod["metadata"]["name"] for pod in found] == ["percent"]
    notes = found[0]["metadata"]["annotations"]
    assert (notes["nano-gpu/assume"], notes["nano-gpu/container-main"]) == ("true", notes["index.gpushare.dev/main"])


def test_a_pod_on_several_gpus_can_be_read_with_acks_words(granted: Granted) -> None:
    notes = granted.pods["total"]["metadata"]["annotations"]
    indices = notes["index.gpushare.dev/main"].split(",")
    assert json.loads(notes[names.ACK_ALLOCATION]) == {"0": dict.fromkeys(indices, 4)}


def test_a_mixed_node_counts_every_gpu_by_its_own_size(system: System, granted: Granted) -> None:
    ledger = granted.ledgers[NodeName("node-1")]
    assert [ledger.inventory.unit.floor(gpu.memory_mib) for gpu in ledger.inventory.gpus] == [10, 14, 14, 80, 80, 80]
    node = next(node for node in granted.inspected["nodes"] if node["name"] == "node-1")
    assert (node["totalGPU"], [device["totalGPU"] for device in node["devs"]]) == (278, [10, 14, 14, 80, 80, 80])
    status = system.api.get("/api/v1/nodes/node-1")["status"]["allocatable"]
    assert (status[names.GPU_MEM], status[names.GPU_PERCENT], status[names.GPU]) == ("278", "600", "6")
    assert (status[names.GPU_COUNT], status[names.GPU_CORE]) == ("6", "600")
