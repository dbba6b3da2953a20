"""Small look-ups that every component makes."""

from collections.abc import Callable
from datetime import date
from functools import partial

import pytest

from gpushare.errors import WireError
from gpushare.wire import fields, pods
from testing.builders import Json


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((None, "nothing"), (True, "true or false"), ("x", "a string"), ("", "an empty string"), (3, "a number")),
        *((1.5, "a number"), ([], "a list"), ({}, "an object"), (date(2026, 1, 2), "a date")),
    ],
)
def test_values_have_words(value: object, expected: str) -> None:
    assert fields.kind(value) == expected
    assert fields.mismatch("a number", 2**64) == "expected a number, found a number"


WHOLE = "expected a whole number from 1 to 9, found"


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (fields.mapping, "s3cret", "p.key: expected an object, found a string"),
        (fields.needed_mapping, None, "p.key: expected an object, found nothing"),
        (fields.objects, {}, "p.key: expected a list, found an object"),
        (fields.objects, [{}, "s3cret"], "p.key[1]: expected an object, found a string"),
        (fields.needed_objects, None, "p.key: expected a list, found nothing"),
        (fields.needed_array, None, "p.key: expected a list, found nothing"),
        (fields.strings, "s3cret", "p.key: expected a list, found a string"),
        (fields.strings, ["a", True], "p.key[1]: expected a string, found true or false"),
        (fields.text, {"s3cret": 1}, "p.key: expected a string, found an object"),
        (fields.needed, "", "p.key: expected a string, found an empty string"),
        (partial(fields.integer, least=1, most=9), "s3cret", f"p.key: {WHOLE} a string"),
        (partial(fields.integer, least=1, most=9), None, f"p.key: {WHOLE} nothing"),
        (partial(fields.integer, least=1, most=9), 0, f"p.key: {WHOLE} 0"),
        (partial(fields.integer, least=1, most=9), 10, f"p.key: {WHOLE} 10"),
        (partial(fields.integer, least=1, most=9), 2.5, f"p.key: {WHOLE} 2.5"),
        (partial(fields.integer, least=1, most=9), -(10**99), f"p.key: {WHOLE} a number"),
        (fields.optional_integer, -1, "p.key: expected a whole number, 0 or more, found -1"),
    ],
)
def test_an_error_names_the_path_and_the_kind_but_not_the_value(
    read: Callable[[Json, str, str], object], value: object, message: str
) -> None:
    with pytest.raises(WireError) as error:
        read({"key": value}, "key", "p")
    assert str(error.value) == message
    with pytest.raises(WireError) as error:
        read({"key": value}, "key", "")
    assert str(error.value) == message.removeprefix("p.")


@pytest.mark.parametrize("parent", [{}, {"key": None}])
def test_a_field_that_is_missing_or_null_is_empty(parent: Json) -> None:
    reads = (fields.mapping, fields.objects, fields.strings, fields.text, fields.optional_integer)
    assert [read(parent, "key", "p") or None for read in reads] == [None] * 5
    assert fields.integer(parent, "key", "p", least=1, default=7) == 7


def test_a_condition_is_found_by_its_type_in_a_list() -> None:
    for status, expected in [
        (None, None),
        ({}, None),
        ({"conditions": [{"type": "Other", "status": "True"}]}, None),
        ({"conditions": [{"type": "Other"}, {"type": "Ready", "status": "True"}]}, "True"),
    ]:
        assert fields.condition({"status": status}, "Ready", "node").get("status") == expected
    with pytest.raises(WireError, match=r"^status\.conditions: expected a list, found a number$"):
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
