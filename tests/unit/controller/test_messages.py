import orjson
import pytest

from controller.extender import messages
from controller.extender.messages import FilterResult
from gpushare.errors import WireError
from gpushare.identity import NodeName
from testing.builders import make_pod

POD = b'{"metadata":{"name":"p","uid":"u"},"spec":{"containers":[{"name":"c"}]}}'


def args(text: str) -> bytes:
    """ExtenderArgs around a pod's text."""
    return text.replace("POD", POD.decode()).encode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the body: empty; expected JSON"),
        ("{", "the body: not JSON (line 1, column 2)"),
        ("\x00", "the body: not JSON (line 1, column 1)"),
        ("null", "the body: expected an object, found nothing"),
        ("[]", "the body: expected an object, found a list"),
        ('"pod"', "the body: expected an object, found a string"),
        ("7", "the body: expected an object, found a number"),
        ("{}", "Pod: missing; expected ExtenderArgs {Pod, Nodes, NodeNames}"),
        ('{"Pod":null}', "Pod: missing; expected ExtenderArgs {Pod, Nodes, NodeNames}"),
        ('{"Pod":"p"}', "Pod: expected an object, found a string"),
        ('{"Pod":{}}', "Pod.metadata: expected an object, found nothing"),
        ('{"Pod":{"metadata":[]}}', "Pod.metadata: expected an object, found a list"),
        ('{"Pod":{"metadata":{}}}', "Pod.spec: expected an object, found nothing"),
        ('{"Pod":{"metadata":{},"spec":true}}', "Pod.spec: expected an object, found true or false"),
        ('{"Pod":{"metadata":{"labels":1},"spec":{}}}', "Pod.metadata.labels: expected an object, found a number"),
        (
            '{"Pod":{"metadata":{"labels":{"a":1}},"spec":{}}}',
            "Pod.metadata.labels[a]: expected a string, found a number",
        ),
        (
            '{"Pod":{"metadata":{"annotations":["a"]},"spec":{}}}',
            "Pod.metadata.annotations: expected an object, found a list",
        ),
        (
            '{"Pod":{"metadata":{"annotations":{"a":null}},"spec":{}}}',
            "Pod.metadata.annotations[a]: expected a string, found nothing",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"containers":{}}}}',
            "Pod.spec.containers: expected a list, found an object",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"containers":[null]}}}',
            "Pod.spec.containers[0]: expected an object, found nothing",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"containers":[{}]}}}',
            "Pod.spec.containers[0].name: expected a string, found nothing",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"initContainers":[{"name":""}]}}}',
            "Pod.spec.initContainers[0].name: expected a string, found nothing",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"containers":[{"name":"c","resources":[]}]}}}',
            "Pod.spec.containers[0].resources: expected an object, found a list",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"containers":[{"name":"c","resources":{"limits":"all"}}]}}}',
            "Pod.spec.containers[0].resources.limits: expected an object, found a string",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"containers":[{"name":"c","resources":{"requests":3}}]}}}',
            "Pod.spec.containers[0].resources.requests: expected an object, found a number",
        ),
        ('{"Pod":POD,"NodeNames":"n"}', "NodeNames: expected a list, found a string"),
        ('{"Pod":POD,"NodeNames":["n",2]}', "NodeNames[1]: expected a string, found a number"),
        ('{"Pod":POD,"Nodes":[]}', "Nodes: expected an object, found a list"),
        ('{"Pod":POD,"Nodes":{"items":{}}}', "Nodes.items: expected a list, found an object"),
        ('{"Pod":POD,"Nodes":{"items":["n"]}}', "Nodes.items[0]: expected an object, found a string"),
        ('{"Pod":POD,"Nodes":{"items":[{}]}}', "Nodes.items[0].metadata: expected an object, found nothing"),
        (
            '{"Pod":POD,"Nodes":{"items":[{"metadata":{"name":7}}]}}',
            "Nodes.items[0].metadata.name: expected a string, found a number",
        ),
    ],
)
def test_a_bad_filter_body_is_refused_with_what_is_wrong_where(body: str, message: str) -> None:
    with pytest.raises(WireError) as error:
        messages.node_args(args(body))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x", "the body: not JSON (line 1, column 1)"),
        ("[1]", "the body: expected an object, found a list"),
        ("{}", "PodNamespace: expected a string, found nothing"),
        ('{"PodNamespace":"n"}', "PodName: expected a string, found nothing"),
        ('{"PodNamespace":"n","PodName":["p"]}', "PodName: expected a string, found a list"),
        ('{"PodNamespace":"n","PodName":"p"}', "PodUID: expected a string, found nothing"),
        ('{"PodNamespace":"n","PodName":"p","PodUID":1}', "PodUID: expected a string, found a number"),
        ('{"PodNamespace":"n","PodName":"p","PodUID":"u"}', "Node: expected a string, found nothing"),
        ('{"PodNamespace":"n","PodName":"p","PodUID":"u","Node":""}', "Node: expected a string, found an empty string"),
        ('{"PodNamespace":"n","PodName":"p","PodUID":"u","Node":{}}', "Node: expected a string, found an object"),
    ],
)
def test_a_bad_bind_body_is_refused_with_what_is_wrong_where(body: str, message: str) -> None:
    with pytest.raises(WireError) as error:
        messages.bind_args(body.encode())
    assert str(error.value) == message


