"""Pods of namespaces with the label gpushare.dev/limit=enforced, which the API server sends to a path of its own."""

from dataclasses import replace

import pytest

from gpushare import names
from gpushare.units import ResourceConfig
from gpushare.wire import requests
from testing.reviews import ALL, RULES, VOID, Json, asking, container, mutated, pod, refusals, review, warnings
from tests.unit.webhook.conftest import Webhook
from webhook import mutation
from webhook.mutation import Allowed

DEMANDING = replace(RULES, demands_limit=True)
ENFORCED = {names.ANNOTATION_LIMIT: "enforced"}


@pytest.mark.parametrize("asked", [asking("a", mem=3), asking("a", percent=20)])
@pytest.mark.parametrize("before", [None, {}, {"x": "y"}, ENFORCED])
def test_a_gpu_pod_demands_an_enforced_limit(asked: Json, before: dict[str, str] | None) -> None:
    wanted = pod(asked, container("b", env=[ALL]), annotations=before)
    other, made = mutated(wanted), mutated(wanted, DEMANDING)
    notes = {**other["metadata"]["annotations"], **ENFORCED}
    assert made == {**other, "metadata": {**other["metadata"], "annotations": notes}}
    assert warnings(wanted, DEMANDING) == warnings(wanted)
    request = requests.of_pod(made, ResourceConfig())
    assert request is not None
    assert request.shape.gpus.enforced
    # Called by the one after the other, in whichever order.
    assert mutation.mutate(made, DEMANDING) == mutation.mutate(made, RULES) == Allowed()
    assert before == ENFORCED or mutated(other, DEMANDING) == made


def test_a_pod_without_a_request_demands_nothing_and_no_author_asks_for_less() -> None:
    assert mutated(pod(container("a", env=[ALL])), DEMANDING) == pod(container("a", env=[VOID]))
    asked = pod(asking("a", mem=3), annotations={names.ANNOTATION_LIMIT: "advisory"})
    assert refusals(asked, DEMANDING)[0].startswith("metadata.annotations[gpushare.dev/limit]: 'advisory' is no")


def test_of_such_a_namespace_reviews_come_by_a_path_of_their_own(webhook: Webhook) -> None:
    asked = review(pod(asking("a", mem=3)))
    assert webhook.admit("/enforce", asked)["metadata"]["annotations"] == ENFORCED
    assert "annotations" not in webhook.admit("/mutate", asked)["metadata"]
    for broken in (None, {"metadata": {"annotations": 4}, "spec": {}}):
        assert webhook.ask("/enforce", review(broken)) == webhook.ask("/mutate", review(broken))
