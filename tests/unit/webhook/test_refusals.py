"""Bad input to `/mutate`: what exactly its author reads. Through HTTP, as the API server asks."""

import pytest

from testing.reviews import Json, container, pod, review
from tests.unit.webhook.conftest import Webhook

LIMIT = "spec.containers[0].resources.limits[aliyun.com/gpu-mem]"
REQUEST = "spec.containers[0].resources.requests[aliyun.com/gpu-mem]"
NUMBER = "write a whole number of units such as 3"
COUNT_FIX = (
    "remove it; to use several GPUs, put the label aliyun.com/gpu-count on the pod (amounts are totals)"
    " or the annotation gpushare.dev/gpus (amounts are per GPU)"
)
LABEL = "metadata.labels[aliyun.com/gpu-count]"
GPUS = "metadata.annotations[gpushare.dev/gpus]"
QUOTES = 'write a whole number in quotes, such as "2"'


def asking(limits: object, requests: object = None) -> Json:
    resources = {"limits": {"aliyun.com/gpu-mem": limits}}
    if requests is not None:
        resources["requests"] = {"aliyun.com/gpu-mem": requests}
    return pod(container(resources=resources))


def counted(amount: str, *, label: str | None = None, gpus: str | None = None, **more: str) -> Json:
    labels = None if label is None else {"aliyun.com/gpu-count": label}
    annotations = {**({} if gpus is None else {"gpushare.dev/gpus": gpus}), **more}
    return pod(container(gpu_mem=amount), labels=labels, annotations=annotations)


AMOUNTS = [
    (asking(0), f"{LIMIT}: 0 asks for nothing; remove the entry or write at least 1"),
    (asking("0"), f"{LIMIT}: 0 asks for nothing; remove the entry or write at least 1"),
    (asking("-3"), f"{LIMIT}: -3 is negative; {NUMBER}"),
    (asking(1.5), f"{LIMIT}: 1.5 is not whole; a share is a whole number of units"),
    (asking("500m"), f"{LIMIT}: 500m is not whole (m stands for thousandths); a share is a whole number of units"),
    (
        asking("10G"),
        f"{LIMIT}: 10G has a suffix, but the resource is counted in units; write the number alone, such as 10",
    ),
    (
        asking("4Gi"),
        f"{LIMIT}: 4Gi has a suffix, but the resource is counted in units; write the number alone, such as 4",
    ),
    (
        asking("1e3"),
        f"{LIMIT}: 1e3 has a suffix, but the resource is counted in units; write the number alone, such as 1",
    ),
    (asking("abc"), f"{LIMIT}: 'abc' is not a number; {NUMBER}"),
    (asking(""), f"{LIMIT}: '' is not a number; {NUMBER}"),
    (asking(None), f"{LIMIT}: None is not a number; {NUMBER}"),
    (asking(True), f"{LIMIT}: True is not a number; {NUMBER}"),
    (asking([3]), f"{LIMIT}: [3] is not a number; {NUMBER}"),
    (
        asking("2000M"),
        f"{LIMIT}: 2000M is more than any node can hold; write a number of units up to 1000000000",
    ),
    (asking("3", "2"), f"{REQUEST}: 2 differs from the limit 3; write 3 or leave requests out"),
    (asking("3", "many"), f"{LIMIT}: 'many' is not a number; {NUMBER}"),
    (
        pod(container(resources={"requests": {"aliyun.com/gpu-mem": "3"}})),
        "spec.containers[0].resources.limits: requests aliyun.com/gpu-mem without a limit;"
        " write the same amount under limits",
    ),
    (
        pod(container("a", "3"), init=[container("i", "-1")]),
        f"spec.initContainers[0].resources.limits[aliyun.com/gpu-mem]: -1 is negative; {NUMBER}",
    ),
    (
        pod(container("a", "0"), container("b", "x")),
        f"{LIMIT}: 0 asks for nothing; remove the entry or write at least 1"
        f" | spec.containers[1].resources.limits[aliyun.com/gpu-mem]: 'x' is not a number; {NUMBER}",
    ),
]

