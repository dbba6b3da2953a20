"""Requests that are no AdmissionReview: an HTTP error and a message, never a stack trace."""

import base64
import json
import logging
import re

import orjson
import pytest

from gpushare.runtime import intake
from testing.reviews import Json, container, encoded, pod, review
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
    (changed(uid=""), "request.uid: expected a string, found an empty string"),
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


MIB = 2**20


@pytest.mark.parametrize(("path", "most"), [("/mutate", 6), ("/isolate", 6), ("/validate", 16)])
def test_too_large_a_review_is_denied_and_not_only_left_unanswered(webhook: Webhook, path: str, most: int) -> None:
    """A webhook that may be skipped must answer: after an HTTP error the API server lets the pod pass unchanged."""
    body = encoded(review(pod(container()))).ljust(most * MIB + 1)
    answer = webhook.send(path, body)
    message = (
        f"the object is too large for gpushare-webhook: it has {most * MIB + 1} bytes of JSON, with all defaults;"
        f" at most {most * MIB} are read"
    )
    status = {"code": 400, "reason": "BadRequest", "message": message}
    assert answer.json is not None
    assert answer.json["response"] == {"uid": "u-1", "allowed": False, "status": status}


@pytest.mark.parametrize(("path", "count"), [("/mutate", 120_000), ("/isolate", 120_000), ("/validate", 400_000)])
def test_too_many_list_entries_are_denied_unparsed(webhook: Webhook, path: str, count: int) -> None:
    """As in `ports: [{}, {}, ...]`, with the defaults that the API server writes."""
    ports = [{"containerPort": 0, "protocol": "TCP"}] * count
    answer = webhook.send(path, review(pod(container(ports=ports))))
    assert answer.json is not None
    assert not answer.json["response"]["allowed"]
    assert re.fullmatch(
        r"the object is too large for gpushare-webhook: it has \d+ fields and list entries in \d+ bytes of JSON, with"
        r" all defaults; write fewer, such as ports, env, volumes, tolerations",
        answer.json["response"]["status"]["message"],
    )


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_is_too_large_and_no_review_is_an_http_error(webhook: Webhook, path: str) -> None:
    answer = webhook.send(path, b" " * (16 * MIB + 1))
    assert answer.status_code == 413
    assert answer.json is not None
    assert answer.json["error"].startswith("the object is too large for gpushare-webhook: it has 16777217 bytes")


def test_a_body_without_a_length_is_not_read(webhook: Webhook) -> None:
    answer = webhook.http.post("/mutate", content_type="application/json", headers={"Transfer-Encoding": "chunked"})
    assert (answer.status_code, answer.json) == (411, {"error": "Transfer-Encoding: not read; send a Content-Length"})


def test_while_others_fill_the_room_large_reviews_are_denied_for_now(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake.Intake, "_take", lambda _self, _amount, _held: False)
    large = review(pod(container(args=["x" * 100_000])))
    message = "gpushare-webhook is busy: other large requests are being looked at; try again"
    assert webhook.ask("/isolate", large) == {
        "uid": "u-1",
        "allowed": False,
        "status": {"code": 503, "reason": "ServiceUnavailable", "message": message},
    }
    answer = webhook.send("/isolate", b" " * 100_000)
    assert (answer.status_code, answer.json) == (503, {"error": message})
    assert webhook.ask("/isolate", review(pod(container(env=[]))))["allowed"]


def test_a_pod_as_large_as_etcd_stores_is_admitted(webhook: Webhook) -> None:
    env = [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(20_000)]
    assert 1.4 * MIB < len(encoded(pod(container(env=env)))) < 1.6 * MIB
    large = pod(container("a", "3", env=env))
    assert webhook.admit("/mutate", review(large))["metadata"]["labels"] == {"gpushare.dev/managed": "true"}
    text = pod(container("a", "3", args=["{'a': <b>,}" * 140_000]))
    assert webhook.admit("/mutate", review(text))["metadata"]["labels"] == {"gpushare.dev/managed": "true"}


def test_of_a_million_errors_the_first_are_told(webhook: Webhook) -> None:
    response = webhook.ask("/isolate", review(pod(container(env=[0] * 100_000))))
    message = response["status"]["message"]
    assert message.startswith("spec.containers[0].env[0]: expected an object, found a number; ")
    assert message.count(" | ") == 20
    assert message.endswith(" | and more")
    forged = {f"devices.gpushare.dev/{i}": "" for i in range(1000)}
    response = webhook.ask("/validate", review(pod(container(), annotations=forged)))
    assert response["status"]["message"].count(" | ") == 20


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
