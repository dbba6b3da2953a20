"""Small look-ups that every component makes."""

import pytest

from gpushare.errors import WireError
from gpushare.model.allocation import Held
from gpushare.model.ledger import mib_on
from gpushare.wire import fields, json, pods
from testing.builders import Json, make_gpu


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "nothing"),
        (True, "true or false"),
        ("x", "a string"),
        ("", "an empty string"),
        (3, "a number"),
        (1.5, "a number"),
        ([], "a list"),
        ({}, "an object"),
    ],
)
def test_values_have_words(value: object, expected: str) -> None:
    assert json.kind(value) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, None),
        ({}, None),
        ({"conditions": [{"type": "Other", "status": "True"}]}, None),
        ({"conditions": [{"type": "Other"}, {"type": "Ready", "status": "True"}]}, "True"),
    ],
)
def test_a_condition_is_found_by_its_type(status: Json | None, expected: str | None) -> None:
    assert fields.condition({"status": status}, "Ready", "node").get("status") == expected


def test_conditions_that_are_no_list_are_an_error() -> None:
    with pytest.raises(WireError, match=r"^status\.conditions: expected a list, found 3$"):
        fields.condition({"status": {"conditions": 3}}, "Ready", "node")


def test_a_container_has_started_if_it_runs_or_ever_ran() -> None:
    pod = {
        "status": {
            "initContainerStatuses": [{"name": "i", "lastState": {"terminated": {}}}],
            "containerStatuses": [{"name": "a", "state": {"waiting": {}}}, {"name": "b", "state": {"running": {}}}],
        }
    }
    assert pods.has_started(pod)
    assert [pods.has_started(pod, among={name}) for name in "iab"] == [True, False, True]
    assert not pods.has_started(pod, among=())
    assert [path for path, _ in pods.reports(pod)] == [
        "status.initContainerStatuses",
        *["status.containerStatuses"] * 2,
    ]


def test_what_is_held_on_a_gpu_counts_parts_and_whole_gpus() -> None:
    gpu = make_gpu(gib=10)
    assert mib_on(Held(100), gpu) == mib_on(Held(100), None) == 100
    assert mib_on(Held(0, memory_percent=25), gpu) == 2560
    assert mib_on(Held(0, memory_percent=25), None) == 0
    assert mib_on(Held(1024, whole=True), gpu) == 10240
    assert mib_on(Held(20480, whole=True), gpu) == 20480
