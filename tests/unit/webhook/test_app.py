"""What is served over HTTP: reviews, logs, probes, metrics, and an answer to what is no review."""

import base64
import json
import logging
import re
from unittest.mock import Mock

import orjson
import pytest

from gpushare.runtime import intake
from testing.reviews import ALL, VOID, Json, container, encoded, pod, review
from tests.unit.webhook.conftest import Webhook, apply, denial

MIB = 2**20
ALLOWED = {"uid": "u-1", "allowed": True}


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, dict[str, object]]]:
    return [(r.levelname, r.getMessage(), r.gpushare_fields) for r in caplog.records if hasattr(r, "gpushare_fields")]


def test_a_mutation_comes_as_a_patch_with_warnings_and_a_dry_run_is_answered_alike(webhook: Webhook) -> None:
    response = webhook.ask("/isolate", review(pod(container("a", env=[ALL]))))
    operations = orjson.loads(base64.b64decode(response.pop("patch")))
    assert operations == [{"op": "replace", "path": "/spec/containers/0/env", "value": [VOID]}]
    [warning] = response.pop("warnings")
    assert warning.startswith("container a: NVIDIA_VISIBLE_DEVICES is set by gpushare")
    assert response == {**ALLOWED, "patchType": "JSONPatch"}
    obj = pod(container("a", "3"))
    first, *others = (webhook.ask("/mutate", review(obj, dryRun=dry_run)) for dry_run in (False, True, None))
    assert others == [first, first]
    assert apply(first, obj)["spec"]["runtimeClassName"] == "nvidia"
    assert "warnings" not in first


def test_a_pod_that_stays_as_it_is_is_admitted_with_its_warning_and_without_a_patch(webhook: Webhook) -> None:
    obj = pod({"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3072"}}})
    response = webhook.ask("/isolate", review(obj))
    [warning] = response.pop("warnings")
    assert "aliyun.com/gpu-mem in GiB" in warning
    assert response == ALLOWED


def test_ephemeral_containers_are_isolated_and_resources_of_other_groups_left_alone(webhook: Webhook) -> None:
    old = pod(container("a", env=[VOID]))
    new = pod(container("a", env=[VOID]), ephemeralContainers=[container("d", env=[ALL])])
    body = review(new, old=old, operation="UPDATE", resource="pods/ephemeralcontainers")
    assert webhook.admit("/mutate", body)["spec"]["ephemeralContainers"] == [container("d", env=[VOID])]
    body = review([], resource="pods")
    body["request"]["resource"]["group"] = "metrics.k8s.io"
    assert webhook.ask("/validate", body) == webhook.ask("/mutate", body) == ALLOWED


CHOSEN = pod(container(env=[ALL]))
OLDER = {"kind": "EphemeralContainers", "metadata": {}, "ephemeralContainers": [container("d", env=[ALL])]}


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
@pytest.mark.parametrize(
    ("obj", "request_"),
    [
        (OLDER, {"operation": "UPDATE", "resource": "pods/ephemeralcontainers", "kind": "EphemeralContainers"}),
        (CHOSEN, {"operation": "UPDATE"}),
        (None, {"operation": "DELETE"}),
        (None, {"operation": "CONNECT", "resource": "pods/exec"}),
        (None, {"operation": "UPDATE", "resource": "nodes"}),
        (None, {"operation": "CREATE", "resource": "pods/eviction"}),
    ],
)
def test_what_is_none_of_its_business_is_admitted(webhook: Webhook, path: str, obj: object, request_: Json) -> None:
    assert webhook.ask(path, review(obj, old=obj, **request_)) == ALLOWED


