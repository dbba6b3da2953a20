"""How many files have to be read to follow one request."""

import io
import logging
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from testing.clock import ManualClock
from testing.fakes.kube import FakeKube
from testing.reviews import container, encoded, pod, review
from webhook.app import Services, create_app
from webhook.metrics import Metrics
from webhook.runtimeclass import Mode, RuntimeClass
from webhook.settings import Settings

ROOT = Path(__file__).parents[2]
OF_A_CREATE = {
    *("webhook/app.py", "webhook/review.py", "webhook/mutation.py", "webhook/edits.py", "webhook/advice.py"),
    *("webhook/runtimeclass.py", "webhook/metrics.py", "gpushare/runtime/intake.py", "gpushare/runtime/logs.py"),
    *("gpushare/wire/fields.py", "gpushare/wire/pods.py", "gpushare/wire/requests.py", "gpushare/wire/selectors.py"),
    *("gpushare/units.py",),
}
"""Beside them there is the server, `gpushare/runtime/http.py`; types, names and the clock are left out."""


def test_a_new_gpu_pod_goes_through_a_few_files(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock(0)
    runtime_class = RuntimeClass(api=FakeKube(), clock=clock, name="nvidia", mode=Mode.WHERE_NEEDED)
    metrics = Metrics(lambda: None, lambda: None)
    app = create_app(
        Settings(), Services(clock=clock, metrics=metrics, runtime_class=runtime_class, not_ready=lambda: "")
    )
    body, seen, answer = encoded(review(pod(container("a", "3")))), set[str](), b""

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    for _ in range(2):  # the first one looks the RuntimeClass up
        seen.clear()
        environ: dict[str, Any] = {
            **{"REQUEST_METHOD": "POST", "PATH_INFO": "/mutate", "CONTENT_TYPE": "application/json"},
            **{"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), "wsgi.url_scheme": "https"},
            **{"SERVER_NAME": "x", "SERVER_PORT": "1", "SERVER_PROTOCOL": "HTTP/1.1"},
        }
        sys.setprofile(note)
        try:
            answer = b"".join(app(environ, lambda *_: lambda _: None))
        finally:
            sys.setprofile(None)
    assert b'"patch"' in answer
    files = {Path(name).relative_to(ROOT).as_posix() for name in seen if Path(name).is_relative_to(ROOT)}
    product = {each for each in files if each.startswith(("webhook/", "gpushare/"))}
    assert product - {"gpushare/names.py"} - {each for each in product if "/model/" in each} == OF_A_CREATE
