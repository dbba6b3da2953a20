"""What must hold of pods that run, said once, and what a container finds of GPUs: by variables, in /dev, by cgroup."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare import names
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import HandOver, NodeInventory
from gpushare.model.ledger import NodeLedger
from testing import held
from tests.e2e.system import Json, System, allocated

DEVICES: Final = "DEVICES"
OPENABLE: Final = "OPENABLE"
"""What the image prints beside its environment."""
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Of one container."""

    told: str
    """UUIDs, comma-separated, or `void`."""
    devices: str = ""
    """Names in /dev beside those that every container has."""
    openable: str = ""
    """Minor numbers of GPUs' device nodes that can be opened if the container makes them itself."""

    def __str__(self) -> str:
        return f"GPUs {self.told or '?'}, nodes {self.devices or 'none'}, can open {self.openable or 'none'}"


NOTHING: Final = Seen(told=names.VISIBLE_DEVICES_NONE)


def seen_by(variables: Mapping[str, str]) -> Seen:
    """What a container has printed; a granted one that NVIDIA's runtime must not look at has UUIDs elsewhere."""
    read_by_nvidia = variables.get(names.ENV_VISIBLE_DEVICES, "")
    told = variables.get(names.ENV_GRANTED_DEVICES, read_by_nvidia)
    if read_by_nvidia not in {told, names.VISIBLE_DEVICES_NONE}:
        told = f"{read_by_nvidia} beside {told}"
    openable = variables.get(OPENABLE, "")
    return Seen(told=told, devices=variables.get(DEVICES, ""), openable="" if openable == UNKNOWN else openable)


@dataclass(frozen=True, slots=True)
class Grants:
    """What containers should see, by the inventories of their nodes."""

    inventories: Mapping[str, NodeInventory]
    under_nvidia: bool = False
    """Whether NVIDIA's runtime makes device nodes where GPUs are not handed over by CDI; else runc stands for it."""

    @staticmethod
    def of(system: System) -> "Grants":
        """As the nodes publish it now."""
        return Grants(system.inventories())

    def wrong(self, pod: Json, container: str, variables: Mapping[str, str]) -> str:
        """What a container that has printed this does not see as it should; empty if nothing."""
        found, expected = seen_by(variables), self.to(pod, container)
        told = f"{pod['metadata']['name']}/{container}: sees {found}; was granted {expected}"
        return "" if found == expected else told

    def to(self, pod: Json, container: str) -> Seen:
        """What a container of a pod that runs should see."""
        is_granted = names.ANNOTATION_ALLOCATION in pod["metadata"].get("annotations", {})
        gpus = allocated(pod).get(container, ()) if is_granted else ()
        if not gpus:
            return NOTHING
        told, inventory = ",".join(gpus), self.inventories[pod["spec"]["nodeName"]]
        if inventory.hand_over is not HandOver.CDI and not self.under_nvidia:
            return Seen(told=told)
        minors = sorted(inventory.by_uuid[GpuUuid(uuid)].index for uuid in gpus)
        return Seen(
            told=told, devices=",".join(f"nvidia{minor}" for minor in minors), openable=",".join(map(str, minors))
        )


def every_container_sees_exactly_its_gpus(system: System, namespace: str, pods: Sequence[Json]) -> None:
    """P1: each container sees the GPUs of its allocation in every way, and containers without one see none."""
    environments = system.environments(namespace, *(pod["metadata"]["name"] for pod in pods))
    grants = Grants.of(system)
    wrong = [
        grants.wrong(pod, container["name"], environments[pod["metadata"]["name"], container["name"]])
        for pod in pods
        for container in pod["spec"]["containers"]
    ]
    assert not any(wrong), wrong


def run_and_see_their_gpus(system: System, namespace: str, *documents: Json) -> list[Json]:
    pods = system.run(namespace, *documents)
    every_container_sees_exactly_its_gpus(system, namespace, pods)
    return pods


def the_ledger_is_right(system: System) -> None:
    no_gpu_is_over_its_memory(system)
    the_controllers_ledger_equals_the_pods(system)


def no_gpu_is_over_its_memory(system: System) -> None:
    """P2: computed from the API server's objects alone."""
    over = held.over_memory(system.nodes(), system.api.get("/api/v1/pods", timeout_s=30)["items"])
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
