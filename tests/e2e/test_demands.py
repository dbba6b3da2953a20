"""What an administrator decides for namespaces and nodes: RuntimeClasses of NVIDIA, and limits that are enforced."""

from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from gpushare import names
from gpushare.cluster import node_records
from gpushare.kube import api as kube
from gpushare.model.gpu import GpuHealth
from gpushare.wire import hand_over
from localcluster import runtimes
from tests.e2e import disturb
from tests.e2e.seen import Grants
from tests.e2e.system import Json, Share, System, is_ready

pytestmark = pytest.mark.e2e
WITH_GPU: Final = Share(name="with-gpu")


def admitted(system: System, namespace: str, share: Share, runtime: str | None = None) -> Json:
    """The pod as it would be stored."""
    pod = share.document()
    if runtime:
        pod["spec"]["runtimeClassName"] = runtime
    return system.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, {"dryRun": "All"}, timeout_s=30)


def summary(system: System) -> str:
    """By the nodes themselves."""
    nodes = system.api.get("/api/v1/nodes")["items"]
    return hand_over.summary(node_records.sharing(map(node_records.read, nodes)))


def told(system: System) -> str:
    """By the controller."""
    return hand_over.word(system.api.get(hand_over.path(names.NAMESPACE)))


def label(system: System, node: str, **labels: str | None) -> None:
    wanted = {f"gpushare.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
    system.api.patch(kube.node_path(node), {"metadata": {"labels": wanted}})


def hand_over_by(system: System, way: str | None, nodes: Sequence[str]) -> None:
    """Have nodes hand over in another way, or as they find out by themselves."""
    for node in nodes:
        label(system, node, hand_over=way)
        disturb.kill_plugin(system, node)


def wait_for(system: System, expected: str) -> None:
    """Wait until everybody knows how all nodes hand over."""
    system.eventually(f"the nodes say {expected}", lambda: summary(system) == expected)
    system.eventually("the controller says so too", lambda: told(system) == expected)
    system.eventually("all plugins are ready", lambda: disturb.plugins_ready(system))


@pytest.fixture
def relabelled(system: System) -> Iterator[list[str]]:
    """Names of the nodes; they are labelled again as they were."""
    before = summary(system)
    nodes = [node.name for node in system.cluster.nodes]
    labels = {node: system.api.get(kube.node_path(node))["metadata"]["labels"] for node in nodes}
    yield nodes
    for node in nodes:
        label(system, node, e2e_late=None)
        hand_over_by(system, labels[node].get(names.LABEL_HAND_OVER), [node])
    wait_for(system, before)


def test_a_pod_created_without_the_class_goes_to_no_node_that_needs_it(
    system: System, namespace: str, relabelled: list[str]
) -> None:
    """The first node that needs NVIDIA's runtime joins while a pod waits that was created without its RuntimeClass."""
    *_, changing = relabelled
    hand_over_by(system, "cdi", [node.name for node in system.cluster.nodes if not node.runtime.cdi])
    wait_for(system, "cdi")
    for node in system.cluster.nodes:
        # Where the runtime can never do what the label demands, no container may start without the GPU it was granted.
        gpus = Grants.of(system).inventories[node.name].gpus
        healthy = node.runtime.version >= runtimes.CDI_SINCE
        assert {gpu.health is GpuHealth.HEALTHY for gpu in gpus} == {healthy}

    def waiting(name: str) -> Json:
        pod = Share(name=name).document()
        pod["spec"]["nodeSelector"] = {"gpushare.dev/e2e-late": "true"}
        return pod

    def without() -> bool:
        return "runtimeClassName" not in admitted(system, namespace, WITH_GPU)["spec"]

    system.eventually("the webhook leaves it out", without)
    template = {"metadata": {"labels": {"app": "owned"}}, "spec": waiting("")["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "owned"}}, "template": template}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "owned"}, "spec": spec}
    system.create(namespace, waiting("early"), owner)
    system.eventually("all of them wait", lambda: len(system.pods(namespace)) == 3)
    assert not any("runtimeClassName" in pod["spec"] for pod in system.pods(namespace))

    hand_over_by(system, "envvar", [changing])
    wait_for(system, hand_over.MIXED if len(relabelled) > 1 else "envvar")
    system.eventually("the webhook writes it again", lambda: not without())
    label(system, changing, e2e_late="true")
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
    assert recreated[0]["spec"]["runtimeClassName"] == names.RUNTIME_CLASS

    system.create(namespace, waiting("late"))
    assert system.running(namespace, "late")[0]["spec"]["runtimeClassName"] == names.RUNTIME_CLASS
    assert not system.pod(namespace, "early")["spec"].get("nodeName")
