"""The dashboard on the real cluster: who sees what, with the API server's own authorization."""

import contextlib
import http.client
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
import yaml

import gpushare
from certs import authority
from gpushare import names
from gpushare.kube import api as kube, client
from gpushare_cli.dashboard.command import PORT
from localcluster import installation
from testing import asking
from testing.manifests import helm
from testing.manifests.helm import NO_REGISTRY
from tests.e2e.conftest import fresh_namespace
from tests.e2e.system import System, make_pod

USER: Final = "reader"
DASHBOARD: Final = installation.ROOT / "manifests" / "dashboard" / "objects.yaml"
NAME: Final = "gpushare-dashboard"
OTHERS: Final = "confidential"
"""Stands in the names of pods that are another's."""


class Page:
    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        self.connection = http.client.HTTPConnection(f"{url.hostname}:{url.port}", timeout=60)
        self.html = self._get("/")
        self.key = url.fragment.removeprefix("key=")
        self.sent = ""

    def until(self, words: str) -> None:
        def is_sent() -> bool:
            latest = self._get("/picture", {"Gpushare-Key": self.key})
            self.sent += latest
            return words in latest

        asking.eventually(f"{words} is sent", is_sent, 120, poll_s=0.5)

    def _get(self, path: str, headers: Mapping[str, str] | None = None) -> str:
        self.connection.request("GET", path, headers=headers or {})
        answer = self.connection.getresponse()
        found = answer.read().decode()
        assert answer.status == 200, found
        return found


