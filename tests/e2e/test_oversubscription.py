"""Pods hold more of an oversubscribed GPU than it has, a pod that refuses that goes elsewhere, and commands say so."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare import names
from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu
from gpushare.wire import inventory as wire
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import Json, Share, System, gpushare, is_ready
from tests.e2e.test_handover import start_again

pytestmark = pytest.mark.e2e
GRANTABLE_GIB = GPU_GIB * 3 // 2


def gpus(system: System) -> dict[GpuUuid, Gpu]:
    found = wire.of_node(system.api.get("/api/v1/nodes/node-1"))
    return {gpu.uuid: gpu for gpu in found.gpus} if found else {}


def units(system: System) -> int:
    """What kube-scheduler counts."""
    return int(system.api.get("/api/v1/nodes/node-1")["status"]["allocatable"][names.GPU_MEM])


def offers(system: System, gib: int) -> None:
    """Wait until both the inventory and the kubelet count so many GiB of each GPU."""

    def offered() -> bool:
        known = gpus(system)
        return {gpu.grantable_mib for gpu in known.values()} == {gib * 1024} and units(system) == gib * len(known)

    system.eventually(f"each GPU of node-1 offers {gib} GiB", offered)


@contextmanager
def oversubscribed(system: System) -> Iterator[None]:
    """By a label of the node, which its plugin reads now and then."""
    system.cluster.kubectl("label", "node", "node-1", f"{names.LABEL_OVERSUBSCRIPTION}=1.5")
    try:
        offers(system, GRANTABLE_GIB)
        yield
    finally:
        system.cluster.kubectl("label", "node", "node-1", f"{names.LABEL_OVERSUBSCRIPTION}-")
    offers(system, GPU_GIB)


def pod(name: str, gib: int, **annotations: str) -> Json:
    keys = {"uuid": names.ANNOTATION_UUID, "oversubscription": names.ANNOTATION_OVERSUBSCRIPTION}
    return Share(name=name, gib=(gib,), annotations={keys[key]: text for key, text in annotations.items()}).document()


def container(system: System, namespace: str, name: str) -> str:
    """Its ID: another one after a restart."""
    return str(system.pod(namespace, name)["status"]["containerStatuses"][0]["containerID"])


def test_pods_hold_more_than_a_gpu_has_but_none_that_refuses_that(system: System, namespace: str) -> None:
    uuid = next(iter(gpus(system)))
    with oversubscribed(system):
        system.create(namespace, pod("a", GPU_GIB - 6, uuid=uuid), pod("b", GPU_GIB - 10, uuid=uuid))
        system.create(namespace, pod("elsewhere", 2, oversubscription="never"))
        system.create(namespace, pod("nowhere", 2, oversubscription="never", uuid=uuid))
        system.all_running(namespace, 3)
        assert system.pod(namespace, "elsewhere")["spec"]["nodeName"] == "node-2"
        system.eventually("it is told why", lambda: "oversubscribed" in "".join(system.events(namespace, "nowhere")))
        _, shown, _ = gpushare(system, "inspect", "node-1")
        held = 2 * GPU_GIB - 16
        assert f"node-1  0    1.5               {held}/{GRANTABLE_GIB}/{GPU_GIB}" in shown
        _, told, _ = gpushare(system, "explain", "a", "-n", namespace)
        assert (
            f"{held} GiB of {GPU_GIB} GiB ({held * 100 // GPU_GIB}%), oversubscribed up to {GRANTABLE_GIB} GiB" in told
        )
        _, found, _ = gpushare(system, "doctor")
        assert "oversubscribed by 1.5" in found
        before = {name: container(system, namespace, name) for name in ("a", "b")}
    # Nothing is taken back: the pods run on, and only new ones find no room.
    assert all(is_ready(system.pod(namespace, name)) for name in before)
    assert {name: container(system, namespace, name) for name in before} == before
    system.create(namespace, pod("late", 1, uuid=uuid))
    system.eventually("there is no room", lambda: "free per GPU" in "".join(system.events(namespace, "late")))
    start_again(system, namespace, "a", "b")
