"""How fields and amounts of objects are read."""

import decimal
import json
import re
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

import pytest

from gpushare import units
from gpushare.errors import SettingsError, WireError
from gpushare.units import GIB, MemoryUnit
from gpushare.wire import fields
from testing.builders import Json


def test_a_unit_is_read_and_named_or_refused_with_the_fix() -> None:
    for text, mib, name in [
        *(("GiB", 1024, "GiB"), ("MiB", 1, "MiB"), ("256MiB", 256, "256MiB"), (" 2 GiB ", 2048, "2GiB")),
        ("1024MiB", 1024, "GiB"),
    ]:
        unit = MemoryUnit.parse(text)
        assert (unit.mib, unit.name) == (mib, name)
    for text in ["", "GB", "0MiB", "-1GiB", "1.5GiB", "gib", "MiBs", "12345678MiB"]:
        message = f"memory unit {text!r}: write GiB, MiB or a multiple such as 256MiB"
        with pytest.raises(SettingsError, match=re.escape(message)):
            MemoryUnit.parse(text)
        with pytest.raises(SettingsError, match="memory unit of 0 MiB: must be at least 1 MiB"):
            MemoryUnit(0)


@pytest.mark.parametrize(("mib", "gib"), [(15109, 14), (24258, 23), (16384, 16), (16383, 15), (0, 0)])
def test_a_gpu_hands_out_whole_units_only_and_a_share_takes_the_next(mib: int, gib: int) -> None:
    assert GIB.floor(mib) == gib
    assert (GIB.ceil(1), GIB.ceil(1024), GIB.ceil(1025)) == (1, 1, 2)


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        *((each, 3) for each in (3, "3", " 3 ", "0003")),
        *(("16k", 16_000), ("1128k", 1_128_000), ("2M", 2_000_000), ("1000M", 10**9)),
    ],
)
def test_an_amount_is_read_as_manifests_spell_it_and_as_the_api_server_shortens_it(value: object, amount: int) -> None:
    assert units.parse_amount(value) == amount


@pytest.mark.parametrize("case", (Path(__file__).parent / "golden/amounts.txt").read_text().splitlines())
def test_a_bad_amount_says_what_to_write(case: str) -> None:
    value, _, message = case.partition(" => ")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        units.parse_amount(json.loads(value))


def test_memory_is_told_exactly_and_a_percentage_truncated() -> None:
    told = [units.memory(mib) for mib in (0, 512, 1024, 5068, 16384)]
    assert told == ["0 GiB", "512 MiB", "1 GiB", "5068 MiB", "16 GiB"]
    assert [units.percent(used, total) for used, total in ((2, 3), (3, 3), (1, 0))] == [66, 100, 0]


def test_every_spelling_of_an_amount_is_read_and_all_else_is_none() -> None:
    for text, amount in [
        *(("3", 3), (3, 3), ("+3", 3), ("1k", 1000), ("10E", 10**19), ("8Ei", 2**63), ("1e10", 10**10), ("1E3", 1000)),
        *((" 2 ", 2), ("2E", 2 * 10**18), ("5.", 5), ("-1", -1), ("0", 0), (0.0, 0), ("1500m", decimal.Decimal("1.5"))),
        *((".5k", 500), ("2G", 2 * 10**9), ("1Ki", 1024), ("9" * 41, decimal.Decimal("Infinity"))),
    ]:
        assert units.quantity(text) == amount
    for text in ["", "x", "1x", "E", "1.2.3", "1 k", "1kk", "1e", "e3", True, None, [1], "x" * 100]:
        assert units.quantity(text) is None


def test_a_number_of_devices_is_read_in_every_spelling_and_written_as_the_api_server_does() -> None:
    for value, amount in [
        *((3, 3), ("15k", 15_000), ("2Gi", 2**31), ("1e3", 1000), ("2000m", 2), ("10E", 2**63 - 1)),
        *(("9" * 99, 2**63 - 1), ("1e9999", 2**63 - 1), ("1500m", 0), ("-3", 0), ("0", 0), ("x", 0), (None, 0)),
    ]:
        assert units.whole(value) == amount
    for number, text in [
        *((0, "0"), (1, "1"), (999, "999"), (1000, "1k"), (1001, "1001"), (15_000, "15k"), (2_000_000, "2M")),
        (2_001_000, "2001k"),
    ]:
        assert units.spelled(number) == text
        assert units.whole(text) == number


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
