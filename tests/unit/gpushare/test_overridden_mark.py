"""The webhook's mark on pods whose author chose devices himself, as the controller reads it."""

from gpushare import names
from gpushare.cluster import pod_records
from gpushare.cluster.records import Bound, Pending
from gpushare.resource_config import ResourceConfig
from testing.builders import make_pod


def test_the_mark_is_kept_of_waiting_and_of_bound_pods() -> None:
    marks = {names.ANNOTATION_OVERRIDDEN: "main,side"}
    waiting = pod_records.read(make_pod(annotations=marks), ResourceConfig())
    bound = pod_records.read(make_pod(annotations=marks, node="node-a"), ResourceConfig())

    assert isinstance(waiting, Pending)
    assert isinstance(bound, Bound)
    assert (waiting.overridden, bound.overridden) == ("main,side", "main,side")


def test_other_pods_have_none() -> None:
    waiting = pod_records.read(make_pod(), ResourceConfig())

    assert isinstance(waiting, Pending)
    assert waiting.overridden == ""


def test_the_mark_is_the_webhooks_and_not_part_of_a_binding() -> None:
    assert names.ANNOTATION_OVERRIDDEN in names.WEBHOOK_ANNOTATIONS
    assert not names.is_reserved(names.ANNOTATION_OVERRIDDEN)