def test_every_change_and_refusal_is_one_line_in_the_log(webhook: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    nameless = pod(container("a", "3"))
    nameless["metadata"] = {"generateName": "web-"}
    with caplog.at_level(logging.DEBUG):
        for path, body in (
            ("/mutate", review(nameless, name=None, user="bob", dryRun=True)),
            ("/mutate", review(pod(container("a", "0")))),
            ("/mutate", review([], name=None)),
            ("/isolate", review(pod(container(env=[VOID])), userInfo={})),
        ):
            webhook.ask(path, body)
    common = {"webhook": "mutate", "operation": "CREATE", "resource": "pods", "namespace": "team-a", "uid": "u-1"}
    message = (
        "spec.containers[0].resources.limits[aliyun.com/gpu-mem]: 0 asks for nothing;"
        " remove the entry or write at least 1"
    )
    *whole, (_, _, of_no_pod), (level, untouched, _) = events(caplog)
    assert whole == [
        ("INFO", "mutated", {**common, "pod": "web-*", "user": "bob", "dry_run": True, "warnings": 0}),
        ("INFO", "denied", {**common, "pod": "p", "user": "alice", "dry_run": False, "message": message}),
    ]
    assert of_no_pod["pod"] == ""
    assert (level, untouched) == ("DEBUG", "admitted")


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
    counted = 'gpushare_webhook_admissions_total{outcome="%s",webhook="%s"} %s'
    assert set(answer.text.splitlines()) >= {
        counted % ("mutated", "mutate", 1.0),
        counted % ("denied", "mutate", 1.0),
        counted % ("untouched", "isolate", 1.0),
        counted % ("malformed", "validate", 1.0),
        counted % ("failed", "enforce", 0.0),
        'gpushare_webhook_admission_duration_seconds_count{webhook="mutate"} 2.0',
        "gpushare_webhook_certificate_ttl_seconds 12.5",
        "gpushare_webhook_ca_ttl_seconds 700.0",
    }


def changed(**request: object) -> Json:
    body = review(pod(container()))
    body["request"] |= request
    return body


V1 = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
OLD = "admission.k8s.io/v1beta1"
MALFORMED: list[tuple[object, str]] = [
    (b"", "the body: empty; expected JSON"),
    (b"[]", "the body: expected an object, found a list"),
    (b"{}", "kind: expected AdmissionReview, found None"),
    (
        {**V1, "apiVersion": OLD},
        f"apiVersion: expected admission.k8s.io/v1, found '{OLD}'; list v1 in the webhook's admissionReviewVersions",
    ),
    (V1, "request: expected an object, found nothing"),
    ({**V1, "request": [1]}, "request: expected an object, found a list"),
    (changed(uid=""), "request.uid: expected a string, found an empty string"),
    (changed(operation=["CREATE"]), "request.operation: expected a string, found a list"),
    (changed(resource="pods"), "request.resource: expected an object, found a string"),
    (changed(resource={"resource": 1}), "request.resource.resource: expected a string, found a number"),
    (changed(resource={"group": {}}), "request.resource.group: expected a string, found an object"),
    (changed(subResource=True), "request.subResource: expected a string, found true or false"),
    (changed(kind=None), "request.kind: expected an object, found nothing"),
    (changed(kind={"kind": 1}), "request.kind.kind: expected a string, found a number"),
    (changed(namespace=1), "request.namespace: expected a string, found a number"),
    (changed(name=1), "request.name: expected a string, found a number"),
    (changed(userInfo="me"), "request.userInfo: expected an object, found a string"),
    (changed(userInfo={"username": 0}), "request.userInfo.username: expected a string, found a number"),
]


@pytest.mark.parametrize(("body", "message"), MALFORMED)
def test_a_body_that_is_no_review_is_a_bad_request(webhook: Webhook, body: object, message: str) -> None:
    answer = webhook.send("/mutate", body)
    assert (answer.status_code, answer.content_type) == (400, "application/json")
    assert answer.json == {"error": message}


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000 + b"]" * 100_000, b"NaN", b'{"a": 1,}'])
def test_a_body_that_is_no_json_is_refused_with_the_parsers_words(webhook: Webhook, body: bytes) -> None:
    answer = webhook.send("/mutate", body)
    assert answer.status_code == 400
    assert answer.get_json()["error"].startswith("the body: not JSON ")


def test_another_content_type_is_not_read_and_a_charset_does_not_matter(webhook: Webhook) -> None:
    body = review(pod(container()))
    for content_type, found in (("text/plain", "text/plain"), ("", "none")):
        answer = webhook.send("/mutate", body, content_type=content_type)
        assert answer.status_code == 415
        assert answer.json == {"error": f"Content-Type: expected application/json, found {found}"}
    assert webhook.send("/mutate", body, content_type="Application/json ; charset=utf-8").status_code == 200


@pytest.mark.parametrize(("path", "most"), [("/mutate", 6), ("/isolate", 6), ("/enforce", 6), ("/validate", 16)])
def test_too_large_a_review_is_denied_and_not_only_left_unanswered(webhook: Webhook, path: str, most: int) -> None:
    """A webhook that may be skipped must answer: after an HTTP error the API server lets the pod pass unchanged."""
    body = encoded(review(pod(container()))).ljust(most * MIB + 1)
    message = (
        f"the object is too large for gpushare-webhook: it has {most * MIB + 1} bytes of JSON, with all defaults;"
        f" at most {most * MIB} are read"
    )
    assert webhook.send(path, body).get_json()["response"] == denial(400, "BadRequest", message)
    answer = webhook.send(path, b" " * (most * MIB + 1))
    assert (answer.status_code, answer.json) == (413, {"error": message})


