"""How GPUs are handed over, on a node of each kind: by CDI, where device nodes decide, and by the variable.

What every container sees is compared in all other files as well; here is what only this depends on.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpushare import names
from gpushare.kube import api as kube
from gpushare.model.gpu import HandOver
from localcluster import process
from localcluster.node import Node
from testing.tenant import attempts
from tests.e2e import checks, disturb, gpus, seen
from tests.e2e.conftest import CDI_NODES, PROFILE
from tests.e2e.seen import Grants
from tests.e2e.system import Json, Share, System, is_ready

pytestmark = pytest.mark.e2e

SPECS: Final = "/var/run/cdi"
NEEDS_CDI: Final = pytest.mark.skipif(not CDI_NODES, reason="no node hands GPUs over by CDI")


@pytest.fixture(scope="module")
def namespace(shared_namespace: str) -> str:
    """One for all tests here; each has pods with names of their own."""
    return shared_namespace


def placed(node: Node, share: Share, **spec: object) -> Json:
    """The pod of a share, for one node."""
    pod = share.document()
    pod["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": node.name}, **spec}
    return pod


def with_cdi(system: System) -> Sequence[Node]:
    return [node for node in system.cluster.nodes if node.runtime.cdi]


def specs(node: Node, pod: Json) -> list[str]:
    """Names of the files that make devices for a pod."""
    listed = process.run([*node.enter, "sh", "-c", f"ls -A {SPECS} 2>/dev/null || true"]).split()
    return [name for name in listed if pod["metadata"]["uid"] in name]


def has_no_specs(node: Node, pod: Json) -> bool:
    return not specs(node, pod)


def restarts(pod: Json) -> dict[str, int]:
    return {status["name"]: status["restartCount"] for status in pod["status"]["containerStatuses"]}


def start_again(system: System, namespace: str, *pods: str) -> list[Json]:
    """End every container of the pods, and wait for the next one of each."""
    before = {name: restarts(system.pod(namespace, name)) for name in pods}
    for name in pods:
        disturb.kill_containers(system.pod(namespace, name))

    def all_again() -> list[Json]:
        found = [system.pod(namespace, name) for name in pods]
        again = (
            is_ready(pod)
            and all(restarts(pod)[each] > count for each, count in before[pod["metadata"]["name"]].items())
            for pod in found
        )
        return found if all(again) else []

    return system.eventually(f"containers of {', '.join(pods)} have started again", all_again)


def test_every_node_says_how_it_hands_gpus_over_and_why(system: System) -> None:
    inventories = Grants.of(system).inventories
    told = {name: inventory.hand_over for name, inventory in inventories.items()}
    assert told == {node.name: HandOver.CDI if node.runtime.cdi else HandOver.ENVVAR for node in system.cluster.nodes}
    assert all(inventory.hand_over_reason for inventory in inventories.values())


def test_pods_land_on_nodes_of_every_kind_and_see_the_right_gpu(system: System, namespace: str) -> None:
    """The same pods: what the webhook wrote is right wherever they land."""
    pods = [f"anywhere-{i}" for i in range(8)]
    documents = [Share(name=name, gib=(1, None)).document() for name in pods]
    for document in documents:  # some on each node, whatever else runs there
        document["metadata"]["labels"] = {**document["metadata"].get("labels", {}), "e2e": "anywhere"}
        document["spec"]["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"e2e": "anywhere"}},
            }
        ]
    system.create(namespace, *documents)
    running = system.running(namespace, *pods)
    for node in system.cluster.nodes:
        here = [pod for pod in running if pod["spec"]["nodeName"] == node.name]
        assert {len(specs(node, pod)) for pod in here} == {int(node.runtime.cdi)}
    checks.every_container_sees_exactly_its_gpus(system, namespace, running)
    for name in pods:
        system.api.delete(kube.pod_path(namespace, name), {"gracePeriodSeconds": 0})


def restart_kubelets(system: System) -> None:
    for node in system.cluster.nodes:
        disturb.restart_kubelet(system, node)


def restart_runtimes(system: System) -> None:
    for node in system.cluster.nodes:
        node.restart_containerd()


DISTURBANCES: Final[Mapping[str, Callable[[System], None]]] = {
    "nothing": lambda _system: None,
    "kubelet": restart_kubelets,
    "plugin": lambda system: disturb.restart_plugins(system, *system.cluster.nodes),
    "containerd": restart_runtimes,
}


@pytest.mark.parametrize("restarted", DISTURBANCES)
def test_a_container_that_starts_again_sees_the_same(system: System, namespace: str, restarted: str) -> None:
    for node in system.cluster.nodes:
        each = Share(name=f"{restarted}-each-{node.name}", gib=(1, 1, None))
        two = Share(name=f"{restarted}-two-{node.name}", annotations={names.ANNOTATION_GPUS: "2"})
        system.create(namespace, placed(node, each), placed(node, two))
    pods = [f"{restarted}-{kind}-{node.name}" for kind in ("each", "two") for node in system.cluster.nodes]
    before = system.running(namespace, *pods)
    checks.every_container_sees_exactly_its_gpus(system, namespace, before)
    DISTURBANCES[restarted](system)
    checks.every_container_sees_exactly_its_gpus(system, namespace, start_again(system, namespace, *pods))


def test_an_init_container_and_the_one_after_it_see_their_own_gpus(system: System, namespace: str) -> None:
    """The kubelet gives the second one the device IDs of the first."""
    for node in system.cluster.nodes:
        first = [
            attempts.first("with", limits={names.GPU_MEM: 2}),
            attempts.first("without"),
        ]
        system.create(namespace, placed(node, Share(name=f"init-{node.name}"), initContainers=first))
    grants = Grants.of(system)
    for pod in system.running(namespace, *[f"init-{node.name}" for node in system.cluster.nodes]):
        name = pod["metadata"]["name"]
        printed = {key[1]: each for key, each in system.environments(namespace, name).items()}
        found = {container: seen.by(variables) for container, variables in printed.items()}
        assert found == {container: grants.to(pod, container) for container in ("with", "without", "c0")}
        assert found["without"] == seen.NOTHING


@NEEDS_CDI
def test_who_is_not_root_may_open_the_device_nodes(system: System, namespace: str) -> None:
    """No driver answers for a simulated GPU, but the kernel says so only to those who may ask."""
    script = "env; for node in /dev/nvidia*; do (: <$node) 2>&1; done; echo tried; exec /wait"
    pod = placed(with_cdi(system)[0], Share(name="plain"), securityContext={"runAsUser": 65532, "runAsNonRoot": True})
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    system.create(namespace, pod)
    system.running(namespace, "plain")
    said = system.log(namespace, "plain", until="tried")
    assert said[-1].endswith("No such device or address")


@NEEDS_CDI
def test_neither_a_refused_start_nor_a_pod_that_is_gone_leaves_a_spec(system: System, namespace: str) -> None:
    """The pod's GPU has died since its container ran."""
    usual, node = yaml.safe_load(PROFILE), with_cdi(system)[0]
    system.create(namespace, placed(node, Share(name="refused")))
    (pod,) = system.running(namespace, "refused")
    assert specs(node, pod)
    number = int(pod["metadata"]["annotations"]["index.gpushare.dev/c0"])
    dead = {"gpus": usual["gpus"], "faults": [{"gpu": number, "kind": "xid"}]}
    with gpus.exchanged(system, {**usual, "nodes": {node.name: dead}}, PROFILE):
        disturb.kill_containers(pod)
        system.eventually("it is not started", lambda: waits(system, namespace, "refused"))
        system.eventually("it has no spec", lambda: has_no_specs(node, pod))
    system.eventually("it has started again", lambda: started_again(system, namespace, "refused"))
    checks.every_container_sees_exactly_its_gpus(system, namespace, [system.pod(namespace, "refused")])
    system.api.delete(kube.pod_path(namespace, "refused"), {"gracePeriodSeconds": 0})
    system.eventually("it has no spec", lambda: has_no_specs(node, pod))


