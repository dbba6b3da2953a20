"""Pods of which a part cannot be read: the rest of them is kept, and what they hold never counts as nothing."""

import pytest

from gpushare import names
from gpushare.cluster import records
from gpushare.cluster.records import Bound, Pending
from gpushare.dialect import Dialect
from gpushare.errors import WireError
from gpushare.units import GIB
from gpushare.wire import holdings
from testing.builders import Json, make_container, make_pod

DIALECT = Dialect()


def pod(node: str = "", **metadata: object) -> Json:
    made = make_pod(make_container("main", 3), node=node or None)
    return {**made, "metadata": {**made["metadata"], **metadata}}


def test_a_pod_without_a_uid_cannot_be_kept_apart_from_others() -> None:
    with pytest.raises(WireError, match=r"^metadata\.uid: missing$"):
        records.pod_record(pod(uid=""), DIALECT)


def test_a_waiting_pod_keeps_its_name_and_the_problem() -> None:
    record = records.pod_record(pod(labels=7), DIALECT)
    assert isinstance(record, Pending)
    assert (record.ref.name, record.problem) == ("pod", "metadata.labels: expected an object, found 7")


def test_a_bound_pod_keeps_what_can_be_read_and_the_problem() -> None:
    record = records.pod_record(pod("node-a", annotations={names.ANNOTATION_ALLOCATION: 7}), DIALECT)
    assert isinstance(record, Bound)
    assert (record.node, record.allocation) == ("node-a", None)
    assert "metadata.annotations" in record.problem


def test_of_a_bound_pod_with_odd_labels_only_its_place_is_kept() -> None:
    record = records.pod_record(pod("node-a", labels=7), DIALECT)
    assert isinstance(record, Bound)
    assert (record.node, record.labels) == ("node-a", {})
    assert record.problem == "metadata.labels: expected an object, found 7"


@pytest.mark.parametrize("annotations", [{}, {names.ALIYUN_IDX: "x"}])
def test_other_annotations_are_not_looked_at_where_there_is_none_of_ours(annotations: Json) -> None:
    found = pod("node-a", annotations=annotations)
    if not annotations:
        assert holdings.of_pod(found, DIALECT, GIB).allocation is None
        return
    with pytest.raises(WireError, match=names.ALIYUN_IDX):
        holdings.of_pod(found, DIALECT, GIB)
