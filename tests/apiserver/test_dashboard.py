"""Who signs in to the dashboard with a ServiceAccount's token sees what RBAC lets it list, as the API server says."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from gpushare.kube import api as kube, client
from gpushare.runtime.clock import SystemClock
from gpushare_cli.dashboard import command
from gpushare_cli.dashboard.access import Reviews, Scope
from gpushare_cli.dashboard.command import Options
from gpushare_cli.dashboard.picture import ScopedPictures
from localcluster.provision import Version
from testing import skips
from tests.apiserver.server import Server, pod

OTHER = "test-dashboard"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def other(server: Server) -> Iterator[str]:
    server.create_namespace(OTHER)
    yield OTHER
    server.delete_pods(OTHER)
    server.api.delete(f"/api/v1/namespaces/{OTHER}")


def test_each_token_shows_what_its_account_may_list(server: Server, namespace: str, other: str) -> None:
    skips.older(server.version, Version(1, 22), "it makes no tokens")
    config = str(server.running.control.kubeconfig)
    with server.node("dashboard-node"):
        for each in (namespace, other):
            server.create_pod(each, pod(f"pod-of-{each}", 3, node="dashboard-node"))
            server.bound(each, f"pod-of-{each}")
        live = command.of_cluster(server.api, Options(), lambda: namespace, SystemClock())
        stop, clock = threading.Event(), SystemClock()
        live.start(stop)
        server.eventually("the cluster is read", lambda: live.picture)
        reviews, pictures = Reviews(client.connect_as(config), live.namespaces, clock), ScopedPictures(live)
        tokens = {}
        for account, role in (("viewer", "view"), ("admin", "cluster-admin"), ("none", "")):
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
            server.api.create(path, {"metadata": {"name": account}})
            tokens[account] = server.api.create(f"{path}/{account}/token", {"spec": {}})["status"]["token"]
            subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
            ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
            binding = {"metadata": {"name": f"{account}-{namespace}"}, "roleRef": ref, "subjects": [subject]}
            if role == "view":
                server.api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
            elif role:
                server.api.create(f"{RBAC}/clusterrolebindings", binding)

        def scope(account: str) -> Scope | None:
            """None if it may list nothing; not kept, as RBAC is late by moments."""
            with contextlib.suppress(kube.ForbiddenError, kube.UnauthorizedError):
                return Reviews(client.connect_as(config), live.namespaces, clock).scope(f"Bearer {tokens[account]}")
            return None

        own = Scope(nodes=False, namespaces=(namespace,))
        server.eventually("RBAC has the viewer", lambda: scope("viewer") == own)
        server.eventually("RBAC has the admin", lambda: scope("admin") == Scope())
        assert scope("none") is None
        scopes = {account: reviews.scope(f"Bearer {tokens[account]}") for account in ("viewer", "admin")}
        for found in scopes.values():
            pictures.page(found)
        pictures.tick()
        pages = {account: pictures.page(found)[1] for account, found in scopes.items()}
        names = {each: f"pod-of-{each}".encode() for each in (namespace, other)}
        assert [name in pages["admin"] for name in names.values()] == [True, True]
        assert [name in pages["viewer"] for name in names.values()] == [True, False]
        for token in ("x", f"{tokens['viewer']}x", f"{tokens['viewer'][:-9]}AAAAAAAAA"):
            with pytest.raises(kube.UnauthorizedError):
                reviews.scope(f"Bearer {token}")
        server.api.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/viewer")
        server.eventually("the token is void", lambda: scope("viewer") is None)
        server.api.delete(f"{RBAC}/clusterrolebindings/admin-{namespace}")
        stop.set()
