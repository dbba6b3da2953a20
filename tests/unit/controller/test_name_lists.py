"""Lists of names that are recognised by their bytes give what decoding them gives."""

import sys
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.extender import messages, name_lists
from controller.extender.messages import FilterResult
from controller.extender.name_lists import NameList, NameLists
from gpushare.errors import WireError
from gpushare.identity import NodeName
from testing.builders import make_pod
from testing.controller.world import World

POD = orjson.dumps(make_pod())
AWKWARD = st.text(st.sampled_from('ab"\\[]{},:é\n'), max_size=6) | st.sampled_from(['"NodeNames":["x"]}', "NodeNames"])
KEYS = st.sampled_from(["Pod", "Nodes", "NodeNames", "nodenames", "x", 'x"NodeNames', "\\", "*NodeNames", "*nodeNames"])
VALUES = st.none() | st.lists(AWKWARD, max_size=3) | st.dictionaries(KEYS, st.lists(AWKWARD, max_size=2), max_size=2)
BODIES = st.lists(st.tuples(KEYS, VALUES), max_size=4)


def body(pairs: list[tuple[str, Any]]) -> bytes:
    """An object that may have a key twice; one that begins with * is spelled with an escape instead of N or n."""
    entries = [spelled(key) + b":" + (POD if key == "Pod" else orjson.dumps(value)) for key, value in pairs]
    return b"{" + b",".join(entries) + b"}"


def spelled(key: str) -> bytes:
    return b'"\\u%04x%s"' % (ord(key[1]), key[2:].encode()) if key.startswith("*") else orjson.dumps(key)


def read(data: bytes, lists: NameLists | None) -> object:
    try:
        found = messages.node_args(data, lists)
    except WireError as error:
        return str(error)
    return found.pod, list(found.names), found.nodes


@given(BODIES, st.lists(AWKWARD, max_size=3))
def test_a_known_list_is_read_as_it_would_be_decoded(pairs: list[tuple[str, Any]], names: list[str]) -> None:
    data, lists = body([("Pod", None), *pairs, ("NodeNames", names)]), NameLists()
    for known in (names, [], ["a"], ["b", "a"]):
        lists.keep(orjson.dumps(known), [NodeName(name) for name in known])
    assert read(data, lists) == read(data, None)
    other = body(pairs)
    assert read(other, lists) == read(other, None)


@given(BODIES)
@example([("*NodeNames", ["x"]), ('x"NodeNames', ["a"])])
@example([("*NodeNames", None), ("*nodeNames", ["x"]), ("NodeNames", ["a"])])
def test_no_request_decides_how_another_is_read(pairs: list[tuple[str, Any]]) -> None:
    lists, sent = NameLists(), [value for _, value in pairs if isinstance(value, list)]
    try:
        found = messages.node_args(body([("Pod", None), *pairs]), lists)
    except WireError:
        return
    messages.filter_result(FilterResult(fits=found.names), found, lists)
    for names in sent:
        other = body([("Pod", None), ("NodeNames", names)])
        assert read(other, lists) == read(other, None)


def test_a_string_that_looks_like_the_key_is_none() -> None:
    data = b'{"Pod":%s,"x\\"NodeNames":["a"]}' % POD
    lists = NameLists()
    lists.keep(b'["a"]', [NodeName("a")])
    assert read(data, lists) == read(data, None)


def test_prioritize_does_not_decode_what_filter_has_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, found, get = world.add_pod(3), list[object](), NameLists.get
    fits = world.post("filter", {"Pod": pod, "NodeNames": ["node-a", "node-x", "node-b"]})["NodeNames"]

    def looked_up(self: NameLists, sent: bytes) -> object:
        found.append(get(self, sent))
        return found[-1]

    monkeypatch.setattr(NameLists, "get", looked_up)
    assert [each["Host"] for each in world.post("prioritize", {"Pod": pod, "NodeNames": fits})] == fits
    (known,) = found
    assert isinstance(known, NameList)
    assert known.names == ["node-a", "node-b"]


def test_lists_that_were_used_last_are_kept_within_a_bound() -> None:
    lists, large = NameLists(), [NodeName("n" * 50)] * 2000
    sent = [orjson.dumps([f"{i}", *large]) for i in range(8)]
    for each in sent:
        lists.keep(each, large)
        lists.keep(sent[0], large)
    kept = lists.get(sent[0])
    assert kept is not None
    assert kept.names is large
    assert lists.get(sent[1]) is None
    assert sum(len(each) for each in sent if lists.get(each)) <= name_lists.MAX_BYTES


def test_where_the_pod_fits_everywhere_a_known_list_goes_back_as_it_came() -> None:
    lists, data = NameLists(), b'{"Pod":%s,"NodeNames":["a","b"]}' % POD
    args = messages.node_args(data, lists)
    first = messages.filter_result(FilterResult(fits=args.names), args, lists)
    args = messages.node_args(data, lists)
    assert args.known is not None
    assert args.known.sent == b'["a","b"]'
    assert messages.filter_result(FilterResult(fits=args.names), args, lists) == first
    assert b'"NodeNames":["a","b"],' in first
    assert b'"NodeNames":["a"],' in messages.filter_result(FilterResult(fits=[NodeName("a")]), args, lists)


def test_a_sheet_is_made_of_a_list_that_is_asked_about_again() -> None:
    names = [NodeName(name) for name in ("b", "a", 'c"', "\u00e4")]
    kept = NameList(orjson.dumps(names), names)
    assert kept.sheet() is None
    sheet = kept.sheet()
    assert sheet is not None
    assert kept.sheet() is sheet
    assert sheet.blank == messages.priorities(names, [0] * 4)
    for place, name in enumerate(sheet.names):
        text = bytearray(sheet.blank)
        text[sheet.offsets[place]] = ord("7")
        assert bytes(text) == messages.priorities(names, [7 if each == name else 0 for each in names])
    assert sheet.places == {name: place for place, name in enumerate(sorted(names))}


def test_no_sheet_is_made_of_a_list_with_a_name_that_comes_twice() -> None:
    kept = NameList(b"", [NodeName("a"), NodeName("a")])
    assert [kept.sheet(), kept.sheet()] == [None, None]


def test_a_list_with_its_sheet_takes_so_many_times_its_json() -> None:
    names = [NodeName(f"n{i}") for i in range(5000)]
    kept = NameList(orjson.dumps(names), names)
    kept.sheet()
    sheet = kept.sheet()
    assert sheet is not None
    sizes = map(sys.getsizeof, (names, sheet.names, sheet.places, *sheet.places.values(), sheet.blank, sheet.offsets))
    assert sum(map(sys.getsizeof, names)) + sum(sizes) < 32 * len(kept.sent)
