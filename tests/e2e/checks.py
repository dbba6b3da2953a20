"""What must hold of pods that run, said once."""

from collections.abc import Mapping, Sequence

from gpushare.identity import NodeName
from gpushare.model.ledger import NodeLedger
from testing import held
from tests.e2e import seen
from tests.e2e.seen import Grants
from tests.e2e.system import Json, System


def every_container_sees_exactly_its_gpus(system: System, namespace: str, pods: Sequence[Json]) -> None:
    """P1: each container sees the GPUs of its allocation in every way, and containers without one see none."""
    environments = system.environments(namespace, *(pod["metadata"]["name"] for pod in pods))
    grants = Grants.of(system)
    wrong = []
    for pod in pods:
        name = pod["metadata"]["name"]
        for container in pod["spec"]["containers"]:
            found = seen.by(environments[name, container["name"]])
            if found != (expected := grants.to(pod, container["name"])):
                wrong.append(f"{name}/{container['name']}: sees {found}; was granted {expected}")
    assert not wrong, wrong


def no_gpu_is_over_its_memory(system: System) -> None:
    """P2: computed from the API server's objects alone."""
    nodes, pods = (system.api.get(f"/api/v1/{kind}", timeout_s=30)["items"] for kind in ("nodes", "pods"))
    over = held.over_memory(nodes, pods)
    assert not over, over


def the_controllers_ledger_equals_the_pods(system: System) -> None:
    """The ledger of the leader is what can be computed from the pods, of which some may be going at this moment."""

    def equal() -> bool:
        try:
            return ledger_of_the_controller(system) == held_of(system.ledgers())
        except OSError:  # there is no leader for a while
            return False

    system.eventually("the controller's ledger equals the pods", equal)


def held_of(ledgers: Mapping[NodeName, NodeLedger]) -> dict[tuple[str, int], int]:
    """Units that are used on each GPU, by node and number."""
    return {
        (node, gpu.index): ledger.inventory.unit.ceil(ledger.used_mib.get(gpu.uuid, 0))
        for node, ledger in ledgers.items()
        for gpu in ledger.inventory.gpus
    }


def ledger_of_the_controller(system: System) -> dict[tuple[str, int], int]:
    """The same, as the leader says."""
    inspected = system.inspect()["nodes"]
    return {(node["name"], int(dev["id"])): dev["usedGPU"] for node in inspected for dev in node["devs"]}
