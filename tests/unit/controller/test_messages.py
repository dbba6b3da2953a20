"""What kube-scheduler sends and is answered: fields that are odd, and lists of nodes that are known."""

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, strategies as st

from controller.cluster_table import FilterResult
from controller.extender import messages
from controller.extender.messages import NodeList, NodeLists
from controller.preemption import Victims
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodUid
from gpushare.placement.table import Table
from testing.builders import make_shape
from testing.controller.world import World

POD = b'{"metadata":{"name":"p","uid":"u"},"spec":{"containers":[{"name":"c"}]}}'


def args(text: str) -> bytes:
    """ExtenderArgs around a pod's text."""
    return text.replace("POD", POD.decode()).encode()


def within_spec(field: str) -> str:
    return '{"Pod":{"metadata":{},"spec":{FIELD}}}'.replace("FIELD", field)


def within_container(resources: str) -> str:
    return within_spec('"containers":[{"name":"c","resources":RESOURCES}]'.replace("RESOURCES", resources))


OBJECT, STRING = "expected an object, found", "expected a string, found"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the body: empty; expected JSON"),
        ("{", "the body: not JSON (unexpected end of data: line 1 column 2 (char 1))"),
        ('"pod"', f"the body: {OBJECT} a string"),
        ("{}", "Pod: missing; expected ExtenderArgs {Pod, Nodes, NodeNames}"),
        ('{"Pod":"p"}', f"Pod: {OBJECT} a string"),
        ('{"Pod":{}}', f"Pod.metadata: {OBJECT} nothing"),
        ('{"Pod":{"metadata":{}}}', f"Pod.spec: {OBJECT} nothing"),
        ('{"Pod":{"metadata":{"labels":1},"spec":{}}}', f"Pod.metadata.labels: {OBJECT} a number"),
        (within_spec('"containers":{}'), "Pod.spec.containers: expected a list, found an object"),
        (within_spec('"containers":[null]'), f"Pod.spec.containers[0]: {OBJECT} nothing"),
        (within_spec('"containers":[{}]'), f"Pod.spec.containers[0].name: {STRING} nothing"),
        (within_spec('"initContainers":[{"name":""}]'), f"Pod.spec.initContainers[0].name: {STRING} nothing"),
        (within_container("[]"), f"Pod.spec.containers[0].resources: {OBJECT} a list"),
        (within_container('{"limits":"all"}'), f"Pod.spec.containers[0].resources.limits: {OBJECT} a string"),
        (within_container('{"requests":3}'), f"Pod.spec.containers[0].resources.requests: {OBJECT} a number"),
        ('{"Pod":POD,"NodeNames":"n"}', "NodeNames: expected a list, found a string"),
        ('{"Pod":POD,"NodeNames":["n",2]}', f"NodeNames[1]: {STRING} a number"),
        ('{"Pod":POD,"Nodes":[]}', f"Nodes: {OBJECT} a list"),
        ('{"Pod":POD,"Nodes":{"items":{}}}', "Nodes.items: expected a list, found an object"),
        ('{"Pod":POD,"Nodes":{"items":["n"]}}', f"Nodes.items[0]: {OBJECT} a string"),
        ('{"Pod":POD,"Nodes":{"items":[{}]}}', f"Nodes.items[0].metadata: {OBJECT} nothing"),
        ('{"Pod":POD,"Nodes":{"items":[{"metadata":{"name":7}}]}}', f"Nodes.items[0].metadata.name: {STRING} a number"),
    ],
)
def test_a_bad_filter_body_is_refused_with_what_is_wrong_where(body: str, message: str) -> None:
    assert read(args(body), NodeLists()) == message


@pytest.mark.parametrize("keys", [("Pod", "NodeNames"), ("pod", "nodenames"), ("POD", "nodeNames")])
def test_keys_are_read_in_any_case(keys: tuple[str, str]) -> None:
    body = f'{{"{keys[0]}":{POD.decode()},"{keys[1]}":["n1","n2"]}}'
    found = messages.node_args(body.encode(), NodeLists())
    assert (found.names, found.nodes, found.pod["metadata"]["uid"]) == (["n1", "n2"], None, "u")


