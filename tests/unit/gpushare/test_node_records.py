"""What is kept of a node: its GPUs, and those that an administrator or another program takes away."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare import names
from gpushare.cluster import node_ledger, node_records, pod_records
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound
from gpushare.errors import WireError
from gpushare.model.gpu import GpuHealth, NodeInventory
from gpushare.model.ledger import RefusalReason, Refused
from gpushare.units import ResourceConfig
from testing import ledgers
from testing.builders import make_container, make_inventory, make_mig, make_node, make_pod


def node(cordon: object = None, inventory: NodeInventory | None = None, **fields: Any) -> NodeRecord:
    document = make_node(inventory or make_inventory(15, 15, 15))
    if cordon is not None:
        document["metadata"]["annotations"][names.ANNOTATION_CORDON] = cordon
    return node_records.read(document, **fields)


def health(record: NodeRecord) -> list[GpuHealth]:
    assert record.inventory is not None
    return [gpu.health for gpu in record.inventory.gpus]


H, U, C = GpuHealth.HEALTHY, GpuHealth.UNHEALTHY, GpuHealth.CORDONED


PLAIN = make_inventory(15, 15, 15)
MIG = replace(make_inventory(15), gpus=(make_mig(0, 0), make_mig(0, 1), make_mig(1, 0)))


@pytest.mark.parametrize(
    ("inventory", "cordon", "unhealthy", "expected", "unknown"),
    [
        (PLAIN, None, (), [H, H, H], []),
        (PLAIN, "", (), [H, H, H], []),
        (PLAIN, "1", (), [H, C, H], []),
        (PLAIN, " 0 , GPU-2,", (), [C, H, C], []),
        (PLAIN, "1", (1, 2), [H, U, U], []),
        (PLAIN, "9,x", (7,), [H, H, H], ["9", "x"]),
        (MIG, "0:1", (), [H, C, H], []),
        (MIG, "65", (), [H, C, H], []),
        (MIG, "0", (), [C, C, H], []),
        (MIG, "", (0,), [U, U, H], []),
        (MIG, "", (80,), [H, H, U], []),
    ],
)
def test_gpus_are_taken_away_by_number_or_uuid_and_instances_by_their_gpu_too(
    inventory: NodeInventory,
    cordon: str | None,
    unhealthy: tuple[int, ...],
    expected: list[GpuHealth],
    unknown: list[str],
) -> None:
    record = node(cordon, inventory, unhealthy=frozenset(unhealthy))
    assert (health(record), node_records.unknown_gpus(record)) == (expected, unknown)


def test_a_node_that_has_not_changed_is_the_same_record() -> None:
    """Nearly every update is a heartbeat."""
    first = node("1", unhealthy=frozenset({0}))
    assert first.inventory is not None
    assert node("1", known=first, unhealthy=frozenset({0})) is first
    assert node("2", known=first, unhealthy=frozenset({0})) is not first
    assert node_records.read(make_node(make_inventory(15, 7)), first) != first
    bare = node_records.read({"metadata": {"name": "node-a"}})
    labelled = {"metadata": {"name": "node-a", "labels": {"gpushare": "true"}}}
    assert node_records.read(labelled, known=bare).awaited


def test_gpus_called_unhealthy_later_change_the_record() -> None:
    first = node("1")
    assert node_records.marked_unhealthy(first, frozenset()) is first
    assert health(node_records.marked_unhealthy(first, frozenset({2}))) == [H, C, U]
    bare = node_records.read({"metadata": {"name": "node-a", "labels": {"gpushare": "true"}}})
    assert node_records.marked_unhealthy(bare, frozenset({2})) == NodeRecord(
        name=bare.name, published=None, unhealthy=frozenset({2}), awaited=True
    )


def test_entries_that_name_no_gpu_are_known_and_annotations_that_are_no_texts_refused() -> None:
    with pytest.raises(WireError, match="expected strings"):
        node(7)
    assert node_records.unknown_gpus(node_records.read({"metadata": {"name": "node-a"}})) == []


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (None, ""),
        ("7", "expected an object, found a number"),
        ('{"version":1,"gpus":[],"unitMiB":"GiB"}', "unitMiB: expected a whole number, 1 or more, found a string"),
    ],
)
def test_an_inventory_that_is_not_there_or_cannot_be_read(annotation: str | None, problem: str) -> None:
    document = make_node()
    if annotation is not None:
        document["metadata"]["annotations"] = {names.ANNOTATION_INVENTORY: annotation}
    record = node_records.read(document)
    where = f"annotation {names.ANNOTATION_INVENTORY} of node node-a: "
    assert (record.published, record.inventory) == (annotation, None)
    assert record.problem == (where + problem if problem else "")


def test_a_node_on_which_another_plugin_gave_out_whole_gpus_takes_no_one_until_they_have_ended() -> None:
    pod = make_pod({**make_container("main"), "resources": {"limits": {names.GPU: "2"}}}, name="old", node="node-a")
    pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    whole = ResourceConfig(whole_gpus=True)
    record = pod_records.read(pod, whole)
    assert isinstance(record, Bound)
    ledger, _ = node_ledger.of_node(node(), [record], (), whole.unit)
    assert isinstance(ledger, Refused)
    assert ledger.reason is RefusalReason.NO_UNTOUCHED_GPU
    assert ledger.message == (
        "node-a takes no new pods, because default/old runs there on nvidia.com/gpu that another plugin gave to it, and"
        " no one can tell which GPUs these are; delete that pod, or wait until it has ended"
    )
    assert ledgers.of_objects([make_node(make_inventory(15))], [pod], whole) == {}
    pod["status"] = {"phase": "Succeeded", "containerStatuses": []}
    assert list(ledgers.of_objects([make_node(make_inventory(15))], [pod], whole)) == ["node-a"]
