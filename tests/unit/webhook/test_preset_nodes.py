"""Pods that come with their node: bound late by the controller, so admitted with a word of advice."""

import pytest

from testing.reviews import ALL, RULES, VOID, WHOLE, Json, asking, container, pod, review, visible
from tests.unit.webhook.conftest import Webhook
from webhook import mutation
from webhook.mutation import Denied, Mutated, Untouched

ADVICE = (
    "spec.nodeName by-passes the scheduler, which looks for free GPUs: the pod waits on that node until they are free,"
    " or for ever if they never fit; better choose it by spec.nodeSelector or node affinity on kubernetes.io/hostname"
)


@pytest.mark.parametrize("asked", [{"mem": 3}, {"percent": 20}, {"mem": 3, "core": 10}, {"gpu": 1}])
def test_a_gpu_pod_with_a_preset_node_is_completed_and_its_author_told(asked: dict[str, int]) -> None:
    decision = mutation.mutate(pod(asking("a", **asked), container("b"), nodeName="node-a"), WHOLE)
    assert isinstance(decision, Mutated)
    assert decision.warnings == (ADVICE,)
    spec = decision.pod["spec"]
    assert (spec["nodeName"], spec["runtimeClassName"]) == ("node-a", "nvidia")
    assert [each["env"][0] for each in spec["containers"]] == [visible("a"), VOID]
    assert decision.pod["metadata"]["labels"]["gpushare.dev/managed"] == "true"
    assert mutation.mutate(decision.pod, WHOLE) == Untouched()


def test_the_advice_is_shown_whole() -> None:
    assert len(ADVICE) <= 256


def test_the_api_server_hands_the_advice_on(webhook: Webhook) -> None:
    response = webhook.ask("/mutate", review(pod(asking(mem=3), nodeName="node-a")))
    assert (response["allowed"], response["warnings"]) == (True, [ADVICE])


@pytest.mark.parametrize("name", ["", None])
def test_a_node_that_is_not_named_is_none(name: object) -> None:
    decision = mutation.mutate(pod(asking(mem=3), nodeName=name), RULES)
    assert isinstance(decision, Mutated)
    assert decision.warnings == ()


OTHER = container("n", resources={"limits": {"nvidia.com/gpu": "1"}})
MIG = container("m", resources={"limits": {"nvidia.com/mig-1g.5gb": "1"}})
BOTH = container("a", env=[ALL], resources={"limits": {"aliyun.com/gpu-mem": "3", "nvidia.com/gpu": "1"}})


@pytest.mark.parametrize(
    ("asked", "path", "resource"),
    [
        (pod(OTHER), "spec.containers[0]", "nvidia.com/gpu"),
        (pod(asking("a", mem=3), OTHER), "spec.containers[1]", "nvidia.com/gpu"),
        (pod(asking("a", percent=3), init=[OTHER]), "spec.initContainers[0]", "nvidia.com/gpu"),
    ],
)
def test_a_preset_node_and_another_plugins_gpus_are_refused(asked: Json, path: str, resource: str) -> None:
    asked["spec"]["nodeName"] = "node-a"
    decision = mutation.mutate(asked, RULES)
    assert isinstance(decision, Denied)
    assert [str(error) for error in decision.errors] == [
        f"spec.nodeName: a preset node by-passes the scheduler, but {path} asks for {resource};"
        " on a node without that resource it would see all GPUs; remove it and choose the node by spec.nodeSelector or"
        " node affinity on kubernetes.io/hostname"
    ]


def test_slices_of_gpus_are_refused_also_where_whole_gpus_are_ours() -> None:
    assert isinstance(mutation.mutate(pod(asking("a", gpu=1), MIG, nodeName="node-a"), WHOLE), Denied)
    assert isinstance(mutation.mutate(pod(MIG, nodeName="node-a"), WHOLE), Denied)


def test_a_container_that_asks_for_ours_too_sees_what_we_grant_wherever_it_runs() -> None:
    decision = mutation.mutate(pod(BOTH, nodeName="node-a"), RULES)
    assert isinstance(decision, Mutated)
    devices = [entry for entry in decision.pod["spec"]["containers"][0]["env"] if entry["name"] == ALL["name"]]
    assert devices == [visible("a")]
