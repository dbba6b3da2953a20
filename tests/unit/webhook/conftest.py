import base64
from dataclasses import dataclass
from typing import Any

import jsonpatch
import orjson
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from gpushare.runtime.clock import Clock, SystemClock
from testing.fakes.kube import FakeKube
from testing.reviews import Json, encoded
from webhook.app import create_app
from webhook.metrics import Metrics
from webhook.runtimeclass import Mode, RuntimeClass
from webhook.settings import Settings


@dataclass
class Webhook:
    """The application, spoken to as the API server does."""

    http: FlaskClient
    metrics: Metrics
    problem: list[str]  # why it is not ready

    def send(self, path: str, body: object, *, content_type: str = "application/json") -> TestResponse:
        data = body if isinstance(body, bytes) else encoded(body)
        return self.http.post(path, data=data, content_type=content_type)

    def ask(self, path: str, body: Json) -> Json:
        """The `response` of an answered review."""
        answer = self.send(path, body)
        assert answer.status_code == 200, answer.text
        review: Json = orjson.loads(answer.data)
        assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert review["response"]["uid"] == body["request"]["uid"]
        response: Json = review["response"]
        return response

    def admit(self, path: str, body: Json) -> Any:
        """The object as the API server stores it."""
        response = self.ask(path, body)
        assert response["allowed"], response
        return apply(response, body["request"]["object"])


def apply(response: Json, obj: object) -> Any:
    if "patch" not in response:
        return obj
    assert response["patchType"] == "JSONPatch"
    return jsonpatch.apply_patch(obj, orjson.loads(base64.b64decode(response["patch"])))


def denial(code: int, reason: str, message: str) -> Json:
    """The response of a review that is refused."""
    return {"uid": "u-1", "allowed": False, "status": {"code": code, "reason": reason, "message": message}}


def with_class(runtime_class: RuntimeClass, clock: Clock) -> Webhook:
    metrics, problem = Metrics(lambda: 12.5, lambda: 700.0), list[str]()
    app = create_app(
        Settings(), clock=clock, metrics=metrics, runtime_class=runtime_class, not_ready=lambda: "; ".join(problem)
    )
    return Webhook(app.test_client(), metrics, problem)


@pytest.fixture
def webhook() -> Webhook:
    clock = SystemClock()
    return with_class(RuntimeClass(api=FakeKube(), clock=clock, name="nvidia", mode=Mode.ALWAYS), clock)
