"""Requests that are no AdmissionReview: an HTTP error and a message, never a stack trace."""

import base64
import json
import logging

import orjson
import pytest

from tests.unit.webhook.builders import Json, container, encoded, pod, review
from tests.unit.webhook.conftest import Webhook

PATHS = ["/mutate", "/isolate", "/validate"]


def changed(**request: object) -> Json:
    body = review(pod(container()))
    body["request"] |= request
    return body


MALFORMED = [
    (b"", "the body is empty"),
    (b"[]", "the body must be an AdmissionReview object"),
    (b"null", "the body must be an AdmissionReview object"),
    (b"{}", "kind: expected AdmissionReview, found None"),
    ({"kind": "Pod"}, "kind: expected AdmissionReview, found 'Pod'"),
    (
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"},
        "apiVersion: expected admission.k8s.io/v1, found 'admission.k8s.io/v1beta1';"
        " list v1 in the webhook's admissionReviewVersions",
    ),
    (
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"},
        "request: expected an object, found nothing",
    ),
    (
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": [1]},
        "request: expected an object, found a list",
    ),
    (changed(uid=None), "request.uid: expected a string, found nothing"),
    (changed(uid=""), "request.uid: expected a string, found nothing"),
    (changed(uid=7), "request.uid: expected a string, found a number"),
    (changed(operation=["CREATE"]), "request.operation: expected a string, found a list"),
    (changed(resource="pods"), "request.resource: expected an object, found a string"),
    (changed(resource={"resource": 1}), "request.resource.resource: expected a string, found a number"),
    (changed(resource={"group": {}}), "request.resource.group: expected a string, found an object"),
    (changed(subResource=True), "request.subResource: expected a string, found true or false"),
    (changed(kind=None), "request.kind: expected an object, found nothing"),
    (changed(namespace=1), "request.namespace: expected a string, found a number"),
    (changed(name=1), "request.name: expected a string, found a number"),
    (changed(userInfo="me"), "request.userInfo: expected an object, found a string"),
    (changed(userInfo={"username": 0}), "request.userInfo.username: expected a string, found a number"),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("body", "message"), MALFORMED)
def test_a_body_that_is_no_review_is_a_bad_request(webhook: Webhook, path: str, body: object, message: str) -> None:
    answer = webhook.send(path, body)
    assert (answer.status_code, answer.content_type) == (400, "application/json")
    assert answer.json == {"error": message}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("content_type", "found"), [("text/plain", "text/plain"), ("", "none"), ("application/yaml", "application/yaml")]
)
def test_another_content_type_is_not_read(webhook: Webhook, path: str, content_type: str, found: str) -> None:
    answer = webhook.send(path, review(pod(container())), content_type=content_type)
    assert answer.status_code == 415
    assert answer.json == {"error": f"Content-Type: expected application/json, found {found}"}


def test_a_charset_does_not_matter(webhook: Webhook) -> None:
    answer = webhook.send("/mutate", review(pod(container())), content_type="application/json; charset=utf-8")
    assert answer.status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_body_over_40_mib_is_not_read(webhook: Webhook, path: str) -> None:
    answer = webhook.send(path, b" " * (40 * 1024 * 1024 + 1))
    assert answer.status_code == 413
    assert answer.json == {"error": "the body is larger than 41943040 bytes"}


def test_the_largest_review_of_an_api_server_is_read(webhook: Webhook) -> None:
    """3 MiB of `<`, of which Go writes each as six bytes, twice."""
    body = encoded(review(pod(container(command=["x" * 18 * 1024 * 1024]))))
    assert webhook.send("/mutate", body.ljust(40 * 1024 * 1024)).status_code == 200


@pytest.mark.parametrize("depth", [900, 1005, 1015, 1100, 5000])
@pytest.mark.parametrize("path", ["/mutate", "/isolate"])
def test_managed_fields_however_deep_let_no_pod_pass_unchanged(webhook: Webhook, path: str, depth: int) -> None:
    sly = pod(container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]))
    sly["metadata"]["managedFields"] = "HERE"
    deep = b'[{"fieldsV1":' + b'{"f:a":' * depth + b"{}" + b"}" * depth + b"}]"
    answer = webhook.send(path, encoded(review(sly)).replace(b'"HERE"', deep))
    response = orjson.loads(answer.data)["response"]
    assert response["allowed"]
    patch = base64.b64decode(response["patch"]).decode()
    assert '"void"' in patch
    assert '"all"' not in patch
    assert "managedFields" not in patch


def test_a_pod_with_thousands_of_containers_is_refused_at_once(webhook: Webhook) -> None:
    many = pod(*[container(f"c{i}") for i in range(513)])
    response = orjson.loads(webhook.send("/isolate", encoded(review(many))).data)["response"]
    assert not response["allowed"]
    assert response["status"]["message"] == (
        "spec.containers: 513 containers are more than any node runs; write at most 512"
    )


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000 + b"]" * 100_000, b"NaN", b'{"a": 1,}'])
def test_a_body_that_is_no_json_is_refused_with_the_parsers_words(webhook: Webhook, body: bytes) -> None:
    answer = webhook.send("/mutate", body)
    assert answer.status_code == 400
    assert answer.json is not None
    assert answer.json["error"].startswith("the body is not JSON: ")


def test_deep_nesting_in_a_pod_does_no_harm(webhook: Webhook) -> None:
    deep: object = "x"
    for _ in range(900):
        deep = [deep]
    body = review(pod(container(gpu_mem="3"), unknown=deep))
    answer = webhook.send("/mutate", json.dumps(body).encode())
    response = orjson.loads(answer.data)["response"]
    assert response["allowed"]
    assert "unknown" not in base64.b64decode(response["patch"]).decode()


def test_another_method_and_another_path_are_answered_in_json(webhook: Webhook) -> None:
    wrong_method = webhook.http.get("/mutate")
    assert (wrong_method.status_code, wrong_method.json) == (
        405,
        {"error": "The method is not allowed for the requested URL."},
    )
    missing = webhook.http.get("/nothing")
    assert missing.status_code == 404
    assert missing.json is not None
    assert "not found" in missing.json["error"]


def test_a_fault_of_the_webhook_shows_no_stack_to_the_caller(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("webhook.admission.mutate", broken)
    with caplog.at_level(logging.ERROR):
        answer = webhook.send("/mutate", review(pod(container())))
    assert answer.status_code == 500
    assert answer.json == {"error": "the webhook failed; its log says why"}
    assert [record.getMessage() for record in caplog.records] == ["admission failed"]
    assert caplog.records[0].exc_info is not None
    assert 'outcome="failed",webhook="mutate"} 1.0' in webhook.metrics.exposition().decode()
