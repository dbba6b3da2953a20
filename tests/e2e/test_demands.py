"""What an administrator decides for nodes: how they hand GPUs over, and so the RuntimeClass of pods."""

from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from gpushare import names
from gpushare.cluster import node_records
from gpushare.model.gpu import GpuHealth
from gpushare.wire import hand_over
from localcluster import runtimes
from tests.e2e.system import Json, System, is_ready, make_pod, replica_set

LATE: Final = "gpushare.dev/e2e-late"
"""A label of nodes for which pods wait."""


def summary(system: System) -> str:
    """How all nodes hand over, by the nodes themselves."""
    return hand_over.summary(node_records.sharing(map(node_records.read, system.nodes())))


def wait_for(system: System, expected: str) -> None:
    """Wait until everybody knows how all nodes hand over."""
    path = hand_over.path(names.NAMESPACE)
    system.eventually(f"the nodes say {expected}", lambda: summary(system) == expected)
    system.eventually("the controller says so too", lambda: hand_over.word(system.api.get(path)) == expected)


@pytest.fixture
def relabelled(system: System) -> Iterator[Sequence[str]]:
    """Names of the nodes; they are labelled again as they were."""
    before = summary(system)
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in system.nodes()}
    yield sorted(labels)
    for node, had in labels.items():
        system.label(node, LATE, None)
        system.label(node, names.LABEL_HAND_OVER, had.get(names.LABEL_HAND_OVER))
    wait_for(system, before)


def test_a_pod_created_without_the_class_goes_to_no_node_that_needs_it(
    system: System, namespace: str, relabelled: Sequence[str]
) -> None:
    """The first node that needs NVIDIA's runtime joins while a pod waits that was created without its RuntimeClass."""
    *_, changing = relabelled
    for node in system.cluster.nodes:
        system.label(node.name, names.LABEL_HAND_OVER, "cdi")
    wait_for(system, "cdi")
    inventories = system.inventories()
    for node in system.cluster.nodes:
        # Where the runtime can never do what the label demands, no container may start without the GPU it was granted.
        healthy = node.runtime.version >= runtimes.CDI_SINCE
        assert {gpu.health is GpuHealth.HEALTHY for gpu in inventories[node.name].gpus} == {healthy}

    def waiting(name: str) -> Json:
        return make_pod(name, nodeSelector={LATE: "true"})

    def without() -> bool:
        return "runtimeClassName" not in system.admitted(namespace, make_pod("with-gpu"))["spec"]

    system.eventually("the webhook leaves it out", without)
    system.create(namespace, waiting("early"), replica_set(waiting("owned"), 2))
    system.eventually("all of them wait", lambda: len(system.pods(namespace)) == 3)
    assert not any("runtimeClassName" in pod["spec"] for pod in system.pods(namespace))

    system.label(changing, names.LABEL_HAND_OVER, "envvar")
    wait_for(system, hand_over.MIXED if len(relabelled) > 1 else "envvar")
    system.eventually("the webhook writes it again", lambda: not without())
    system.label(changing, LATE, "true")
    message = f"{changing} hands GPUs over by envvar, and the pod was created without the RuntimeClass that this needs"

    def told_by() -> set[str]:
        """Components that have said so."""
        events = system.api.get(f"/api/v1/namespaces/{namespace}/events", timeout_s=30)["items"]
        of_pod = [event for event in events if event["involvedObject"].get("name") == "early"]
        return {event["source"].get("component") or "scheduler" for event in of_pod if message in event["message"]}

    system.eventually("it is told why by both", lambda: len(told_by()) == 2)
    recreated = system.eventually(
        "those of a workload are recreated",
        lambda: [pod for pod in system.pods(namespace, "app=owned") if is_ready(pod)][1:],
    )
    late = system.run(namespace, waiting("late"))
    for pod in (*recreated, *late):
        assert pod["spec"]["runtimeClassName"] == names.RUNTIME_CLASS
    assert not system.pod(namespace, "early")["spec"].get("nodeName")
