"""The webhook's process: TLS, certificates of its own and of others that change, and its end."""

import base64
import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certs import manager, store
from gpushare import names
from testing import webhook
from testing.fakes import kube_http
from testing.fakes.http_server import free_port
from testing.fakes.kube import FakeKube
from testing.reviews import container, encoded, pod, review
from testing.webhook import ROOT, Server, command

JSON = {"Content-Type": "application/json"}
REVIEW = encoded(review(pod(container("a", "3")))).decode()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with webhook.running(tmp_path) as made:
        yield made


def admit(server: Server) -> bytes:
    """One admission over a connection of its own; the certificate that was served, PEM."""
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", "/mutate", REVIEW, JSON)
        leaf = peer(connection.sock)
        answer = connection.getresponse()
        body: Any = json.loads(answer.read())
        assert answer.status == 200
        assert body["response"]["allowed"]
        assert body["response"]["patchType"] == "JSONPatch"
    return leaf


def peer(connection: Any) -> bytes:
    return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True)).encode()


def test_no_admission_fails_while_certificates_change(server: Server) -> None:
    """Four clients with new connections all the time, four changes of CA and leaf."""
    leaves = [list[bytes]() for _ in range(4)]
    failures: list[Exception] = []
    stop = threading.Event()

    def ask(seen: list[bytes]) -> None:
        while not stop.wait(0.05):
            try:
                seen.append(admit(server))
            except Exception as error:  # noqa: BLE001 - the test reports them all
                failures.append(error)

    def asked_again() -> None:
        """Wait for the ends of all admissions that have begun."""
        before = [len(seen) for seen in leaves]
        while not failures and any(len(seen) == count for seen, count in zip(leaves, before, strict=True)):
            time.sleep(0.01)

    threads = [threading.Thread(target=ask, args=(seen,)) for seen in leaves]
    for thread in threads:
        thread.start()
    installed, served = list[set[bytes]](), list[set[bytes]]()
    for _ in range(4):
        installed.append({server.install(asked_again)})
        asked_again()
        before = [len(seen) for seen in leaves]
        asked_again()
        served.append({leaf for seen, count in zip(leaves, before, strict=True) for leaf in seen[count:]})
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert served == installed


def test_a_connection_is_kept_for_the_next_request(server: Server) -> None:
    with contextlib.closing(server.connect()) as connection:
        connection.connect()
        first, text = connection.sock, ""
        for path in ("/healthz", "/readyz", "/metrics"):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("Connection")) == (200, None)
            text = answer.read().decode()
            assert connection.sock is first
    left = next(line for line in text.splitlines() if line.startswith("gpushare_webhook_certificate_ttl_seconds"))
    assert 0.9 < float(left.split()[1]) / 86400 <= 1


def test_old_tls_is_refused(server: Server) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", server.port)) as plain, context.wrap_socket(plain) as connection:
        assert connection.version() == "TLSv1.2"
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", server.port)) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)


def test_what_was_begun_is_answered_after_sigterm(server: Server) -> None:
    with contextlib.closing(server.connect()) as connection:
        connection.putrequest("POST", "/mutate")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(REVIEW)))
        connection.endheaders(REVIEW[:20].encode())
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        connection.send(REVIEW[20:].encode())
        answer = connection.getresponse()
        assert answer.status == 200
        assert json.loads(answer.read())["response"]["allowed"]
    assert server.process.wait() == 0


def test_it_waits_for_its_certificate_and_ends_when_told(tmp_path: Path) -> None:
    with subprocess.Popen(command(tmp_path, free_port()), cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        seen = ""
        while "no certificate yet" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait() == 0


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


def verified_patch(api: FakeKube, port: int) -> str:
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
                    assert "runtimeClassName" in verified_patch(api, port)
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
                    verified_patch(api, port)
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