@pytest.mark.parametrize("keys", [("Pod", "NodeNames"), ("pod", "nodenames"), ("POD", "nodeNames")])
def test_keys_are_read_in_any_case(keys: tuple[str, str]) -> None:
    body = f'{{"{keys[0]}":{POD.decode()},"{keys[1]}":["n1","n2"]}}'
    found = messages.node_args(body.encode())
    assert (found.names, found.nodes, found.pod["metadata"]["uid"]) == (["n1", "n2"], None, "u")


def test_whole_nodes_are_read_when_no_names_come() -> None:
    found = messages.node_args(args('{"Pod":POD,"Nodes":{"Items":[{"metadata":{"name":"n1"}}]},"NodeNames":null}'))
    assert found.names == ["n1"]
    assert found.nodes == [{"metadata": {"name": "n1"}}]


@pytest.mark.parametrize("text", ['{"Pod":POD}', '{"Pod":POD,"Nodes":null,"NodeNames":null}'])
def test_no_nodes_are_no_error(text: str) -> None:
    found = messages.node_args(args(text))
    assert (list(found.names), found.nodes) == ([], None)


def test_a_node_list_without_items_is_empty() -> None:
    assert messages.node_args(args('{"Pod":POD,"Nodes":{}}')).names == []


def test_bind_arguments_are_read_in_any_case() -> None:
    found = messages.bind_args(b'{"podname":"p","PODNAMESPACE":"n","podUid":"u","node":"n1"}')
    assert (found.namespace, found.name, found.uid, found.node) == ("n", "p", "u", "n1")


def test_a_filter_result_has_the_names_of_go() -> None:
    asked = messages.node_args(args('{"Pod":POD,"NodeNames":["a","b","c"]}'))
    result = FilterResult(fits=[NodeName("a")], failed={NodeName("b"): "full"}, unresolvable={NodeName("c"): "never"})
    assert messages.filter_result(result, asked) == (
        b'{"Nodes":null,"NodeNames":["a"],"FailedNodes":{"b":"full","c":"never"},'
        b'"FailedAndUnresolvableNodes":{"c":"never"},"Error":""}'
    )


def test_whole_nodes_are_answered_with_the_same_objects() -> None:
    asked = messages.node_args(
        args('{"Pod":POD,"Nodes":{"items":[{"metadata":{"name":"a"},"x":1},{"metadata":{"name":"b"}}]}}')
    )
    answer = messages.filter_result(FilterResult(fits=[NodeName("a")]), asked)
    assert b'"Nodes":{"metadata":{},"items":[{"metadata":{"name":"a"},"x":1}]},"NodeNames":null' in answer


def test_errors_and_scores_have_the_names_of_go() -> None:
    assert messages.filter_error("no") == (
        b'{"Nodes":null,"NodeNames":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":"no"}'
    )
    assert messages.bind_result() == b'{"Error":""}'
    assert messages.bind_result("no") == b'{"Error":"no"}'
    scores = messages.priorities([NodeName("a"), NodeName("b"), NodeName("c")], [3, 10, 0])
    assert scores == b'[{"Host":"a","Score":3},{"Host":"b","Score":10},{"Host":"c","Score":0}]'
    assert messages.priorities([], []) == b"[]"


@pytest.mark.parametrize("name", ['a"b', "a\\b", "ä", "a\n", ""])
def test_scores_are_json_whatever_nodes_are_called(name: str) -> None:
    assert orjson.loads(messages.priorities([NodeName(name)], [3])) == [{"Host": name, "Score": 3}]


def test_a_real_pod_passes_the_checks() -> None:
    pod = make_pod(labels={"a": "b"}, annotations={"c": "d"})
    assert messages.node_args(orjson.dumps({"Pod": pod, "NodeNames": []})).pod == pod
