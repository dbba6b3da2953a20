"""What a container finds of GPUs when it starts: by its variables, in /dev, and by the device cgroup."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpushare import names
from gpushare.identity import GpuUuid
from gpushare.model.gpu import HandOver, NodeInventory
from gpushare.wire import inventory as inventory_wire
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
        """For people."""
        return f"GPUs {self.told or '?'}, nodes {self.devices or 'none'}, can open {self.openable or 'none'}"


NOTHING: Final = Seen(told=names.VISIBLE_DEVICES_NONE)


def by(variables: Mapping[str, str]) -> Seen:
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
        nodes = system.api.get("/api/v1/nodes", timeout_s=30)["items"]
        found = [inventory for node in nodes if (inventory := inventory_wire.of_node(node)) is not None]
        return Grants({inventory.node: inventory for inventory in found})

    def hand_over(self, pod: Json) -> HandOver:
        """How the pod's node hands GPUs over."""
        return self.inventories[pod["spec"]["nodeName"]].hand_over

    def to(self, pod: Json, container: str) -> Seen:
        """What a container of a pod that runs should see."""
        is_granted = names.ANNOTATION_ALLOCATION in pod["metadata"].get("annotations", {})
        gpus = allocated(pod).get(container, ()) if is_granted else ()
        if not gpus:
            return NOTHING
        told = ",".join(gpus)
        if self.hand_over(pod) is not HandOver.CDI and not self.under_nvidia:
            return Seen(told=told)
        known = self.inventories[pod["spec"]["nodeName"]].by_uuid
        minors = sorted(known[GpuUuid(uuid)].index for uuid in gpus)
        return Seen(
            told=told, devices=",".join(f"nvidia{minor}" for minor in minors), openable=",".join(map(str, minors))
        )
