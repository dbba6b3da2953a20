"""There is nothing to back up: pods and nodes alone bring back what the system knew."""

import json
from collections.abc import Iterator

import pytest

from gpushare import names
from tests.e2e import checks, former
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import Json, Share, System, is_ready

pytestmark = pytest.mark.e2e
CLUSTER_WIDE = (
    *("mutatingwebhookconfigurations", "validatingwebhookconfigurations", "clusterroles", "clusterrolebindings"),
    *("runtimeclasses", "priorityclasses"),
)


@pytest.fixture
def put_back(system: System) -> Iterator[None]:
    yield
    former.install_again(system)


@pytest.mark.usefixtures("put_back")
def test_everything_but_pods_and_nodes_is_deleted_and_the_ledger_is_the_same_again(
    system: System, namespace: str
) -> None:
    system.create(
        namespace,
        Share(name="memory", gib=(5, None)).document(),
        Share(name="per-gpu", gib=(7,), annotations={names.ANNOTATION_GPUS: "3"}).document(),
        Share(name="both", gib=(3, 4)).document(),
    )
    pods = system.all_running(namespace, 3)
    ledger, containers = checks.ledger_of_the_controller(system), started(pods)

    delete_everything(system)
    assert started(system.pods(namespace)) == containers, "no container was ended or started again"
    former.install_again(system)

    system.eventually("the same ledger", lambda: checks.ledger_of_the_controller(system) == ledger)
    now = system.all_running(namespace, 3)
    assert started(now) == containers
    checks.every_container_sees_exactly_its_gpus(system, namespace, now)
    # A GPU that has a share is not taken for a free one.
    free = sum(used == 0 for used in ledger.values())
    wanted = [f"all-{i}" for i in range(free + 1)]
    system.create(namespace, *(Share(name=name, gib=(GPU_GIB,)).document() for name in wanted))

    def waiting() -> list[str]:
        return [name for name in wanted if not is_ready(system.pod(namespace, name))]

    system.eventually("all but one run", lambda: len(waiting()) == 1)
    (last,) = waiting()
    system.eventually("it is told why it waits", lambda: system.events(namespace, last))
    checks.no_gpu_is_over_its_memory(system)


def delete_everything(system: System) -> None:
    """Every object of this project on the API server, and what its programs have written on nodes."""
    kubectl = system.cluster.kubectl
    overlay = str(system.cluster.workdir / "kustomization")
    kubectl("delete", "mutatingwebhookconfigurations,validatingwebhookconfigurations", names.WEBHOOK)
    kubectl("delete", "-k", overlay, "--ignore-not-found", "--wait", timeout_s=300)
    kubectl("annotate", "nodes", "--all", f"{names.ANNOTATION_INVENTORY}-", f"{names.ANNOTATION_CORDON}-")
    system.eventually("the namespace is gone", lambda: not system.exists(f"/api/v1/namespaces/{names.NAMESPACE}"))
    for kind in CLUSTER_WIDE:
        found = json.loads(kubectl("get", kind, "-o", "json").stdout)["items"]
        assert not [each["metadata"]["name"] for each in found if each["metadata"]["name"].startswith("gpushare")], kind


def started(pods: list[Json]) -> dict[str, list[str]]:
    """The containers of each pod by their IDs."""
    return {
        pod["metadata"]["name"]: sorted(status["containerID"] for status in pod["status"]["containerStatuses"])
        for pod in pods
    }
