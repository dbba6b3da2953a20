"""Pods of which a part cannot be read: the rest of them is kept, and what they hold never counts as nothing."""

import pytest

from gpushare import names
from gpushare.cluster import pod_records
from gpushare.cluster.records import Bound, Pending
from gpushare.errors import WireError
from gpushare.resource_config import ResourceConfig
from gpushare.units import GIB
from gpushare.wire import held_gpus
from testing.builders import Json, make_container, make_pod

RESOURCE_CONFIG = ResourceConfig()


def pod(node: str = "", **metadata: object) -> Json:
    made = make_pod(make_container("main", 3), node=node or None)
    return {**made, "metadata": {**made["metadata"], **metadata}}


def test_a_pod_without_a_uid_cannot_be_kept_apart_from_others() -> None:
    with pytest.raises(WireError, match=r"^metadata\.uid: missing$"):
        pod_records.read(pod(uid=""), RESOURCE_CONFIG)


def test_a_waiting_pod_keeps_its_name_and_the_problem() -> None:
    record = pod_records.read(pod(labels=7), RESOURCE_CONFIG)
    assert isinstance(record, Pending)
    assert (record.ref.name, record.problem) == ("pod", "metadata.labels: expected an object, found a number")


def test_a_bound_pod_keeps_what_can_be_read_and_the_problem() -> None:
    record = pod_records.read(pod("node-a", annotations={names.ANNOTATION_ALLOCATION: 7}), RESOURCE_CONFIG)
    assert isinstance(record, Bound)
    assert (record.node, record.allocation) == ("node-a", None)
    assert "metadata.annotations" in record.problem


def test_of_a_bound_pod_with_odd_labels_only_its_place_is_kept() -> None:
    record = pod_records.read(pod("node-a", labels=7), RESOURCE_CONFIG)
    assert isinstance(record, Bound)
    assert (record.node, record.labels) == ("node-a", {})
    assert record.problem == "metadata.labels: expected an object, found a number"


@pytest.mark.parametrize("annotations", [{}, {names.ALIYUN_IDX: "x"}])
def test_other_annotations_are_not_looked_at_where_there_is_none_of_ours(annotations: Json) -> None:
    found = pod("node-a", annotations=annotations)
    if not annotations:
        assert held_gpus.of_pod(found, RESOURCE_CONFIG, GIB).allocation is None
        return
    with pytest.raises(WireError, match=names.ALIYUN_IDX):
        held_gpus.of_pod(found, RESOURCE_CONFIG, GIB)