@pytest.mark.parametrize(("path", "count"), [("/mutate", 120_000), ("/validate", 400_000)])
def test_too_many_list_entries_are_denied_unparsed(webhook: Webhook, path: str, count: int) -> None:
    """As in `ports: [{}, {}, ...]`, with the defaults that the API server writes."""
    ports = [{"containerPort": 0, "protocol": "TCP"}] * count
    response = webhook.ask(path, review(pod(container(ports=ports))))
    assert not response["allowed"]
    assert re.fullmatch(
        r"the object is too large for gpushare-webhook: it has \d+ fields and list entries in \d+ bytes of JSON, with"
        r" all defaults; write fewer, such as ports, env, volumes, tolerations",
        response["status"]["message"],
    )


def test_while_others_fill_the_room_large_reviews_are_denied_for_now(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake.Intake, "_take", lambda _self, _amount, _held: False)
    large = review(pod(container(args=["x" * 100_000])))
    message = "gpushare-webhook is busy: other large requests are being looked at; try again"
    assert webhook.ask("/isolate", large) == denial(503, "ServiceUnavailable", message)
    answer = webhook.send("/isolate", b" " * 100_000)
    assert (answer.status_code, answer.json) == (503, {"error": message})
    assert webhook.ask("/isolate", review(pod(container(env=[]))))["allowed"]


def test_a_pod_as_large_as_etcd_stores_is_admitted(webhook: Webhook) -> None:
    env = [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(20_000)]
    assert 1.4 * MIB < len(encoded(pod(container(env=env)))) < 1.6 * MIB
    for fields in ({"env": env}, {"args": ["{'a': <b>,}" * 140_000]}):
        large = pod(container("a", "3", **fields))
        assert webhook.admit("/mutate", review(large))["metadata"]["labels"] == {"gpushare.dev/managed": "true"}


def test_of_a_million_errors_the_first_are_told(webhook: Webhook) -> None:
    forged = {f"devices.gpushare.dev/{i}": "" for i in range(1000)}
    for path, value in (("/isolate", pod(container(env=[0] * 100_000))), ("/validate", pod(annotations=forged))):
        message = webhook.ask(path, review(value))["status"]["message"]
        assert message.count(" | ") == 20
        assert message.endswith(" | and more")


@pytest.mark.parametrize("depth", [900, 1005, 1015, 1100, 5000])
def test_managed_fields_however_deep_let_no_pod_pass_unchanged(webhook: Webhook, depth: int) -> None:
    sly = pod(container(env=[ALL]))
    sly["metadata"]["managedFields"] = "HERE"
    deep = b'[{"fieldsV1":' + b'{"f:a":' * depth + b"{}" + b"}" * depth + b"}]"
    response = webhook.send("/isolate", encoded(review(sly)).replace(b'"HERE"', deep)).get_json()["response"]
    patch = base64.b64decode(response["patch"]).decode()
    assert '"void"' in patch
    assert '"all"' not in patch
    assert "managedFields" not in patch


def test_managed_fields_stay_where_there_is_no_other_metadata(webhook: Webhook) -> None:
    bare = {**pod(container("a", "3")), "metadata": {"managedFields": [{"manager": "m"}]}}
    assert webhook.admit("/mutate", review(bare))["metadata"] == {
        "managedFields": [{"manager": "m"}],
        "labels": {"gpushare.dev/managed": "true"},
    }


def test_deep_nesting_in_a_pod_does_no_harm(webhook: Webhook) -> None:
    deep: object = "x"
    for _ in range(900):
        deep = [deep]
    body = review(pod(container(gpu_mem="3"), unknown=deep))
    response = webhook.send("/mutate", json.dumps(body).encode()).get_json()["response"]
    assert "unknown" not in base64.b64decode(response["patch"]).decode()


def test_another_method_and_another_path_are_answered_in_json(webhook: Webhook) -> None:
    wrong_method = webhook.http.get("/mutate")
    assert wrong_method.status_code == 405
    assert wrong_method.json == {"error": "The method is not allowed for the requested URL."}
    missing = webhook.http.get("/nothing")
    assert missing.status_code == 404
    assert "not found" in missing.get_json()["error"]


def test_a_fault_of_the_webhook_shows_no_stack_to_the_caller(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("webhook.mutation.mutate", Mock(side_effect=ZeroDivisionError("secret detail")))
    with caplog.at_level(logging.ERROR):
        answer = webhook.send("/mutate", review(pod(container())))
    assert answer.status_code == 500
    assert answer.json == {"error": "the webhook failed; its log says why"}
    assert [record.getMessage() for record in caplog.records] == ["admission failed"]
    assert caplog.records[0].exc_info is not None
    assert 'outcome="failed",webhook="mutate"} 1.0' in webhook.metrics.exposition().decode()
