"""P9 and more: what goes on while a component or a node's way to the API server is away, or certificates change."""

import base64
import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from gpushare import names
from gpushare.identity import GpuUuid
from gpushare.kube import api as kube
from localcluster.node import Node
from localcluster.process import ClusterError
from localcluster.provision import Version
from tests.e2e import checks, disturb, former
from tests.e2e.system import Json, System, allocated, is_incomplete, is_ready, make_pod, restarts

NODE: Final = "node-1"
PER_SECOND: Final = 20
SECRET: Final = f"/api/v1/namespaces/{names.NAMESPACE}/secrets/{names.WEBHOOK_SECRET}"
MUTATING: Final = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{names.MUTATING_WEBHOOK}"


@contextlib.contextmanager
def scaled_to_zero(system: System, component: str) -> Iterator[None]:
    scale = ("scale", "-n", names.NAMESPACE, f"deployment/gpushare-{component}")
    system.cluster.kubectl(*scale, "--replicas=0")
    try:
        for pod in disturb.component_pods(system, component):
            # A process that ends in order goes on answering on connections that the API server has kept.
            disturb.kill(system, pod)
        of_component = f"app.kubernetes.io/name=gpushare-{component}"
        system.eventually(f"{component} gone", lambda: not system.pods(names.NAMESPACE, of_component))
        yield
    finally:
        system.cluster.kubectl(*scale, "--replicas=2")
        back = f"{component} back"
        system.eventually(back, lambda: any(map(is_ready, disturb.component_pods(system, component))))


def test_without_the_webhook_other_pods_are_created_and_run_as_always(system: System, namespace: str) -> None:
    """No one writes void then, so the API server itself refuses what could see a GPU, where it can."""
    with scaled_to_zero(system, "webhook"):
        system.run(namespace, make_pod("plain", None))
        wants_all = {names.ENV_VISIBLE_DEVICES: "all"}
        sly = make_pod("sly", None, env=wants_all, runtimeClassName=names.RUNTIME_CLASS)
        if system.cluster.version >= Version(1, 30):
            with pytest.raises(ClusterError, match="gpushare-isolation"):
                system.create(namespace, sly)
    former.webhooks_work(system)
    checks.run_and_see_their_gpus(system, namespace, make_pod("after"))


def test_without_the_controller_other_pods_run_and_gpu_pods_wait(system: System, namespace: str) -> None:
    with scaled_to_zero(system, "controller"):
        system.create(namespace, make_pod("waits"))
        system.run(namespace, make_pod("plain", None))
        assert not system.pod(namespace, "waits")["spec"].get("nodeName")
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.running(namespace, "waits"))


@contextlib.contextmanager
def reachable_by_service(system: System, node: Node) -> Iterator[None]:
    """Have a node's kubelet, restarted, reach the API server by its Service, and not only until it is restarted.

    All nodes share one network namespace with the API server. By that address, which nothing else outside of pods has,
    the packets of this one kubelet are told from all others.
    """
    file = node.directory / "kubelet.kubeconfig"
    before = file.read_text()
    file.write_text(before.replace(system.cluster.server, f"https://{system.cluster.plan.api_service_ip}:443"))
    try:
        disturb.restart_kubelet(system, node)
        yield
    finally:
        file.write_text(before)


def node_is_ready(system: System) -> bool:
    conditions = system.node(NODE)["status"]["conditions"]
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def told(pod: Json) -> set[tuple[int, str]]:
    """Each process of a pod that knows its GPUs, by the process itself: no API server is asked."""
    found = set()
    for pid in disturb.processes_of(pod):
        with contextlib.suppress(OSError):  # it has ended
            listed = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            variables = dict(entry.partition("=")[::2] for entry in listed)
            gpus = variables.get(names.ENV_GRANTED_DEVICES) or variables.get(names.ENV_VISIBLE_DEVICES)
            found |= {(pid, gpus)} if gpus else set()
    return found


def test_a_node_without_the_api_server_keeps_and_restarts_its_containers_and_comes_back(
    system: System, namespace: str
) -> None:
    node, sizes = system.cluster.node(NODE), {"stays": 2, "dies": 3, "leaves": 4}
    with reachable_by_service(system, node):
        before = system.run(namespace, *(make_pod(name, gib, node=NODE) for name, gib in sizes.items()))
        _, dies, leaves = before
        [granted] = allocated(dies)["c0"]
        killed = {pid for pid, _ in told(dies)}
        assert killed
        with disturb.cut_off(system, node):
            disturb.kill_containers(dies)
            again = system.eventually(
                "the container runs again", lambda: {(pid, gpus) for pid, gpus in told(dies) if pid not in killed}
            )
            assert {gpus for _, gpus in again} == {granted}
            system.eventually("the node counts as lost", lambda: not node_is_ready(system))
            system.delete(namespace, "leaves")
            assert told(leaves), "no one has told the node"
            held = system.ledgers()[leaves["spec"]["nodeName"]].used_mib
            assert held[GpuUuid(allocated(leaves)["c0"][0])] >= 4 * 1024, "its memory is not given away"
        system.eventually("the node is back", lambda: node_is_ready(system))
        system.eventually("what was deleted is gone", lambda: len(system.pods(namespace)) == 2)
        assert not told(leaves)
        system.eventually("all plugins are ready", lambda: disturb.plugins_ready(system))
    pods = system.running(namespace, "stays", "dies")
    assert [restarts(pod) for pod in pods] == [{"c0": 0}, {"c0": 1}]
    assert [pod["metadata"]["uid"] for pod in pods] == [pod["metadata"]["uid"] for pod in before[:2]]
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    checks.the_controllers_ledger_equals_the_pods(system)


def test_no_admission_fails_while_certificates_rotate(system: System, namespace: str) -> None:
    failures, admitted = list[str](), list[Json]()
    log = system.cluster.logs / "kube-apiserver.log"
    length = log.stat().st_size

    def admit(offset: float, stop: threading.Event) -> None:
        pod = make_pod(f"dry-{threading.get_ident()}")
        stop.wait(offset)
        while not stop.is_set():
            began = time.monotonic()
            try:
                admitted.append(system.admitted(namespace, pod))
            except kube.KubeError as error:
                failures.append(str(error))
            stop.wait(max(0.0, 1 - (time.monotonic() - began)))

    def bundles() -> set[str]:
        return {webhook["clientConfig"]["caBundle"] for webhook in system.api.get(MUTATING)["webhooks"]}

    def leaf() -> str:
        return str(system.api.get(SECRET)["data"]["tls.crt"])

    def rotated() -> bool:
        now = bundles()
        return len(now) == 1 and not now & before and base64.b64decode(now.pop()).count(b"BEGIN CERTIFICATE") == 1

    before, old_leaf = bundles(), leaf()
    with disturb.Background(*(partial(admit, i / PER_SECOND) for i in range(PER_SECOND))):
        system.api.patch(SECRET, {"metadata": {"annotations": {"gpushare.dev/rotate": namespace}}})
        system.eventually("a new leaf", lambda: leaf() != old_leaf)
        system.eventually("only the new CA is trusted", rotated)
        time.sleep(5)
    assert not failures, (len(failures), len(admitted), failures[:3])
    # Kubernetes before 1.30 admits a pod when a busy webhook is late; that a certificate is not trusted is no reason.
    left_out = [line for line in log.read_bytes()[length:].decode().splitlines() if "ailed calling webhook" in line]
    assert not [line for line in left_out if "deadline exceeded" not in line], left_out
    assert sum(map(is_incomplete, admitted)) <= len(left_out) < len(admitted)
