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
from gpushare.model.gpu import HandOver
from localcluster import process
from localcluster.node import Node
from testing.tenant import attempts
from tests.e2e import checks, disturb
from tests.e2e.checks import NOTHING, Grants, Seen, seen_by
from tests.e2e.conftest import CDI_NODES, PROFILE
from tests.e2e.system import Json, System, allocated, is_ready, make_pod, restarts

SPECS: Final = "/var/run/cdi"
NEEDS_CDI: Final = pytest.mark.skipif(not CDI_NODES, reason="no node hands GPUs over by CDI")


@pytest.fixture(scope="module")
def namespace(shared_namespace: str) -> str:
    """One for all tests here; each has pods with names of their own."""
    return shared_namespace


def with_cdi(system: System) -> Sequence[Node]:
    return [node for node in system.cluster.nodes if node.runtime.cdi]


def on_node(node: Node, command: str) -> str:
    return process.run([*node.enter, "sh", "-c", command])


def specs(node: Node, pod: Json) -> list[str]:
    """Names of the files that make devices for a pod."""
    listed = on_node(node, f"ls -A {SPECS} 2>/dev/null || true").split()
    return [name for name in listed if pod["metadata"]["uid"] in name]


def test_every_node_says_how_it_hands_gpus_over_and_why(system: System) -> None:
    inventories = system.inventories()
    told = {name: inventory.hand_over for name, inventory in inventories.items()}
    assert told == {node.name: HandOver.CDI if node.runtime.cdi else HandOver.ENVVAR for node in system.cluster.nodes}
    assert all(inventory.hand_over_reason for inventory in inventories.values())


DISTURBANCES: Final[Mapping[str, Callable[[System, Node], None]]] = {
    "nothing": lambda _system, _node: None,
    "kubelet": disturb.restart_kubelet,
    "plugin": disturb.restart_plugins,
    "containerd": lambda _system, node: node.restart_containerd(),
}


@pytest.mark.parametrize("restarted", DISTURBANCES)
def test_a_container_that_starts_again_sees_the_same(system: System, namespace: str, restarted: str) -> None:
    two = {names.ANNOTATION_GPUS: "2"}
    nodes = [node.name for node in system.cluster.nodes]
    pods = [make_pod(f"{restarted}-each-{node}", 1, 1, None, node=node) for node in nodes]
    pods += [make_pod(f"{restarted}-two-{node}", node=node, annotations=two) for node in nodes]
    running = checks.run_and_see_their_gpus(system, namespace, *pods)
    for pod in running:
        node = system.cluster.node(pod["spec"]["nodeName"])
        assert len(specs(node, pod)) == (len(allocated(pod)) if node.runtime.cdi else 0)
    for node in system.cluster.nodes:
        DISTURBANCES[restarted](system, node)
    again = disturb.start_again(system, namespace, *(pod["metadata"]["name"] for pod in pods))
    checks.every_container_sees_exactly_its_gpus(system, namespace, again)


def test_an_init_container_and_the_one_after_it_see_their_own_gpus(system: System, namespace: str) -> None:
    """The kubelet gives the second one the device IDs of the first."""
    first = [attempts.first("with", limits={names.GPU_MEM: 2}), attempts.first("without")]
    nodes = [node.name for node in system.cluster.nodes]
    pods = system.run(namespace, *(make_pod(f"init-{node}", node=node, initContainers=first) for node in nodes))
    grants = Grants.of(system)
    for pod in pods:
        printed = system.environments(namespace, pod["metadata"]["name"])
        found = {container: seen_by(variables) for (_, container), variables in printed.items()}
        assert found == {container: grants.to(pod, container) for container in ("with", "without", "c0")}
        assert found["without"] == NOTHING


@NEEDS_CDI
def test_who_is_not_root_may_open_the_device_nodes(system: System, namespace: str) -> None:
    """No driver answers for a simulated GPU, but the kernel says so only to those who may ask."""
    script = "env; for node in /dev/nvidia*; do (: <$node) 2>&1; done; echo tried; exec /wait"
    user = {"runAsUser": 65532, "runAsNonRoot": True}
    system.run(namespace, make_pod("plain", node=with_cdi(system)[0].name, command=script, securityContext=user))
    said = system.log(namespace, "plain", until="tried")
    assert said[-1].endswith("No such device or address")


@NEEDS_CDI
def test_neither_a_refused_start_nor_a_pod_that_is_gone_leaves_a_spec(system: System, namespace: str) -> None:
    """The pod's GPU has died since its container ran."""
    usual, node = yaml.safe_load(PROFILE), with_cdi(system)[0]
    [pod] = system.run(namespace, make_pod("refused", node=node.name))
    assert specs(node, pod)
    number = int(pod["metadata"]["annotations"]["index.gpushare.dev/c0"])
    dead = {"gpus": usual["gpus"], "faults": [{"gpu": number, "kind": "xid"}]}
    with disturb.exchanged_gpus(system, {**usual, "nodes": {node.name: dead}}, PROFILE):
        disturb.kill_containers(pod)
        system.eventually("it is not started", lambda: waits(system, pod))
        system.eventually("it has no spec", lambda: not specs(node, pod))
    runs_again_and_sees_its_gpus(system, pod)
    system.delete(namespace, "refused", force=True)
    system.eventually("it has no spec", lambda: not specs(node, pod))