def test_whole_nodes_are_read_when_no_names_come_and_bind_arguments_in_any_case() -> None:
    bound = messages.bind_args(b'{"podname":"p","PODNAMESPACE":"n","podUid":"u","node":"n1"}')
    assert (str(bound.pod), bound.pod.uid, bound.node) == ("n/p", "u", "n1")
    found = messages.node_args(
        args('{"Pod":POD,"Nodes":{"Items":[{"metadata":{"name":"n1"}}]},"NodeNames":null}'), NodeLists()
    )
    assert (found.names, found.nodes) == (["n1"], [{"metadata": {"name": "n1"}}])


@pytest.mark.parametrize(
    ("fields", "nodes"), [("", None), (',"Nodes":null,"NodeNames":null', None), (',"Nodes":{}', ())]
)
def test_no_nodes_are_no_error(fields: str, nodes: tuple[()] | None) -> None:
    found = messages.node_args(args('{"Pod":PODFIELDS}'.replace("FIELDS", fields)), NodeLists())
    assert (list(found.names), found.nodes) == ([], nodes)


def test_a_filter_result_has_the_names_of_go_and_whole_nodes_as_they_came() -> None:
    asked = messages.node_args(args('{"Pod":POD,"NodeNames":["a","b","c"]}'), NodeLists())
    result = FilterResult(fits=[NodeName("a")], failed={NodeName("b"): "full"}, unresolvable={NodeName("c"): "never"})
    assert messages.filter_result(result, asked, NodeLists()) == (
        b'{"Nodes":null,"NodeNames":["a"],"FailedNodes":{"b":"full","c":"never"},'
        b'"FailedAndUnresolvableNodes":{"c":"never"},"Error":""}'
    )
    text = '{"Pod":POD,"Nodes":{"items":[{"metadata":{"name":"a"},"x":1},{"metadata":{"name":"b"}}]}}'
    asked = messages.node_args(args(text), NodeLists())
    answer = messages.filter_result(FilterResult(fits=[NodeName("a")]), asked, NodeLists())
    assert b'"Nodes":{"metadata":{},"items":[{"metadata":{"name":"a"},"x":1}]},"NodeNames":null' in answer


def test_errors_and_scores_have_the_names_of_go() -> None:
    assert messages.filter_error("no") == (
        b'{"Nodes":null,"NodeNames":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":"no"}'
    )
    assert (messages.bind_result(), messages.bind_result("no")) == (b'{"Error":""}', b'{"Error":"no"}')


# Preemption, in both forms.


def preempting(text: str) -> bytes:
    pod = '{"metadata":{"name":"p","uid":"u"},"spec":{"priority":7,"containers":[{"name":"c"}]}}'
    return text.replace("POD", pod).encode()


def of_node(victims: str, form: str = "MetaVictims") -> str:
    return f'{{"Pod":POD,"NodeNameTo{form}":{{"n":{victims}}}}}'


NUMBER = "expected a whole number from -2147483648 to 2147483647, found"
COUNT = "expected a whole number from 0 to 2147483647, found"
NO_POD = "Pod: missing; expected ExtenderPreemptionArgs {Pod, NodeNameToVictims, NodeNameToMetaVictims}"


BIND, PREEMPT = messages.bind_args, messages.preempt_args


@pytest.mark.parametrize(
    ("decode", "body", "message"),
    [
        (BIND, "{}", f"PodNamespace: {STRING} nothing"),
        (BIND, '{"PodNamespace":"n","PodName":["p"]}', f"PodName: {STRING} a list"),
        (BIND, '{"PodNamespace":"n","PodName":"p"}', f"PodUID: {STRING} nothing"),
        (BIND, '{"PodNamespace":"n","PodName":"p","PodUID":"u","Node":""}', f"Node: {STRING} an empty string"),
        (PREEMPT, "{}", NO_POD),
        (PREEMPT, within_spec('"priority":"high"'), f"Pod.spec.priority: {NUMBER} a string"),
        (PREEMPT, within_spec('"priority":2147483648'), f"Pod.spec.priority: {NUMBER} 2147483648"),
        (PREEMPT, '{"Pod":POD,"NodeNameToMetaVictims":[]}', f"NodeNameToMetaVictims: {OBJECT} a list"),
        (PREEMPT, '{"Pod":POD,"NodeNameToVictims":"n"}', f"NodeNameToVictims: {OBJECT} a string"),
        (PREEMPT, of_node("[]"), f"NodeNameToMetaVictims[n]: {OBJECT} a list"),
        (PREEMPT, of_node('{"Pods":[{"UID":"u"},null]}'), f"NodeNameToMetaVictims[n].Pods[1]: {OBJECT} nothing"),
        (PREEMPT, of_node('{"Pods":[{"UID":""}]}'), f"NodeNameToMetaVictims[n].Pods[0].UID: {STRING} an empty string"),
        (PREEMPT, of_node('{"NumPDBViolations":-1}'), f"NodeNameToMetaVictims[n].NumPDBViolations: {COUNT} -1"),
        (
            PREEMPT,
            of_node('{"Pods":[{"metadata":{"name":"a"}}]}', "Victims"),
            f"NodeNameToVictims[n].Pods[0].metadata.uid: {STRING} nothing",
        ),
    ],
)
def test_other_bad_bodies_are_refused_with_what_is_wrong_where(
    decode: Callable[[bytes], object], body: str, message: str
) -> None:
    with pytest.raises(WireError) as error:
        decode(preempting(body))
    assert str(error.value) == message


