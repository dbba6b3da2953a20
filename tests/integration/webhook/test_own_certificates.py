"""The webhook with certificates of its own, called by an API server that trusts what the configuration says."""

import base64
import contextlib
import http.client
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from certs import manager, store
from gpushare import names
from testing.fakes import kube_http
from testing.fakes.http_server import free_port
from testing.fakes.kube import FakeKube
from testing.webhook import ROOT, command
from tests.integration.webhook.test_server import JSON, REVIEW

SECRET = f"/api/v1/namespaces/{names.NAMESPACE}/secrets/{names.WEBHOOK_SECRET}"
QUICK = ("--cert-check-s", "0.3", "--cert-propagation-s", "1", "--cert-retire-s", "1.5")


@pytest.fixture
def api() -> FakeKube:
    fake = FakeKube()
    service = {"name": names.WEBHOOK_SERVICE, "namespace": names.NAMESPACE}
    for path in manager.CONFIGURATIONS:
        collection, _, name = path.rpartition("/")
        hooks = [{"name": "mutate.gpushare.dev", "clientConfig": {"service": service}}]
        fake.seed(collection, {"metadata": {"name": name}, "webhooks": hooks})
    fake.seed("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    return fake


def bundle(api: FakeKube) -> str:
    hook = api.read(manager.CONFIGURATIONS[0])["webhooks"][0]
    return base64.b64decode(hook["clientConfig"].get("caBundle", "")).decode()


def admit(api: FakeKube, port: int) -> str:
    """One admission over a new connection that is verified with the configuration's bundle; its operations."""
    context = ssl.create_default_context(cadata=bundle(api))
    with contextlib.closing(http.client.HTTPSConnection("localhost", port, timeout=10, context=context)) as connection:
        connection.request("POST", "/mutate", REVIEW, JSON)
        response = json.loads(connection.getresponse().read())["response"]
    assert response["allowed"]
    return base64.b64decode(response["patch"]).decode()


@contextlib.contextmanager
def running(api: FakeKube, directory: Path, count: int) -> Iterator[list[int]]:
    """Replicas of the webhook; their ports."""
    with kube_http.serving(api) as url, contextlib.ExitStack() as ends:
        ports, logs = [], []
        for i in range(count):
            place = directory / str(i)
            place.mkdir()
            arguments = command(place, free_port(), "--cert-source", "self", "--cert-extra-names", "localhost", *QUICK)
            (place / "kubeconfig").write_text(kube_http.kubeconfig(url))
            log = ends.enter_context((place / "log").open("w+"))
            process = ends.enter_context(subprocess.Popen(arguments, cwd=ROOT, stderr=log))
            ends.callback(process.kill)
            ports.append(int(arguments[arguments.index("--port") + 1]))
            logs.append(place / "log")
        deadline = time.monotonic() + 250
        for port in ports:
            while True:
                with contextlib.suppress(OSError, ValueError):
                    assert "runtimeClassName" in admit(api, port)
                    break
                assert time.monotonic() < deadline, [log.read_text() for log in logs]
                time.sleep(0.1)
        yield ports
        assert not any("Traceback" in log.read_text() for log in logs), [log.read_text() for log in logs]


def test_no_admission_fails_while_two_replicas_rotate_under_load(api: FakeKube, tmp_path: Path) -> None:
    with running(api, tmp_path, 2) as ports:
        first = bundle(api)
        seen: set[str] = set()
        failures: list[Exception] = []
        stop = threading.Event()

        def ask(port: int) -> None:
            while not stop.wait(0.2):
                try:
                    admit(api, port)
                    seen.add(bundle(api))
                except Exception as error:  # noqa: BLE001 - the test reports them all
                    failures.append(error)

        threads = [threading.Thread(target=ask, args=(port,)) for port in (*ports, *ports)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 250
        while first not in seen and not failures:
            assert time.monotonic() < deadline, "the first CA is not used"
            time.sleep(0.1)
        api.edit(SECRET, lambda secret: secret["metadata"].update(annotations={store.ROTATE_ANNOTATION: "now"}))
        while bundle(api) == first or bundle(api).count("BEGIN") != 1:
            assert time.monotonic() < deadline, "the rotation does not end"
            time.sleep(0.1)
        while bundle(api) not in seen and not failures:
            assert time.monotonic() < deadline, "the next CA is not used"
            time.sleep(0.1)
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert first in seen
        assert bundle(api) in seen
        assert first not in bundle(api)