@contextlib.contextmanager
def running(*argv: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def line_of(process: "subprocess.Popen[str]", pattern: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(pattern, line):
            return match[0]
    raise AssertionError(f"ended with {process.wait()}")


@contextlib.contextmanager
def dashboard(kubeconfig: Path, namespace: str = "") -> Iterator[Page]:
    argv: list[str | Path] = [sys.executable, "-m", "gpushare_cli", "dashboard", "--port", "0"]
    argv += ["--kubeconfig", kubeconfig, *(["-n", namespace] if namespace else [])]
    with running(*argv) as process:
        page = Page(line_of(process, r"http://127\.0\.0\.1:\S+"))
        with contextlib.closing(page.connection):
            yield page


@pytest.fixture
def others(system: System) -> Iterator[str]:
    """A namespace of another team."""
    with fresh_namespace(system, OTHERS) as name:
        yield name


def kubeconfig_of(system: System, user: str) -> Path:
    control = system.cluster.control
    return control.kubeconfig_for(user, control.authority.issue(user, user))


def test_each_user_sees_what_the_api_server_lets_them_read(system: System, namespace: str, others: str) -> None:
    verbs = ("--verb=get,list,watch", "--resource=pods,events")
    system.cluster.kubectl("create", "role", USER, *verbs, "-n", namespace)
    system.cluster.kubectl("create", "rolebinding", USER, f"--role={USER}", f"--user={USER}", "-n", namespace)
    user = kubeconfig_of(system, USER)
    for where, name in ((others, f"{OTHERS}-a"), (namespace, "mine")):
        system.create(where, make_pod(f"{name}-waits", 1000))
        system.run(where, make_pod(name))

    with dashboard(user, namespace) as narrow, dashboard(system.cluster.kubeconfig) as wide:
        narrow.until('"name":"mine"')
        narrow.until('"name":"mine-waits"')
        wide.until(f'"name":"{OTHERS}-a-waits"')
        system.delete(namespace, "mine", force=True)
        narrow.until(f'"subject":"{namespace}/mine","text":"deleted from')
        assert OTHERS not in narrow.sent
        assert others not in narrow.sent
        assert '"complete":false' in narrow.sent
        assert "nodes may not be read" in narrow.sent
        assert '"address":""' in narrow.sent


def test_in_the_cluster_only_who_is_authenticated_and_authorized_sees_it(system: System, namespace: str) -> None:
    kubectl = system.cluster.kubectl
    text = DASHBOARD.read_text(encoding="utf-8").replace("gpushare:0.1.0", installation.LOCAL.image)
    kubectl("apply", "-f", "-", input=text)
    try:
        system.run(namespace, make_pod("shown"))
        selector = "app.kubernetes.io/name=gpushare-dashboard"
        kubectl("-n", names.NAMESPACE, "rollout", "status", "deployment/gpushare-dashboard", timeout_s=300)
        [found] = system.pods(names.NAMESPACE, selector)
        name, address = found["metadata"]["name"], found["status"]["podIP"]

        forward = ("port-forward", "-n", names.NAMESPACE, "deployment/gpushare-dashboard", f":{PORT}")
        program, config = system.cluster.program("kubectl"), f"--kubeconfig={system.cluster.kubeconfig}"
        with running(program, config, *forward) as process:
            port = line_of(process, r"127\.0\.0\.1:[0-9]+")
            page = Page(f"http://{port}/")
            assert "<title>gpushare</title>" in page.html
            page.until('"name":"shown","granted_mib":1024')
            page.connection.close()

        with pytest.raises(ConnectionRefusedError):  # of the pod's network, where every tenant is
            socket.create_connection((address, PORT), timeout=10)
        with pytest.raises(kube.ServerFaultError):
            system.api.get(kube.pod_path(names.NAMESPACE, f"{name}:{PORT}", "proxy/"), timeout_s=10)
        refused = kubectl(*forward, "--as=reader", check=False)
        assert "forbidden" in refused.stderr, refused
        unknown = client.connect(str(kubeconfig_of(system, "no-one")))
        with pytest.raises(kube.ForbiddenError):
            unknown.get(kube.pod_path(names.NAMESPACE, name, "portforward"), timeout_s=10)
        unknown.close()
    finally:
        kubectl("delete", "-f", "-", "--wait=false", input=text)


def test_in_the_cluster_each_user_signs_in_and_sees_what_that_user_may_list(
    system: System, namespace: str, others: str
) -> None:
    """The chart's, over TLS, by the name of its Service, with tokens of ServiceAccounts."""
    kubectl, ours = system.cluster.kubectl, f"{NAME}.{names.NAMESPACE}.svc"
    ca = authority.make_ca(now=datetime.now(UTC), life=timedelta(days=2))
    leaf = authority.make_leaf(ca, names=frozenset({ours}), now=datetime.now(UTC), life=timedelta(days=1))
    pair = {"tls.crt": leaf.certificate.decode(), "tls.key": leaf.key.decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "stringData": pair}
    secret["metadata"] = {"name": f"{NAME}-tls", "namespace": names.NAMESPACE}
    found = helm.objects(dashboard={"enabled": True, "signIn": True, "secretName": f"{NAME}-tls"})
    text = yaml.safe_dump_all([secret, *(each for each in found if each["metadata"]["name"] == NAME)])
    text = text.replace(f"{NO_REGISTRY}/gpushare:{gpushare.__version__}", installation.LOCAL.image)
    kubectl("apply", "-f", "-", input=text)
    try:
        for where, name in ((others, f"{OTHERS}-a"), (namespace, "mine")):
            system.run(where, make_pod(name))
        tokens = {}
        for account, binding in (("viewer", ("rolebinding", "--clusterrole=view")), ("none", ())):
            accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
            kubectl("create", "serviceaccount", account, "-n", namespace)
            tokens[account] = system.api.create(f"{accounts}/{account}/token", {"spec": {}})["status"]["token"]
            if binding:
                kubectl("create", *binding, account, f"--serviceaccount={namespace}:{account}", "-n", namespace)
        kubectl("-n", names.NAMESPACE, "rollout", "status", f"deployment/{NAME}", timeout_s=300)
        address = kubectl("-n", names.NAMESPACE, "get", "service", NAME, "-o", "jsonpath={.spec.clusterIP}")
        trusted = ssl.create_default_context(cadata=ca.certificate.decode())

        def picture(token: str) -> tuple[int, str]:
            connection = http.client.HTTPSConnection(ours, timeout=60, context=trusted)
            raw = socket.create_connection((address.stdout, 443), timeout=60)
            connection.sock = trusted.wrap_socket(raw, server_hostname=ours)
            with contextlib.closing(connection):
                connection.request("GET", "/picture", headers={"Authorization": f"Bearer {token}"} if token else {})
                answer = connection.getresponse()
                return answer.status, answer.read().decode()

        asking.eventually("the viewer's pod is shown", lambda: '"name":"mine"' in picture(tokens["viewer"])[1], 120)
        status, seen = picture(tokens["viewer"])
        assert (status, OTHERS in seen, others in seen, '"complete":false' in seen) == (200, False, False, True)
        assert [picture(token)[0] for token in ("", "x", tokens["none"])] == [401, 401, 403]
    finally:
        kubectl("delete", "-f", "-", "--wait=false", input=text)
