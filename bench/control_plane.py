"""etcd and an API server alone, for what needs no node: no root, no network of their own."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushare.kube import client
from gpushare.kube.api import KubeError
from gpushare.kube.client import RestClient
from localcluster import limits, pki, provision
from localcluster.process import Process, wait_until


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running one."""

    api: RestClient
    kubeconfig: Path
    server: Process
    version: provision.Version


@contextlib.contextmanager
def running(directory: Path) -> Iterator[ControlPlane]:
    """The versions are those that `KUBEBUILDER_ASSETS` leads to."""
    programs, authority = provision.provision(), pki.Authority(directory / "pki", "bench")
    etcd_port, peer_port, port = (_free_port() for _ in range(3))
    names = ["localhost", "127.0.0.1"]
    serving, admin = (
        authority.issue("server", "server", subjects=names),
        authority.issue("admin", "admin", organization="system:masters"),
    )
    tokens = authority.issue("tokens", "tokens")
    store = f"http://127.0.0.1:{etcd_port}"
    etcd_flags = [f"--data-dir={directory / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"]
    etcd_flags += [f"--listen-client-urls={store}", f"--advertise-client-urls={store}"]
    etcd_flags += [f"--listen-peer-urls=http://127.0.0.1:{peer_port}"]
    flags = {
        "etcd-servers": store,
        "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1",
        "secure-port": port,
        "tls-cert-file": serving.certificate,
        "tls-private-key-file": serving.key,
        "client-ca-file": authority.certificate,
        "service-account-issuer": "https://bench",
        "service-account-key-file": tokens.certificate,
        "service-account-signing-key-file": tokens.key,
        "service-cluster-ip-range": "10.0.0.0/24",
        "authorization-mode": "RBAC",
        "disable-admission-plugins": "ServiceAccount",
    }
    etcd = Process("etcd", [str(programs["etcd"]), *etcd_flags], directory / "etcd.log")
    argv = [str(programs["kube-apiserver"]), *(f"--{name}={value}" for name, value in flags.items())]
    server = Process("kube-apiserver", argv, directory / "kube-apiserver.log")
    kubeconfig = authority.kubeconfig(directory / "kubeconfig", f"https://127.0.0.1:{port}", admin)
    api = client.connect(str(kubeconfig))
    with contextlib.ExitStack() as stack:
        for child in (etcd, server):
            child.start()
            stack.callback(child.stop)
        wait_until(lambda: _is_ready(api), "API server ready", limits.API_SERVER_S, etcd, server)
        yield ControlPlane(api, kubeconfig, server, programs.version)


def _is_ready(api: RestClient) -> bool:
    with contextlib.suppress(KubeError):
        return api.ask("/readyz", timeout_s=2).status == 200
    return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
