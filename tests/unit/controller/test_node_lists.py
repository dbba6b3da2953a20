"""A list of names that is known is read as it would be decoded, and what was found of it is never of the past."""

import gc
import sys
import weakref
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.cluster_table import FilterResult
from controller.extender import messages
from controller.extender.messages import NodeList, NodeLists
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.placement.table import Table
from testing.builders import make_shape
from testing.controller.world import World

A, B = NodeName("node-a"), NodeName("node-b")
POD = b'{"metadata":{"name":"p","uid":"u"},"spec":{"containers":[{"name":"c"}]}}'
AWKWARD = st.text(st.sampled_from('ab"\\[]{},:é\n'), max_size=6) | st.sampled_from(['"NodeNames":["x"]}', "NodeNames"])
KEYS = st.sampled_from(["Pod", "Nodes", "NodeNames", "nodenames", "x", 'x"NodeNames', "\\", "*NodeNames", "*nodeNames"])
VALUES = st.none() | st.lists(AWKWARD, max_size=3) | st.dictionaries(KEYS, st.lists(AWKWARD, max_size=2), max_size=2)
BODIES = st.lists(st.tuples(KEYS, VALUES), max_size=4)


def body(*pairs: tuple[str, Any]) -> bytes:
    """An object that may have a key twice; one that begins with * is spelled with an escape instead of N or n."""
    entries = [spelled(key) + b":" + (POD if key == "Pod" else orjson.dumps(value)) for key, value in pairs]
    return b"{" + b",".join(entries) + b"}"


def spelled(key: str) -> bytes:
    return b'"\\u%04x%s"' % (ord(key[1]), key[2:].encode()) if key.startswith("*") else orjson.dumps(key)


def read(data: bytes, lists: NodeLists) -> object:
    try:
        found = messages.node_args(data, lists)
    except WireError as error:
        return str(error)
    return found.pod, list(found.names), found.nodes


@given(BODIES, st.lists(AWKWARD, max_size=3))
@example([("Pod", None), ('x"NodeNames', ["a"])], [])
@example([("*NodeNames", {}), ("*nodeNames", None)], ["a"])
def test_a_known_list_is_read_as_it_would_be_decoded(pairs: list[tuple[str, Any]], names: list[str]) -> None:
    lists = NodeLists()
    for known in (names, [], ["a"], ["b", "a"]):
        lists.keep(NodeList(map(NodeName, known)))
    for data in (body(("Pod", None), *pairs, ("NodeNames", names)), body(*pairs)):
        assert read(data, lists) == read(data, NodeLists())


@given(BODIES)
@example([("*NodeNames", ["x"]), ('x"NodeNames', ["a"])])
@example([("*NodeNames", None), ("*nodeNames", ["x"]), ("NodeNames", ["a"])])
def test_no_request_decides_how_another_is_read(pairs: list[tuple[str, Any]]) -> None:
    lists = NodeLists()
    try:
        found = messages.node_args(body(("Pod", None), *pairs), lists)
    except WireError:
        return
    messages.filter_result(FilterResult(fits=found.names), found, lists)
    for names in (value for _, value in pairs if isinstance(value, list)):
        other = body(("Pod", None), ("NodeNames", names))
        assert read(other, lists) == read(other, NodeLists())


def test_what_was_answered_is_known_and_not_what_a_sender_wrote() -> None:
    """In any other spelling it is decoded: who is asked about is no one's choice but the scheduler's."""
    lists, data = NodeLists(), b'{"Pod":%s,"NodeNames":["a", "b"]}' % POD
    args = messages.node_args(data, lists)
    first = messages.filter_result(FilterResult(fits=args.names), args, lists)
    assert messages.node_args(data, lists).names is not args.names
    again = messages.node_args(data.replace(b", ", b","), lists)
    assert again.names is args.names
    assert messages.filter_result(FilterResult(fits=again.names), again, lists) == first
    assert b'"NodeNames":["a"],' in messages.filter_result(FilterResult(fits=[NodeName("a")]), again, lists)
    assert messages.node_args(b'{"Pod":%s,"NodeNames":["a"]}' % POD, lists).names == ["a"]


@pytest.mark.parametrize("name", ["b", 'a"b', "a\\b", "ä", "a\n", ""])
def test_scores_are_json_whatever_nodes_are_called(name: str) -> None:
    nodes = NodeList([A, NodeName(name), A])
    for scores in ([1, 3, 10], [0, 10, 0]):
        found = orjson.loads(nodes.priorities(np.array(scores, np.uint8)))
        assert found == [{"Host": host, "Score": score} for host, score in zip(nodes, scores, strict=True)]
    assert NodeList().priorities(np.array([], np.uint8)) == b"[]"


def test_lists_that_were_used_last_are_kept_within_a_bound() -> None:
    lists = NodeLists()
    every = [NodeList([NodeName(f"{i}"), *[NodeName("n" * 50)] * 2000]) for i in range(8)]
    for each in every:
        lists.keep(each)
        lists.keep(NodeList(every[0]))
    known = [each for each in every if lists.find(b'{"NodeNames":%b}' % each.sent)[1] is each]
    assert (known[0], every[1] in known) == (every[0], False)
    assert sum(len(each.sent) for each in known) <= messages.MAX_BYTES


def test_a_list_with_all_that_is_kept_of_it_takes_so_many_times_its_json() -> None:
    kept = NodeList(NodeName(f"n{i}") for i in range(5000))
    kept.priorities(np.zeros(5000, np.uint8))
    sizes = [sys.getsizeof(kept), *map(sys.getsizeof, kept), *(each.nbytes for each in kept._blank)]
    assert sum(sizes) + kept.rows(Table()).nbytes < 20 * len(kept.sent)


def test_lists_of_nodes_keep_no_table_of_the_past(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor its ledgers: they are kept for as long as there is memory for their names."""
    nodes = NodeList([A, B])
    assert world.table.filter(make_shape(3), nodes).fits == [A, B]
    former = weakref.ref(world.table._table)
    monkeypatch.setattr(Table, "is_bloated", lambda _: True)
    assert world.bind(world.add_pod(3)).error == ""
    assert world.table.filter(make_shape(3), nodes).fits == [A, B]
    gc.collect()
    assert former() is None