def foreign(device: str, minor: int) -> Json:
    node = {"path": f"/dev/nvidia{minor}", "type": "c", "major": 60, "minor": minor}
    edits = {"deviceNodes": [node], "env": [f"{names.ENV_VISIBLE_DEVICES}=all"]}
    return {"cdiVersion": "0.5.0", "kind": names.CDI_KIND, "devices": [{"name": device, "containerEdits": edits}]}


@NEEDS_CDI
@pytest.mark.parametrize("file", ["/etc/cdi/{own}", SPECS + "/foreign.json", SPECS + "/{own}"])
def test_a_foreign_spec_of_the_same_device_shows_no_other_gpu(system: System, namespace: str, file: str) -> None:
    """Where the plugin writes its own it removes others; where it cannot, the container waits until someone has."""
    node, name = with_cdi(system)[0], f"foreign-{file.count('/')}{file.count('own')}"
    [pod] = system.run(namespace, make_pod(name, node=node.name))
    (own,) = specs(node, pod)
    device, granted = own.removesuffix(".json").rpartition("_")[2], Grants.of(system).to(pod, "c0")
    other = next(minor for minor in range(4) if str(minor) != granted.openable)
    path, content = Path(file.format(own=own)), json.dumps(foreign(device, other))
    on_node(node, f"mkdir -p {path.parent}; printf '%s' '{content}' > {path}")
    try:
        disturb.kill_containers(pod)
        if path.parent != Path(SPECS):
            system.wait_told(namespace, name, f"{path} makes the same CDI device; remove that file")
            system.eventually("it is not started", lambda: waits(system, pod))
            on_node(node, f"rm {path}")
        runs_again_and_sees_its_gpus(system, pod)
        assert specs(node, pod) == [own]
        assert path.name == own or not on_node(node, f"ls {path} 2>/dev/null || true")
    finally:
        on_node(node, f"test {path} = {SPECS}/{own} || rm -f {path}")


def runs_again_and_sees_its_gpus(system: System, pod: Json) -> None:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]

    def again() -> bool:
        found = system.pod(namespace, name)
        return is_ready(found) and restarts(found)["c0"] > 0

    system.eventually("it has started again", again)
    checks.every_container_sees_exactly_its_gpus(system, namespace, [system.pod(namespace, name)])


def waits(system: System, pod: Json) -> bool:
    (status,) = system.pod(pod["metadata"]["namespace"], pod["metadata"]["name"])["status"]["containerStatuses"]
    return "waiting" in status["state"]


def switch(system: System, namespace: str, node: Node, way: HandOver) -> None:
    """Have a node hand over in another way, and wait until the webhook goes by what all nodes do then."""
    system.label(node.name, names.LABEL_HAND_OVER, way.value)

    def known() -> bool:
        ways = {name: inventory.hand_over for name, inventory in system.inventories().items()}
        needs_class = set(ways.values()) != {HandOver.CDI}
        admitted = system.admitted(namespace, make_pod("asks"))
        return ways[node.name] is way and bool(admitted["spec"].get("runtimeClassName")) is needs_class

    system.eventually(f"{node.name} hands over by {way.value}, and the webhook knows", known)


@pytest.fixture
def node_of_both(system: System) -> Iterator[Node]:
    """A node that can hand over by CDI; its label is put back."""
    node = with_cdi(system)[0]
    before = system.node(node.name)["metadata"]["labels"].get(names.LABEL_HAND_OVER)
    yield node
    system.label(node.name, names.LABEL_HAND_OVER, before)
    by_cdi = "it hands over by CDI"
    system.eventually(by_cdi, lambda: system.inventories()[node.name].hand_over is HandOver.CDI)


@NEEDS_CDI
def test_pods_keep_their_gpus_while_their_node_changes_its_way_back_and_forth(
    system: System, namespace: str, node_of_both: Node
) -> None:
    """Each keeps the way under which it was admitted, at every restart under every other."""

    def sees(*pods: str) -> dict[str, list[Seen]]:
        environments = system.environments(namespace, *pods)
        return {pod: [seen_by(environments[pod, each]) for each in ("c0", "c1")] for pod in pods}

    expected: dict[str, list[Seen]] = {}
    for way in (HandOver.CDI, HandOver.ENVVAR, HandOver.CDI):
        if expected:
            switch(system, namespace, node_of_both, way)
            disturb.start_again(system, namespace, *expected)
            assert sees(*expected) == expected
        pod = f"of-{way.value}-{len(expected)}"
        checks.run_and_see_their_gpus(system, namespace, make_pod(pod, 1, None, node=node_of_both.name))
        expected |= sees(pod)
    assert {bool(containers[0].devices) for containers in expected.values()} == {True, False}
