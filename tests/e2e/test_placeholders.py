"""A pod that fits the sums of nodes and no GPU: an autoscaler is asked for a node until there is room."""

from collections.abc import Iterator

import pytest

from controller.reconcile import placeholders
from gpushare import names
from localcluster import installation
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import PROMPT_S, Json, Share, System, is_ready

pytestmark = pytest.mark.e2e
OBJECTS = installation.ROOT / "manifests" / "placeholders" / "objects.yaml"


@pytest.fixture
def component(system: System) -> Iterator[None]:
    """What the component adds; its setting is in the installation's."""
    system.cluster.kubectl("apply", "-f", str(OBJECTS))
    yield
    system.cluster.kubectl("delete", "--wait=false", "-f", str(OBJECTS))


def unscheduled(pod: Json) -> bool:
    """Whether kube-scheduler has given up on it, which is what an autoscaler looks for."""
    found = {each["type"]: each for each in pod["status"].get("conditions", ())}
    return bool(found.get("PodScheduled", {}).get("reason") == "Unschedulable")


@pytest.mark.usefixtures("component")
def test_a_node_is_asked_for_until_there_is_room(system: System, namespace: str) -> None:
    # 5 GiB stay free on every GPU.
    count = GPUS_PER_NODE * len(system.cluster.nodes)
    system.create(namespace, *[Share(name=f"big-{i}", gib=(GPU_GIB - 5,)).document() for i in range(count)])
    system.all_running(namespace, count)
    system.create(namespace, Share(name="waits", gib=(10,)).document())

    def asked() -> list[Json]:
        return [pod for pod in system.pods(names.PLACEHOLDERS) if unscheduled(pod)]

    [there] = system.eventually("a placeholder that kube-scheduler cannot place", asked)
    waits = system.pod(namespace, "waits")
    assert there["metadata"]["name"] == f"for-{waits['metadata']['uid']}"
    assert there["spec"]["priority"] == -1
    read = placeholders.read(there)
    assert read is not None
    assert read.nodes == {node.name for node in system.cluster.nodes}
    told = {"is enough in total", f"asked for by the pod {names.PLACEHOLDERS}/{there['metadata']['name']}"}

    def all_told() -> bool:
        events = "".join(system.events(namespace, "waits"))
        return all(each in events for each in told)

    system.eventually("events say why", all_told)

    system.cluster.kubectl("delete", "pod", "-n", namespace, "big-0", "--wait=false")
    system.eventually("the pod that waited runs", lambda: is_ready(system.pod(namespace, "waits")), timeout_s=PROMPT_S)
    system.eventually("the placeholder is gone", lambda: not system.pods(names.PLACEHOLDERS))