def victims(*uids: str, violations: int = 0) -> Victims:
    return Victims(pods=tuple(PodUid(uid) for uid in uids), violations=violations)


@pytest.mark.parametrize(
    "body",
    [
        '{"Pod":POD,"NodeNameToVictims":null,"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"a"},{"UID":"b"}],"NumPDBViolations":2}}}',
        '{"pod":POD,"nodenametometavictims":{"n":{"pods":[{"uid":"a"},{"Uid":"b"}],"numpdbviolations":2}}}',
        '{"Pod":POD,"NodeNameToVictims":{"n":{"Pods":[{"metadata":{"uid":"a"}},{"metadata":{"uid":"b"}}],"NumPDBViolations":2}}}',
        '{"pOD":POD,"NODENAMETOVICTIMS":{"n":{"pods":[{"metadata":{"uid":"a"}},{"metadata":{"uid":"b"}}],"numPDBViolations":2}}}',
        '{"Pod":POD,"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"a"},{"UID":"b"},{"UID":"a"}],"NumPDBViolations":2}}}',
    ],
)
def test_both_forms_are_read_in_any_case(body: str) -> None:
    found = messages.preempt_args(preempting(body))
    assert (found.priority, found.victims) == (7, {"n": victims("a", "b", violations=2)})


def test_no_nodes_to_preempt_on_no_victims_and_no_priority_are_no_error() -> None:
    for body in ('{"Pod":POD}', '{"Pod":POD,"NodeNameToVictims":{},"NodeNameToMetaVictims":null}'):
        assert messages.preempt_args(preempting(body)).victims == {}
    for node in ("null", "{}", '{"Pods":null,"NumPDBViolations":null}'):
        assert messages.preempt_args(preempting(of_node(node))).victims == {"n": victims()}
    assert messages.preempt_args(b'{"Pod":{"metadata":{},"spec":{}}}').priority == 0


def test_the_answer_has_the_names_of_go() -> None:
    answer = messages.preempt_result({NodeName("n"): victims("a", "b", violations=1)})
    assert answer == b'{"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"a"},{"UID":"b"}],"NumPDBViolations":1}}}'
    assert orjson.loads(messages.preempt_result({})) == {"NodeNameToMetaVictims": {}}


A, B = NodeName("node-a"), NodeName("node-b")
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
@pytest.mark.parametrize("scores", [[1, 3, 10], [0, 10, 0], [2, 2, 2], [10, 0, 8]])
def test_scores_keep_their_distances_and_the_lowest_is_left_out(name: str, scores: list[int]) -> None:
    nodes = NodeList([A, NodeName(name), NodeName("c")])
    found = {each["Host"]: each["Score"] for each in orjson.loads(nodes.priorities(np.array(scores, np.uint8)))}
    assert [found.get(node, 0) for node in nodes] == [score - min(scores) for score in scores]
    assert 0 not in found.values()


def test_no_node_has_no_score() -> None:
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
    sizes = [sys.getsizeof(kept), sys.getsizeof(kept.sent), *map(sys.getsizeof, kept)]
    assert sum(sizes) + kept.rows(Table()).nbytes < 12 * len(kept.sent)


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
