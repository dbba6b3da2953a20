"""How many files have to be read to follow one request."""

import io
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import pytest

from testing.clock import ManualClock
from testing.controller.world import World
from testing.fakes.kube import FakeKube
from testing.reviews import container, encoded, pod, review
from webhook.app import create_app
from webhook.metrics import Metrics
from webhook.runtimeclass import Mode, RuntimeClass
from webhook.settings import Settings

FILTER = "/gpushare-scheduler/filter"
ROOT = Path(__file__).parents[2]
OF_A_CREATE = {
    *("webhook/app.py", "webhook/review.py", "webhook/mutation.py", "webhook/edits.py"),
    *("webhook/runtimeclass.py", "webhook/metrics.py", "gpushare/runtime/intake.py", "gpushare/runtime/logs.py"),
    *("gpushare/wire/fields.py", "gpushare/wire/pods.py", "gpushare/wire/requests.py", "gpushare/wire/frameworks.py"),
    *("gpushare/units.py",),
}
"""Beside them there is the server, `gpushare/runtime/http.py`; types, names and the clock are left out."""


OF_A_FILTER = 12
"""So many at most, of the same kind, for a pod of a new shape; more of them may be merged."""


def product_files(ask: Callable[[], object]) -> set[str]:
    """Files of the product whose functions run, but those of types and names."""
    seen = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        ask()
    finally:
        sys.setprofile(None)
    files = {Path(name).relative_to(ROOT).as_posix() for name in seen if Path(name).is_relative_to(ROOT)}
    product = {each for each in files if each.startswith(("webhook/", "controller/", "gpushare/"))}
    return product - {"gpushare/names.py"} - {each for each in product if "/model/" in each}


def test_a_new_gpu_pod_goes_through_a_few_files(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock(0)
    runtime_class = RuntimeClass(api=FakeKube(), clock=clock, name="nvidia", mode=Mode.WHERE_NEEDED)
    metrics = Metrics(lambda: 0.0, lambda: 0.0)
    app = create_app(Settings(), clock=clock, metrics=metrics, runtime_class=runtime_class, not_ready=lambda: "")
    body, answers = encoded(review(pod(container("a", "3")))), list[bytes]()

    def ask() -> None:
        environ: dict[str, Any] = {
            **{"REQUEST_METHOD": "POST", "PATH_INFO": "/mutate", "CONTENT_TYPE": "application/json"},
            **{"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), "wsgi.url_scheme": "https"},
            **{"SERVER_NAME": "x", "SERVER_PORT": "1", "SERVER_PROTOCOL": "HTTP/1.1"},
        }
        answers.append(b"".join(app(environ, lambda *_: lambda _: None)))

    ask()  # which looks the RuntimeClass up
    assert product_files(ask) == OF_A_CREATE
    assert b'"patch"' in answers[-1]


def test_filter_of_a_new_kind_of_pod_goes_through_a_few_files() -> None:
    world = World()
    world.add_node("node-a", 16, 16)
    world.list_all()
    pods, client = [world.add_pod(gib) for gib in (1, 2)], world.client()
    first, second = (orjson.dumps({"Pod": each, "NodeNames": ["node-a"]}) for each in pods)
    client.post(FILTER, first)
    files = product_files(lambda: client.post(FILTER, second))
    assert "gpushare/wire/requests.py" in files
    assert len(files) <= OF_A_FILTER, sorted(files)
