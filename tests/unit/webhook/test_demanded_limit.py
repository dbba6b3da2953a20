"""Pods of namespaces with the label gpushare.dev/limit=enforced, which the API server sends to a path of its own."""

import pytest

from gpushare import names
from gpushare.resource_config import ResourceConfig
from gpushare.wire import requests
from testing.reviews import ALL, VOID, Json, asking, container, pod, review
from tests.unit.webhook.conftest import Webhook

ENFORCED = {names.ANNOTATION_LIMIT: "enforced"}


def annotations(stored: Json) -> Json:
    found: Json = stored["metadata"].get("annotations", {})
    return found


@pytest.mark.parametrize("asked", [asking("a", mem=3), asking("a", percent=20)])
@pytest.mark.parametrize("before", [None, {}, {"x": "y"}, ENFORCED])
def test_a_gpu_pod_demands_an_enforced_limit(webhook: Webhook, asked: Json, before: dict[str, str] | None) -> None:
    stored = webhook.admit("/enforce", review(pod(asked, annotations=before)))
    assert annotations(stored) == {**(before or {}), **ENFORCED}
    request = requests.of_pod(stored, ResourceConfig())
    assert request is not None
    assert request.shape.gpus.enforced
    assert "patch" not in webhook.ask("/enforce", review(stored))
    assert "patch" not in webhook.ask("/mutate", review(stored))


def test_it_is_completed_as_any_other(webhook: Webhook) -> None:
    wanted = pod(asking("a", mem=3), container("b", env=[ALL]))
    other = webhook.admit("/mutate", review(wanted))
    stored = webhook.admit("/enforce", review(wanted))
    assert stored == {**other, "metadata": {**other["metadata"], "annotations": {**annotations(other), **ENFORCED}}}
    # Called by the one after the other, in whichever order.
    assert webhook.admit("/enforce", review(other)) == stored


def test_a_pod_without_a_request_demands_nothing(webhook: Webhook) -> None:
    assert webhook.admit("/enforce", review(pod(container("a", env=[ALL])))) == pod(container("a", env=[VOID]))


def test_no_author_can_ask_for_less_than_the_namespace(webhook: Webhook) -> None:
    body = review(pod(asking("a", mem=3), annotations={names.ANNOTATION_LIMIT: "advisory"}))
    webhook.refuses(
        "/enforce",
        body,
        "metadata.annotations[gpushare.dev/limit]: 'advisory' is no strength of a limit; write enforced, or remove the"
        " annotation",
    )


@pytest.mark.parametrize("broken", [None, 4, {}, {"metadata": 4}, {"metadata": {"annotations": 4}, "spec": {}}])
def test_what_is_no_pod_is_refused_as_elsewhere(webhook: Webhook, broken: object) -> None:
    assert webhook.ask("/enforce", review(broken)) == webhook.ask("/mutate", review(broken))
