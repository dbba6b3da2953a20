"""Routes, logs, probes and metrics."""

import base64
import logging
from unittest.mock import Mock

import flask
import orjson
import pytest

from gpushare.wire import requests
from testing.reviews import ALL, VOID, container, pod, review
from tests.unit.webhook.conftest import Webhook, apply


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, dict[str, object]]]:
    return [(r.levelname, r.getMessage(), r.gpushare_fields) for r in caplog.records if hasattr(r, "gpushare_fields")]


def test_a_mutation_comes_as_a_patch_with_warnings(webhook: Webhook) -> None:
    body = review(pod(container("a", env=[ALL])))
    response = webhook.ask("/isolate", body)
    operations = orjson.loads(base64.b64decode(response["patch"]))
    assert operations == [{"op": "replace", "path": "/spec/containers/0/env/0/value", "value": "void"}]
    assert response == {
        "uid": "u-1",
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": response["patch"],
        "warnings": [
            "container a: NVIDIA_VISIBLE_DEVICES is set by gpushare to no GPU, because it asks for none;"
            " 'all' was removed"
        ],
    }


def test_a_pod_that_needs_nothing_gets_no_patch(webhook: Webhook) -> None:
    assert webhook.ask("/isolate", review(pod(container(env=[VOID])))) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize("dry_run", [True, False, None])
def test_a_dry_run_is_answered_alike(webhook: Webhook, dry_run: bool | None) -> None:
    obj = pod(container("a", "3"))
    first = webhook.ask("/mutate", review(obj, dryRun=dry_run))
    assert first == webhook.ask("/mutate", review(obj))
    assert apply(first, obj)["spec"]["runtimeClassName"] == "nvidia"


def test_ephemeral_containers_are_isolated(webhook: Webhook) -> None:
    old = pod(container("a", env=[VOID]))
    new = pod(container("a", env=[VOID]), ephemeralContainers=[container("d", env=[ALL])])
    body = review(new, old=old, operation="UPDATE", resource="pods/ephemeralcontainers")
    assert webhook.admit("/mutate", body)["spec"]["ephemeralContainers"] == [container("d", env=[VOID])]


def test_ephemeral_containers_of_old_servers_are_admitted_as_they_are(webhook: Webhook) -> None:
    obj = {"kind": "EphemeralContainers", "ephemeralContainers": [container("d", env=[ALL])]}
    body = review(obj, operation="UPDATE", resource="pods/ephemeralcontainers", kind="EphemeralContainers")
    assert webhook.ask("/mutate", body) == {"uid": "u-1", "allowed": True}


def test_updates_of_pods_are_not_mutated(webhook: Webhook) -> None:
    obj = pod(container(env=[ALL]))
    assert webhook.ask("/mutate", review(obj, old=obj, operation="UPDATE")) == {"uid": "u-1", "allowed": True}


def test_every_change_and_refusal_is_one_line_in_the_log(webhook: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        webhook.ask("/isolate", review(pod(container(env=[VOID]))))
        assert events(caplog) == []
        obj = pod(container("a", "3"))
        obj["metadata"] = {"generateName": "web-"}
        webhook.ask("/mutate", review(obj, name=None, user="bob", dryRun=True))
        webhook.ask("/mutate", review(pod(container("a", "0"))))
    common = {"webhook": "mutate", "operation": "CREATE", "resource": "pods", "namespace": "team-a", "uid": "u-1"}
    message = (
        "spec.containers[0].resources.limits[aliyun.com/gpu-mem]: 0 asks for nothing;"
        " remove the entry or write at least 1"
    )
    assert events(caplog) == [
        ("INFO", "mutated", {**common, "pod": "web-*", "user": "bob", "dry_run": True, "warnings": 0}),
        ("INFO", "denied", {**common, "pod": "p", "user": "alice", "dry_run": False, "message": message}),
    ]


@pytest.mark.parametrize("obj", [None, [], {"metadata": 3}])
def test_the_log_has_a_line_for_an_object_without_a_name(
    webhook: Webhook, caplog: pytest.LogCaptureFixture, obj: object
) -> None:
    with caplog.at_level(logging.INFO):
        webhook.ask("/mutate", review(obj, name=None))
    assert [(event, fields["pod"]) for _, event, fields in events(caplog)] == [("denied", "")]


def test_the_user_may_be_missing(webhook: Webhook) -> None:
    body = review(pod(container(env=[VOID])))
    del body["request"]["userInfo"]
    assert webhook.ask("/validate", body)["allowed"]


def test_an_untouched_pod_is_a_line_for_debugging_only(webhook: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        webhook.ask("/isolate", review(pod(container(env=[VOID]))))
    assert [(level, event) for level, event, _ in events(caplog)] == [("DEBUG", "admitted")]


def test_a_gpu_pod_is_read_once_whichever_runtime_class_it_gets(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_pod = Mock(wraps=requests.of_pod)
    monkeypatch.setattr(requests, "of_pod", of_pod)
    assert webhook.admit("/mutate", review(pod(container("a", "3"))))["spec"]["runtimeClassName"] == "nvidia"
    assert of_pod.call_count == 1


@pytest.mark.parametrize("path", ["/mutate", "/enforce", "/isolate", "/validate"])
def test_reviews_go_past_the_framework(webhook: Webhook, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.delattr(flask.Flask, "full_dispatch_request")
    assert webhook.ask(path, review(pod(container(env=[VOID])))) == {"uid": "u-1", "allowed": True}


def test_the_process_is_alive_and_ready_unless_something_is_missing(webhook: Webhook) -> None:
    assert [webhook.http.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    webhook.problem.append("no certificate")
    assert [webhook.http.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 503]
    assert webhook.http.get("/readyz").text == "no certificate"


def test_metrics_count_every_outcome(webhook: Webhook) -> None:
    webhook.ask("/mutate", review(pod(container("a", "3"))))
    webhook.ask("/mutate", review(pod(container("a", "0"))))
    webhook.ask("/isolate", review(pod(container(env=[VOID]))))
    webhook.send("/validate", b"x")
    answer = webhook.http.get("/metrics")
    assert answer.content_type.startswith("text/plain; version=")
    lines = answer.text.splitlines()
    for webhook_name, outcome in (
        ("mutate", "mutated"),
        ("mutate", "denied"),
        ("isolate", "untouched"),
        ("validate", "malformed"),
    ):
        assert f'gpushare_webhook_admissions_total{{outcome="{outcome}",webhook="{webhook_name}"}} 1.0' in lines
    assert 'gpushare_webhook_admission_duration_seconds_count{webhook="mutate"} 2.0' in lines
    assert "gpushare_webhook_certificate_ttl_seconds 12.5" in lines
    assert "gpushare_webhook_ca_ttl_seconds 700.0" in lines
