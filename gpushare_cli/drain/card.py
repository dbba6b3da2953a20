"""A GPU of a node, as users name it; the node's cordon and the pods that hold something of that GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names
from gpushare.cluster import cordons, drain, node_records, pod_records
from gpushare.cluster.cordons import Cordon
from gpushare.cluster.drain import Occupant, Permissions
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound
from gpushare.errors import SettingsError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.model.ledger import NodeLedger, mib_on
from gpushare.units import ResourceConfig
from gpushare.wire import fields
from gpushare_cli import reading, world
from gpushare_cli.console import NotAllowedError

_TRIES: Final = 5
Change = Callable[[NodeRecord], Cordon]
"""What a cordon is to be, from what is known of its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a user names."""

    node: str
    gpu: str
    """Its number, UUID, or GPU:INSTANCE."""

    def __str__(self) -> str:
        return f"{self.node}/{self.gpu}"

    @classmethod
    def parse(cls, text: str) -> "Card":
        """Read NODE/GPU.

        Raises:
            SettingsError: it is something else.
        """
        node, _, gpu = text.partition("/")
        if not node or not gpu or "/" in gpu or "," in gpu:
            raise SettingsError(f"GPU {text!r}: write NODE/GPU, such as node-a/0, node-a/0:1 or node-a/GPU-UUID")
        return cls(node=node, gpu=gpu)


def cordon(api: KubeApi, node: str, change: Change) -> bool:
    """Change which GPUs of a node take no new pods. Whether anything was changed.

    Raises:
        KubeError: the node cannot be read or written.
        NotAllowedError: the user may not write it.
        SettingsError: there is no such GPU.
    """
    for _ in range(_TRIES):
        found = api.get(kube.node_path(node))
        record = node_records.read(found)
        after = change(record)
        if after == record.marks:
            return False
        body = {
            "metadata": {
                "resourceVersion": found["metadata"]["resourceVersion"],
                "annotations": {names.ANNOTATION_CORDON: after.gpus or None, names.ANNOTATION_HELD: after.held or None},
            }
        }
        try:
            api.patch(kube.node_path(node), body)
        except kube.ConflictError:  # kubelets write their nodes all the time
            continue
        except kube.ForbiddenError as error:
            raise NotAllowedError(f"not allowed: {error}; patching nodes is needed") from error
        return True
    raise kube.ConflictError(f"node {node} was changed by others {_TRIES} times meanwhile; try again")


def keeping_away(card: Card) -> Change:
    """Cordon a GPU."""
    return lambda record: record.marks.closed(inventory_of(record), card.gpu)


def letting_in(card: Card) -> Change:
    """Undo that."""
    return lambda record: record.marks.opened(record.inventory, card.gpu)


def inventory_of(record: NodeRecord) -> NodeInventory:
    """The GPUs of a node.

    Raises:
        SettingsError: its device plugin has published none that can be read.
    """
    if record.inventory is None:
        raise SettingsError(f"node {record.name} {record.problem or 'has no GPU inventory; it shares no GPU'}")
    return record.inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """A GPU, and who is on it."""

    gpus: tuple[Gpu, ...]
    """Several if it is partitioned."""
    occupants: tuple[Occupant, ...]
    cordoned: bool
    """Whether new pods are kept away from all of it."""
    notes: tuple[str, ...]


def read(api: KubeApi, card: Card, permissions: Permissions, known: tuple[Gpu, ...] = ()) -> Occupied:
    """Look at a GPU and at who holds something of it.

    Args:
        api: where.
        card: its name.
        permissions: what the administrator agrees to lose.
        known: what the name stood for before, if it was looked up: numbers change when a GPU fails.

    Raises:
        KubeError: the cluster cannot be read.
        SettingsError: there is no such GPU.
    """
    cluster = reading.on_nodes(api, card.node)
    (node,) = cluster.nodes
    record = node_records.read(node)
    inventory = inventory_of(record)
    gpus = known or cordons.meant(inventory, card.gpu)
    occupants = [one for pod in cluster.pods if (one := _occupant(pod, inventory, gpus, permissions)) is not None]
    entries = set(cordons.entries(record.cordon))
    return Occupied(
        gpus=gpus,
        occupants=tuple(occupants),
        cordoned=all(cordons.names_of(gpu) & entries for gpu in gpus),
        notes=cluster.notes,
    )


def _occupant(
    pod: JsonObject, inventory: NodeInventory, gpus: Sequence[Gpu], permissions: Permissions
) -> Occupant | None:
    config = world.config_of(pod, ResourceConfig(unit=inventory.unit))
    bound = pod_records.read(pod, config)
    if not isinstance(bound, Bound):
        return None
    held_mib, unclear = _held(bound, inventory, gpus)
    if held_mib is None:
        return None
    return Occupant(
        bound=bound,
        memory_mib=held_mib,
        obstacle=unclear or drain.obstacle(pod, permissions),
        unstarted=drain.is_unstarted(pod),
        ready=fields.is_true(pod, "Ready", "pod"),
    )


def _held(bound: Bound, inventory: NodeInventory, gpus: Sequence[Gpu]) -> tuple[int | None, str]:
    """MiB of these GPUs, or why no one can tell; None if it holds nothing of them."""
    if pod_records.has_foreign_gpus(bound):
        return 0, f"it has {names.GPU} of another plugin, and no one can tell which; delete it if it uses this GPU"
    try:
        allocation = pod_records.held(bound, inventory.unit)
    except WireError as error:
        return 0, f"what it holds cannot be read ({error}); delete it if it uses this GPU"
    if allocation is None:
        return None, ""
    held = NodeLedger.of(inventory, [allocation]).held(allocation)
    here = [mib_on(held[gpu.uuid], gpu) for gpu in gpus if gpu.uuid in held]
    return (sum(here) if here else None), ""


def as_json(gpus: Sequence[Gpu]) -> list[Mapping[str, Any]]:
    """For programs."""
    return [{"index": gpu.index, "uuid": gpu.uuid, "model": gpu.model, "memoryMiB": gpu.memory_mib} for gpu in gpus]
