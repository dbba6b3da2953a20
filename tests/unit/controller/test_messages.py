from collections.abc import Callable

import orjson
import pytest

from controller.cluster_table import FilterResult
from controller.extender import messages
from controller.extender.messages import NodeLists
from controller.preemption import Victims
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodUid

POD = b'{"metadata":{"name":"p","uid":"u"},"spec":{"containers":[{"name":"c"}]}}'


def args(text: str) -> bytes:
    """ExtenderArgs around a pod's text."""
    return text.replace("POD", POD.decode()).encode()


def within_spec(field: str) -> str:
    return '{"Pod":{"metadata":{},"spec":{FIELD}}}'.replace("FIELD", field)


def within_container(resources: str) -> str:
    return within_spec('"containers":[{"name":"c","resources":RESOURCES}]'.replace("RESOURCES", resources))


OBJECT = "expected an object, found"


def refused(read: Callable[[bytes], object], body: bytes) -> str:
    with pytest.raises(WireError) as error:
        read(body)
    return str(error.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the body: empty; expected JSON"),
        ("{", "the body: not JSON (line 1, column 2)"),
        ('"pod"', f"the body: {OBJECT} a string"),
        ("{}", "Pod: missing; expected ExtenderArgs {Pod, Nodes, NodeNames}"),
        ('{"Pod":"p"}', f"Pod: {OBJECT} a string"),
        ('{"Pod":{}}', f"Pod.metadata: {OBJECT} nothing"),
        ('{"Pod":{"metadata":{}}}', f"Pod.spec: {OBJECT} nothing"),
        ('{"Pod":{"metadata":{"labels":1},"spec":{}}}', f"Pod.metadata.labels: {OBJECT} a number"),
        (
            '{"Pod":{"metadata":{"labels":{"a":1}},"spec":{}}}',
            "Pod.metadata.labels[a]: expected a string, found a number",
        ),
        ('{"Pod":{"metadata":{"annotations":[]},"spec":{}}}', f"Pod.metadata.annotations: {OBJECT} a list"),
        (within_spec('"containers":{}'), "Pod.spec.containers: expected a list, found an object"),
        (within_spec('"containers":[null]'), f"Pod.spec.containers[0]: {OBJECT} nothing"),
        (within_spec('"containers":[{}]'), "Pod.spec.containers[0].name: expected a string, found nothing"),
        (
            within_spec('"initContainers":[{"name":""}]'),
            "Pod.spec.initContainers[0].name: expected a string, found nothing",
        ),
        (within_container("[]"), f"Pod.spec.containers[0].resources: {OBJECT} a list"),
        (within_container('{"limits":"all"}'), f"Pod.spec.containers[0].resources.limits: {OBJECT} a string"),
        (within_container('{"requests":3}'), f"Pod.spec.containers[0].resources.requests: {OBJECT} a number"),
        ('{"Pod":POD,"NodeNames":"n"}', "NodeNames: expected a list, found a string"),
        ('{"Pod":POD,"NodeNames":["n",2]}', "NodeNames[1]: expected a string, found a number"),
        ('{"Pod":POD,"Nodes":[]}', f"Nodes: {OBJECT} a list"),
        ('{"Pod":POD,"Nodes":{"items":{}}}', "Nodes.items: expected a list, found an object"),
        ('{"Pod":POD,"Nodes":{"items":["n"]}}', f"Nodes.items[0]: {OBJECT} a string"),
        ('{"Pod":POD,"Nodes":{"items":[{}]}}', f"Nodes.items[0].metadata: {OBJECT} nothing"),
        (
            '{"Pod":POD,"Nodes":{"items":[{"metadata":{"name":7}}]}}',
            "Nodes.items[0].metadata.name: expected a string, found a number",
        ),
    ],
)
def test_a_bad_filter_body_is_refused_with_what_is_wrong_where(body: str, message: str) -> None:
    assert refused(lambda sent: messages.node_args(sent, NodeLists()), args(body)) == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{}", "PodNamespace: expected a string, found nothing"),
        ('{"PodNamespace":"n","PodName":["p"]}', "PodName: expected a string, found a list"),
        ('{"PodNamespace":"n","PodName":"p"}', "PodUID: expected a string, found nothing"),
        ('{"PodNamespace":"n","PodName":"p","PodUID":"u","Node":""}', "Node: expected a string, found an empty string"),
    ],
)
def test_a_bad_bind_body_is_refused_with_what_is_wrong_where(body: str, message: str) -> None:
    assert refused(messages.bind_args, body.encode()) == message


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


NO_POD = "Pod: missing; expected ExtenderPreemptionArgs {Pod, NodeNameToVictims, NodeNameToMetaVictims}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{}", NO_POD),
        ('{"Pod":POD,"NodeNameToMetaVictims":[]}', "NodeNameToMetaVictims: expected an object, found a list"),
        ('{"Pod":POD,"NodeNameToVictims":"n"}', "NodeNameToVictims: expected an object, found a string"),
    ],
)
def test_a_bad_preempt_body_is_refused_with_what_is_wrong_where(body: str, message: str) -> None:
    assert refused(messages.preempt_args, preempting(body)) == message


@pytest.mark.parametrize(
    ("priority", "found"),
    [
        ('"high"', "a string"),
        ("2147483648", "2147483648"),
    ],
)
def test_a_priority_is_a_whole_number_of_32_bits(priority: str, found: str) -> None:
    expected = "Pod.spec.priority: expected a whole number from -2147483648 to 2147483647, found "
    assert refused(messages.preempt_args, within_spec(f'"priority":{priority}').encode()) == expected + found


@pytest.mark.parametrize(
    ("form", "node", "message"),
    [
        ("MetaVictims", "[]", ": expected an object, found a list"),
        ("MetaVictims", '{"Pods":[{"UID":"u"},null]}', ".Pods[1]: expected an object, found nothing"),
        ("MetaVictims", '{"Pods":[{"UID":""}]}', ".Pods[0].UID: expected a string, found an empty string"),
        (
            "MetaVictims",
            '{"NumPDBViolations":-1}',
            ".NumPDBViolations: expected a whole number from 0 to 2147483647, found -1",
        ),
        ("Victims", '{"Pods":[{"metadata":{"name":"a"}}]}', ".Pods[0].metadata.uid: expected a string, found nothing"),
    ],
)
def test_bad_victims_are_refused_with_what_is_wrong_where(form: str, node: str, message: str) -> None:
    body = '{"Pod":POD,"NodeNameToFORM":{"n":NODE}}'.replace("FORM", form).replace("NODE}", node + "}")
    assert refused(messages.preempt_args, preempting(body)) == f"NodeNameTo{form}[n]{message}"


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
        text = '{"Pod":POD,"NodeNameToMetaVictims":{"Node-A":NODE}}'.replace("NODE}", node + "}")
        assert messages.preempt_args(preempting(text)).victims == {"Node-A": victims()}
    assert messages.preempt_args(b'{"Pod":{"metadata":{},"spec":{}}}').priority == 0


def test_the_answer_has_the_names_of_go() -> None:
    answer = messages.preempt_result({NodeName("n"): victims("a", "b", violations=1)})
    assert answer == b'{"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"a"},{"UID":"b"}],"NumPDBViolations":1}}}'
    assert orjson.loads(messages.preempt_result({})) == {"NodeNameToMetaVictims": {}}