def foreign(device: str, minor: int) -> Json:
    """A spec that would show another GPU under the same name."""
    node = {"path": f"/dev/nvidia{minor}", "type": "c", "major": 60, "minor": minor}
    edits = {"deviceNodes": [node], "env": [f"{names.ENV_VISIBLE_DEVICES}=all"]}
    return {"cdiVersion": "0.5.0", "kind": names.CDI_KIND, "devices": [{"name": device, "containerEdits": edits}]}


@NEEDS_CDI
@pytest.mark.parametrize("file", ["/etc/cdi/{own}", SPECS + "/foreign.json", SPECS + "/{own}"])
def test_a_foreign_spec_of_the_same_device_shows_no_other_gpu(system: System, namespace: str, file: str) -> None:
    """Where the plugin writes its own it removes others; where it cannot, the container waits until someone has."""
    node, name = with_cdi(system)[0], f"foreign-{file.count('/')}{file.count('own')}"
    system.create(namespace, placed(node, Share(name=name)))
    (pod,) = system.running(namespace, name)
    (own,) = specs(node, pod)
    device, granted = own.removesuffix(".json").rpartition("_")[2], Grants.of(system).to(pod, "c0")
    other = next(minor for minor in range(4) if str(minor) != granted.openable)
    path, content = Path(file.format(own=own)), json.dumps(foreign(device, other))
    process.run([*node.enter, "sh", "-c", f"mkdir -p {path.parent}; printf '%s' '{content}' > {path}"])
    try:
        disturb.kill_containers(pod)
        if path.parent != Path(SPECS):
            told = f"{path} makes the same CDI device; remove that file"
            system.eventually("a refusal", lambda: told in "".join(system.events(namespace, name)))
            system.eventually("it is not started", lambda: waits(system, namespace, name))
            process.run([*node.enter, "rm", str(path)])
        system.eventually("it has started again", lambda: started_again(system, namespace, name))
        checks.every_container_sees_exactly_its_gpus(system, namespace, [system.pod(namespace, name)])
        assert specs(node, pod) == [own]
        assert path.name == own or not process.run([*node.enter, "sh", "-c", f"ls {path} 2>/dev/null || true"])
    finally:
        process.run([*node.enter, "sh", "-c", f"test {path} = {SPECS}/{own} || rm -f {path}"])


