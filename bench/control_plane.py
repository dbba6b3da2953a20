"""etcd and an API server alone, for what needs no node: no root, no network of their own."""

import concurrent.futures
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.servers import free_port
from gpushare.kube import client
from gpushare.kube.api import JsonObject, KubeError
from gpushare.kube.client import RestClient
from localcluster import limits, pki, provision
from localcluster.process import Process, wait_until

_CREATORS, _STREAMS = 4, 4
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running one."""

    api: RestClient
    kubeconfig: Path
    server: Process
    store: Process
    programs: provision.Programs


@contextlib.contextmanager
def running(directory: Path) -> Iterator[ControlPlane]:
    """The versions are those that `KUBEBUILDER_ASSETS` leads to."""
    programs, authority = provision.provision(), pki.Authority(directory / "pki", "bench")
    etcd_port, peer_port, port = (free_port() for _ in range(3))
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
        "disable-admission-plugins": "ServiceAccount,TaintNodesByCondition",  # no controllers run
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
        yield ControlPlane(api, kubeconfig, server, etcd, programs)


def _is_ready(api: RestClient) -> bool:
    with contextlib.suppress(KubeError):
        return api.ask("/readyz", timeout_s=2).status == 200
    return False


def requests(plane: ControlPlane) -> dict[str, float]:
    """What the API server has answered: requests by verb and resource, such as `POST pods/binding`."""
    found = dict[str, float]()
    for line in plane.api.ask("/metrics", timeout_s=30).text.splitlines():
        if line.startswith("apiserver_request_total{"):
            labels = dict(_LABEL.findall(line))
            resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            key = f"{labels['verb']} {resource}"
            found[key] = found.get(key, 0) + float(line.rpartition(" ")[2])
    return found


def fill(plane: ControlPlane, path: str, make: Callable[[int], JsonObject], numbers: Sequence[int]) -> None:
    """Create objects, with as many processes as are of use: one spends its time on TLS and JSON."""
    with concurrent.futures.ProcessPoolExecutor(_CREATORS) as pool:
        parts = [numbers[first::_CREATORS] for first in range(_CREATORS)]
        for done in [pool.submit(create, str(plane.kubeconfig), path, make, part) for part in parts]:
            done.result()


def remove_all(plane: ControlPlane, path: str) -> None:
    """A whole collection of objects that nothing waits for."""
    plane.api.delete(path, {"gracePeriodSeconds": 0}, timeout_s=60)


def create(kubeconfig: str, path: str, make: Callable[[int], JsonObject], numbers: Iterable[int]) -> None:
    """Some of them, in this process."""
    api = client.connect(kubeconfig)
    with concurrent.futures.ThreadPoolExecutor(_STREAMS) as pool:
        list(pool.map(lambda number: bool(api.create(path, make(number), timeout_s=60)), numbers))
    api.close()