SHAPES = [
    (
        pod(container(resources={"limits": {"aliyun.com/gpu-count": "1"}})),
        "spec.containers[0].resources.limits[aliyun.com/gpu-count]:"
        f" this resource is for the node's ledger and cannot be requested; {COUNT_FIX}",
    ),
    (counted("6", label="0x2"), f"{LABEL}: not a number of GPUs: '0x2' is not a number; {QUOTES}"),
    (counted("6", label="-2"), f"{LABEL}: not a number of GPUs: -2 is negative; {QUOTES}"),
    (counted("6", label="65"), f"{LABEL}: 65 GPUs are more than any node has; write a number up to 64"),
    (counted("6", gpus="two"), f"{GPUS}: not a number of GPUs: 'two' is not a number; {QUOTES}"),
    (
        counted("6", gpus="1.5"),
        f"{GPUS}: not a number of GPUs: 1.5 is not whole; {QUOTES}",
    ),
    (counted("6", gpus="100"), f"{GPUS}: 100 GPUs are more than any node has; write a number up to 64"),
    (
        counted("6", gpus="2", label="2"),
        f"{GPUS}: the label aliyun.com/gpu-count (amounts are totals) contradicts it (amounts are per GPU);"
        " keep one of the two",
    ),
    (counted("7", label="2"), f"{LIMIT}: 7 cannot be split evenly over 2 GPUs; write 6 or 8"),
    (counted("1", label="4"), f"{LIMIT}: 1 cannot be split evenly over 4 GPUs; write 4"),
    (
        counted("500M", gpus="4"),
        f"{GPUS}: container a: 4 GPUs with 500000000 units each exceed any node; write fewer GPUs or a smaller amount",
    ),
    (
        counted("6", gpus="2", **{"gpushare.dev/limits-are-totals": "false"}),
        "metadata.annotations[gpushare.dev/limits-are-totals]: 'false' is no value of it;"
        ' remove it, or write "true" if the limits are totals over all GPUs already',
    ),
    (
        counted("6", **{"gpushare.dev/gpu-policy": "fastest"}),
        "metadata.annotations[gpushare.dev/gpu-policy]: 'fastest' is no policy; write binpack, spread, dense or fgd",
    ),
]

EXPLAIN = "see kubectl explain pod"
STRUCTURES: list[tuple[object, str]] = [
    (None, f"object: expected an object, found nothing; {EXPLAIN}"),
    ([], f"object: expected an object, found a list; {EXPLAIN}"),
    ({}, f"spec: expected an object, found nothing; {EXPLAIN}.spec"),
    ({"spec": "x"}, f"spec: expected an object, found a string; {EXPLAIN}.spec"),
    ({"spec": {}, "metadata": []}, f"metadata: expected an object, found a list; {EXPLAIN}.metadata"),
    (
        {"spec": {}, "metadata": {"annotations": {"a.b/c": 3}}},
        f"metadata.annotations[a.b/c]: expected a string, found a number; {EXPLAIN}.metadata.annotations",
    ),
    (
        {"spec": {}, "metadata": {"labels": ["x"]}},
        f"metadata.labels: expected an object, found a list; {EXPLAIN}.metadata.labels",
    ),
    (
        {"spec": {}, "metadata": {"name": 3}},
        f"metadata.name: expected a string, found a number; {EXPLAIN}.metadata.name",
    ),
    (
        {"spec": {"containers": {}}},
        f"spec.containers: expected a list, found an object; {EXPLAIN}.spec.containers",
    ),
    (
        {"spec": {"containers": [None]}},
        f"spec.containers[0]: expected an object, found nothing; {EXPLAIN}.spec.containers",
    ),
    (
        {"spec": {"containers": [{"image": "x"}]}},
        f"spec.containers[0].name: expected a string, found nothing; {EXPLAIN}.spec.containers.name",
    ),
    (
        {"spec": {"initContainers": [{"name": "i", "env": "X=1"}]}},
        f"spec.initContainers[0].env: expected a list, found a string; {EXPLAIN}.spec.initContainers.env",
    ),
    (
        {"spec": {"containers": [{"name": "a", "env": [7]}]}},
        f"spec.containers[0].env[0]: expected an object, found a number; {EXPLAIN}.spec.containers.env",
    ),
    (
        {"spec": {"containers": [{"name": "a", "resources": {"limits": True}}]}},
        "spec.containers[0].resources.limits: expected an object, found true or false;"
        f" {EXPLAIN}.spec.containers.resources.limits",
    ),
    (
        {"spec": {"nodeName": 3}},
        f"spec.nodeName: expected a string, found a number; {EXPLAIN}.spec.nodeName",
    ),
]


@pytest.mark.parametrize("path", ["/mutate", "/isolate"])
@pytest.mark.parametrize(("obj", "message"), [*AMOUNTS, *SHAPES, *STRUCTURES])
def test_the_author_reads_what_is_wrong_where_and_what_to_do(
    webhook: Webhook, path: str, obj: object, message: str
) -> None:
    response = webhook.ask(path, review(obj))
    assert response == {
        "uid": "u-1",
        "allowed": False,
        "status": {"code": 400, "reason": "BadRequest", "message": message},
    }


def test_all_errors_of_a_pod_come_at_once(webhook: Webhook) -> None:
    marks = {"gpushare.dev/gpu-policy": "x", "gpushare.dev/gpus": "y", "gpushare.dev/limits-are-totals": "z"}
    bad = pod(container(gpu_mem="3"), annotations=marks)
    message = webhook.ask("/mutate", review(bad))["status"]["message"]
    assert [part.split(": ")[0] for part in message.split(" | ")] == [
        GPUS,
        "metadata.annotations[gpushare.dev/gpu-policy]",
        "metadata.annotations[gpushare.dev/limits-are-totals]",
    ]


@pytest.mark.parametrize("amount", ["81", "1000", "1000000000"])
def test_a_pod_that_is_too_big_for_any_gpu_of_today_is_admitted(webhook: Webhook, amount: str) -> None:
    assert webhook.ask("/mutate", review(pod(container(gpu_mem=amount))))["allowed"]