def started_again(system: System, namespace: str, name: str) -> bool:
    pod = system.pod(namespace, name)
    return is_ready(pod) and restarts(pod)["c0"] > 0


def waits(system: System, namespace: str, name: str) -> bool:
    (status,) = system.pod(namespace, name)["status"]["containerStatuses"]
    return "waiting" in status["state"]


def switch(system: System, namespace: str, node: Node, way: HandOver) -> None:
    """Have a node hand over in another way, and wait until the webhook goes by what all nodes do then."""
    system.api.patch(kube.node_path(node.name), {"metadata": {"labels": {names.LABEL_HAND_OVER: way.value}}})

    def known() -> bool:
        ways = {name: inventory.hand_over for name, inventory in Grants.of(system).inventories.items()}
        path = f"/api/v1/namespaces/{namespace}/pods"
        admitted = system.api.create(path, Share(name="asks").document(), {"dryRun": "All"}, timeout_s=30)
        needs_class = set(ways.values()) != {HandOver.CDI}
        return ways[node.name] is way and bool(admitted["spec"].get("runtimeClassName")) is needs_class

    system.eventually(f"{node.name} hands over by {way.value}, and the webhook knows", known)


@pytest.fixture
def node_of_both(system: System) -> Iterator[Node]:
    """A node that can hand over by CDI; its label is put back."""
    node = next(iter(with_cdi(system)), None)
    if node is None:
        pytest.skip("no node has CDI")
    labels = system.api.get(kube.node_path(node.name))["metadata"]["labels"]
    yield node
    before = {"metadata": {"labels": {names.LABEL_HAND_OVER: labels.get(names.LABEL_HAND_OVER)}}}
    system.api.patch(kube.node_path(node.name), before)
    system.eventually(
        "it hands over by CDI", lambda: Grants.of(system).inventories[node.name].hand_over is HandOver.CDI
    )


def test_pods_keep_their_gpus_while_their_node_changes_its_way_back_and_forth(
    system: System, namespace: str, node_of_both: Node
) -> None:
    """Each keeps the way under which it was admitted, at every restart under every other."""

    def seen_by(*pods: str) -> dict[str, list[seen.Seen]]:
        environments = system.environments(namespace)
        return {pod: [seen.by(environments[pod, each]) for each in ("c0", "c1")] for pod in pods}

    expected: dict[str, list[seen.Seen]] = {}
    for way in (HandOver.CDI, HandOver.ENVVAR, HandOver.CDI):
        if expected:
            switch(system, namespace, node_of_both, way)
            start_again(system, namespace, *expected)
            assert seen_by(*expected) == expected
        pod = f"of-{way.value}-{len(expected)}"
        system.create(namespace, placed(node_of_both, Share(name=pod, gib=(1, None))))
        checks.every_container_sees_exactly_its_gpus(system, namespace, system.running(namespace, pod))
        expected |= seen_by(pod)
    assert {bool(containers[0].devices) for containers in expected.values()} == {True, False}
