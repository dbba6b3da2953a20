"""What kube-scheduler sends about preemption, in both forms, and what comes back."""

import orjson
import pytest

from controller.extender import messages
from controller.preemption import Victims
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodUid

POD = '{"metadata":{"name":"p","uid":"u"},"spec":{"priority":7,"containers":[{"name":"c"}]}}'


def args(text: str) -> bytes:
    return text.replace("POD", POD).encode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the body: empty; expected JSON"),
        ("{", "the body: not JSON (line 1, column 2)"),
        ("[]", "the body: expected an object, found a list"),
        (
            "{}",
            "Pod: missing; expected ExtenderPreemptionArgs {Pod, NodeNameToVictims, NodeNameToMetaVictims}",
        ),
        (
            '{"Pod":null,"NodeNameToVictims":{}}',
            "Pod: missing; expected ExtenderPreemptionArgs {Pod, NodeNameToVictims, NodeNameToMetaVictims}",
        ),
        ('{"Pod":[]}', "Pod: expected an object, found a list"),
        ('{"Pod":{"metadata":{}}}', "Pod.spec: expected an object, found nothing"),
        (
            '{"Pod":{"metadata":{},"spec":{"priority":"high"}}}',
            "Pod.spec.priority: expected a whole number from -2147483648 to 2147483647, found a string",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"priority":""}}}',
            "Pod.spec.priority: expected a whole number from -2147483648 to 2147483647, found an empty string",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"priority":true}}}',
            "Pod.spec.priority: expected a whole number from -2147483648 to 2147483647, found true or false",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"priority":1.5}}}',
            "Pod.spec.priority: expected a whole number from -2147483648 to 2147483647, found 1.5",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"priority":2147483648}}}',
            "Pod.spec.priority: expected a whole number from -2147483648 to 2147483647, found 2147483648",
        ),
        (
            '{"Pod":{"metadata":{},"spec":{"priority":{}}}}',
            "Pod.spec.priority: expected a whole number from -2147483648 to 2147483647, found an object",
        ),
        ('{"Pod":POD,"NodeNameToMetaVictims":[]}', "NodeNameToMetaVictims: expected an object, found a list"),
        ('{"Pod":POD,"NodeNameToVictims":"n"}', "NodeNameToVictims: expected an object, found a string"),
        (
            '{"Pod":POD,"NodeNameToMetaVictims":{"n":[]}}',
            "NodeNameToMetaVictims[n]: expected an object, found a list",
        ),
        (
            '{"Pod":POD,"NodeNameToMetaVictims":{"n":{"Pods":{}}}}',
            "NodeNameToMetaVictims[n].Pods: expected a list, found an object",
        ),
        (
            '{"Pod":POD,"NodeNameToMetaVictims":{"n":{"Pods":["u"]}}}',
            "NodeNameToMetaVictims[n].Pods[0]: expected an object, found a string",
        ),
        (
            '{"Pod":POD,"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"u"},null]}}}',
            "NodeNameToMetaVictims[n].Pods[1]: expected an object, found nothing",
        ),
        (
            '{"Pod":POD,"NodeNameToMetaVictims":{"n":{"Pods":[{}]}}}',
            "NodeNameToMetaVictims[n].Pods[0].UID: expected a string, found nothing",
        ),
        (
            '{"Pod":POD,"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":""}]}}}',
            "NodeNameToMetaVictims[n].Pods[0].UID: expected a string, found an empty string",
        ),
        (
            '{"Pod":POD,"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":5}]}}}',
            "NodeNameToMetaVictims[n].Pods[0].UID: expected a string, found a number",
        ),
        (
            '{"Pod":POD,"NodeNameToMetaVictims":{"n":{"NumPDBViolations":-1}}}',
            "NodeNameToMetaVictims[n].NumPDBViolations: expected a whole number from 0 to 2147483647, found -1",
        ),
        (
            '{"Pod":POD,"NodeNameToMetaVictims":{"n":{"NumPDBViolations":"0"}}}',
            "NodeNameToMetaVictims[n].NumPDBViolations: expected a whole number from 0 to 2147483647, found a string",
        ),
        (
            '{"Pod":POD,"NodeNameToVictims":{"n":{"Pods":[{"UID":"u"}]}}}',
            "NodeNameToVictims[n].Pods[0].metadata: expected an object, found nothing",
        ),
        (
            '{"Pod":POD,"NodeNameToVictims":{"n":{"Pods":[{"metadata":{"name":"a"}}]}}}',
            "NodeNameToVictims[n].Pods[0].metadata.uid: expected a string, found nothing",
        ),
        (
            '{"Pod":POD,"NodeNameToVictims":{"n":{"Pods":[{"metadata":[]}]}}}',
            "NodeNameToVictims[n].Pods[0].metadata: expected an object, found a list",
        ),
    ],
)
def test_a_bad_body_is_refused_with_what_is_wrong_where(body: str, message: str) -> None:
    with pytest.raises(WireError) as error:
        messages.preempt_args(args(body))
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
    found = messages.preempt_args(args(body))
    assert (found.priority, found.victims) == (7, {"n": victims("a", "b", violations=2)})


@pytest.mark.parametrize("body", ['{"Pod":POD}', '{"Pod":POD,"NodeNameToVictims":{},"NodeNameToMetaVictims":null}'])
def test_no_nodes_are_no_error(body: str) -> None:
    assert messages.preempt_args(args(body)).victims == {}


@pytest.mark.parametrize("node", ["null", "{}", '{"Pods":null,"NumPDBViolations":null}'])
def test_a_node_without_victims_is_no_error(node: str) -> None:
    body = args('{"Pod":POD,"NodeNameToMetaVictims":{"Node-A":NODE}}'.replace("NODE}", node + "}"))
    assert messages.preempt_args(body).victims == {"Node-A": victims()}


def test_a_pod_without_priority_has_the_lowest_that_a_cluster_without_classes_knows() -> None:
    assert messages.preempt_args(b'{"Pod":{"metadata":{},"spec":{}}}').priority == 0


def test_the_answer_has_the_names_of_go() -> None:
    answer = messages.preempt_result({NodeName("n"): victims("a", "b", violations=1)})
    assert answer == b'{"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"a"},{"UID":"b"}],"NumPDBViolations":1}}}'
    assert orjson.loads(messages.preempt_result({})) == {"NodeNameToMetaVictims": {}}
