import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jsonpatch
import orjson
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from gpushare.kube import api as kube
from gpushare.runtime.clock import SystemClock
from testing.reviews import Json, encoded
from webhook.app import Services, create_app
from webhook.metrics import Metrics
from webhook.runtimeclass import Mode, RuntimeClass
from webhook.settings import Settings


class NoApi:
    """Refuses every call: a webhook without an API server still answers."""

    def __getattr__(self, verb: str) -> Any:
        def call(*_args: object, **_kwargs: object) -> None:
            raise kube.UnreachableError("connection refused")

        return call


@dataclass
class Webhook:
    """The application, spoken to as the API server does."""

    http: FlaskClient
    metrics: Metrics
    problem: list[str] = field(default_factory=list)

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


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    problem: list[str] = []
    clock = SystemClock()
    services = Services(
        clock=clock,
        metrics=Metrics(lambda: 12.5, lambda: 700.0),
        runtime_class=RuntimeClass(api=NoApi(), clock=clock, name="nvidia", mode=Mode.ALWAYS),
        not_ready=lambda: "; ".join(problem),
    )
    app = create_app(Settings(), services)
    app.testing = True
    with app.test_client() as http:
        yield Webhook(http, services.metrics, problem)
