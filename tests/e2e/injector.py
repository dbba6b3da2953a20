"""Mutating webhooks of other projects, served by this process: each adds containers to the pods of a namespace."""

import base64
import contextlib
import copy
import http.server
import json
import ssl
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from certs import authority
from tests.e2e.system import Json, System

LABEL: Final = "gpushare.test/inject"
CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
FIELDS: Final = ("initContainers", "containers")


@contextlib.contextmanager
def injecting(system: System, namespace: str, specs: Mapping[str, Json]) -> Iterator[None]:
    """Serve them; the API server calls them in the order of their names.

    Args:
        system: whose API server calls.
        namespace: of the pods.
        specs: by the name of the MutatingWebhookConfiguration: lists of containers by their field.
    """
    host = system.cluster.plan.host_ip
    now = datetime.now(UTC)
    ca = authority.make_ca(now=now, life=timedelta(hours=1))
    leaf = authority.make_leaf(ca, names=frozenset({host}), now=now, life=timedelta(hours=1))
    with tempfile.TemporaryDirectory() as directory, _serving(host, leaf, Path(directory), specs) as port:
        labels = {"metadata": {"labels": {LABEL: namespace}}}
        system.api.patch(f"/api/v1/namespaces/{namespace}", labels)
        for name in specs:
            url = f"https://{host}:{port}/{name}"
            system.api.create(CONFIGURATIONS, _configuration(name, url, ca.certificate, namespace))
        try:
            yield
        finally:
            for name in specs:
                system.api.delete(f"{CONFIGURATIONS}/{name}")


def _configuration(name: str, url: str, ca: bytes, namespace: str) -> Json:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": f"{name}.gpushare.test",
        "clientConfig": {"url": url, "caBundle": base64.b64encode(ca).decode()},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {LABEL: namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": name}, "webhooks": [hook]}


@contextlib.contextmanager
def _serving(host: str, leaf: authority.KeyPair, directory: Path, specs: Mapping[str, Json]) -> Iterator[int]:
    chain = directory / "tls.pem"
    chain.write_bytes(leaf.certificate + leaf.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 30

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            added = specs[urllib.parse.urlsplit(self.path).path[1:]]
            patch = base64.b64encode(json.dumps(_patch(request["object"]["spec"], added)).encode())
            response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch.decode()}
            review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
            body = json.dumps(review).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # http.server's name
            """Nothing."""

    with http.server.ThreadingHTTPServer((host, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="injector")
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def _patch(spec: Json, added: Json) -> list[Json]:
    result = copy.deepcopy(spec)
    for field in FIELDS:
        result[field] = [*result.get(field, []), *added.get(field, [])]
    return [{"op": "add", "path": f"/spec/{field}", "value": result[field]} for field in FIELDS if field in added]
