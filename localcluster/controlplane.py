"""The control plane: etcd, API server, controller manager, scheduler, and kube-proxy for all nodes.

A cluster's runs in its own network namespace, so every port is the usual one. Without nodes it needs neither a
namespace nor root, and listens on free ports of this machine.
"""

import contextlib
import dataclasses
import ipaddress
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster import limits, network, pki, process, provision

MASTERS = "system:masters"
PLAIN_TEXT_UNTIL = provision.Version(1, 24)
"""Older schedulers and controller managers serve a port without TLS too."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What a test may change about the control plane."""

    audit: bool = False
    """Log every request for pods and bindings, without bodies, so that a test can count them."""
    api_server_flags: Sequence[str] = ()
    controller_manager_flags: Sequence[str] = ()
    feature_gates: Mapping[str, bool] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a control plane listens."""

    ip: str
    services: str
    """CIDR of cluster IPs, of which the API server's own Service takes the first."""
    enter: Sequence[str] = ()
    """Wrapper of every command line."""
    cluster_cidr: str = ""
    port: int = 6443
    etcd_ports: tuple[int, int] = (2379, 2380)
    alone: bool = True
    """In a network of its own, with nodes: kube-proxy runs, and all usual ports are free."""

    @property
    def api_service_ip(self) -> str:
        """The Service ``kubernetes``."""
        return str(next(ipaddress.ip_network(self.services).hosts()))


def seat_in(net: network.Network) -> Seat:
    """In a cluster's own network."""
    plan = net.plan
    return Seat(ip=plan.api_ip, services=plan.service_cidr, enter=net.enter, cluster_cidr=plan.cluster_cidr)


def free_seat() -> Seat:
    """On this machine, beside others."""
    port, *etcd = free_ports(3)
    return Seat(ip="127.0.0.1", services="10.0.0.0/24", port=port, etcd_ports=(etcd[0], etcd[1]), alone=False)


def free_ports(count: int) -> list[int]:
    """TCP ports of this machine, each another one, that nothing listens on."""
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in listening:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in listening]


class ControlPlane:
    """The processes of the control plane and their files below one directory."""

    def __init__(self, directory: Path, logs: Path, programs: provision.Programs, seat: Seat, options: Options) -> None:
        self._directory = directory
        self._logs = logs
        self._programs = programs
        self._seat = seat
        self._options = options
        directory.mkdir(parents=True)
        self.authority = pki.Authority(directory / "pki", "test-cluster")
        self.server = f"https://{seat.ip}:{seat.port}"
        self.admin = self.authority.issue("admin", "admin", organization=MASTERS)
        self.kubeconfig = self.kubeconfig_for("admin", self.admin)
        self.audit_log = logs / "audit.log"
        self.etcd = self._process("etcd", self._etcd_flags())
        self.api_server = self._process("kube-apiserver", self._api_server_flags())
        self.controller_manager = self._process("kube-controller-manager", self._controller_manager_flags())
        self.scheduler = self._process("kube-scheduler", self._scheduler_flags())
        # Without nodes there is nothing to forward to.
        self._proxies = [self._process("kube-proxy", self._proxy_flags())] if seat.alone else []

    @property
    def processes(self) -> list[process.Process]:
        """All of them, in the order of their start."""
        return [self.etcd, self.api_server, self.controller_manager, *self._proxies, self.scheduler]

    def kubeconfig_for(self, name: str, user: pki.KeyPair) -> Path:
        """Write the kubeconfig of a component."""
        return self.authority.kubeconfig(self._directory / f"{name}.kubeconfig", self.server, user)

    def start_store(self) -> None:
        """Start etcd and the API server, without waiting; the API server retries until etcd answers."""
        self.etcd.start()
        self.api_server.start()

    def wait_ready(self) -> None:
        """Wait for the API server."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(self.admin.certificate, self.admin.key)
        # No proxy of the environment may stand between us and an address of our own.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

        def ready() -> bool:
            try:
                with opener.open(f"{self.server}/readyz", timeout=2) as reply:
                    return bool(reply.status == 200)
            except (urllib.error.URLError, OSError):
                return False

        process.wait_until(ready, "API server ready", limits.API_SERVER_S, self.etcd, self.api_server)

    def start_controllers(self) -> None:
        """Start what needs the API server."""
        for child in (self.controller_manager, *self._proxies, self.scheduler):
            child.start()

    def stop(self) -> None:
        """End everything, the store last."""
        for child in reversed(self.processes):
            child.stop()

    def _process(self, name: str, flags: Sequence[str]) -> process.Process:
        argv = [*self._seat.enter, str(self._programs[name]), *flags]
        return process.Process(name, argv, self._logs / f"{name}.log")

    def _etcd_flags(self) -> list[str]:
        url = self._store
        peers = f"http://127.0.0.1:{self._seat.etcd_ports[1]}"
        # A lost write after a power cut does not matter to a test; waiting for the disk does.
        flags = [f"--data-dir={self._directory / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"]
        flags += [f"--listen-client-urls={url}", f"--advertise-client-urls={url}"]
        return [*flags, f"--listen-peer-urls={peers}"]

    @property
    def _store(self) -> str:
        return f"http://127.0.0.1:{self._seat.etcd_ports[0]}"

    def _api_server_flags(self) -> list[str]:
        seat = self._seat
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        names += ["kubernetes.default.svc.cluster.local", "localhost", "127.0.0.1", seat.ip, seat.api_service_ip]
        serving = self.authority.issue("kube-apiserver", "kube-apiserver", subjects=names)
        kubelet_client = self.authority.issue("kube-apiserver-kubelet", "kube-apiserver-kubelet", organization=MASTERS)
        self._tokens = self.authority.issue("service-account", "service-account")
        flags = {
            "etcd-servers": self._store,
            "bind-address": seat.ip,
            "advertise-address": seat.ip,
            "secure-port": seat.port,
            "tls-cert-file": serving.certificate,
            "tls-private-key-file": serving.key,
            "client-ca-file": self.authority.certificate,
            "kubelet-certificate-authority": self.authority.certificate,
            "kubelet-client-certificate": kubelet_client.certificate,
            "kubelet-client-key": kubelet_client.key,
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": self._tokens.certificate,
            "service-account-signing-key-file": self._tokens.key,
            "service-cluster-ip-range": seat.services,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            # The API server then finds a webhook's pods by itself instead of through kube-proxy's rules.
            "enable-aggregator-routing": "true",
            "allow-privileged": "true",
            "profiling": "false",
            **self._gates(),
        }
        return [*_flags(flags), *self._audit_flags(), *self._options.api_server_flags]

    def _audit_flags(self) -> list[str]:
        if not self._options.audit:
            return []
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {
                    "level": "Metadata",
                    "resources": [{"group": "", "resources": ["pods", "pods/binding", "pods/status", "bindings"]}],
                },
                {"level": "None"},
            ],
        }
        path = _write(self._directory / "audit-policy.json", policy)
        return _flags({"audit-policy-file": path, "audit-log-path": self.audit_log, "audit-log-mode": "blocking"})

    def _controller_manager_flags(self) -> list[str]:
        user = self.authority.issue("controller-manager", "system:kube-controller-manager")
        flags = {
            "kubeconfig": self.kubeconfig_for("controller-manager", user),
            "service-account-private-key-file": self._tokens.key,
            "root-ca-file": self.authority.certificate,
            "cluster-signing-cert-file": self.authority.pair.certificate,
            "cluster-signing-key-file": self.authority.pair.key,
            "use-service-account-credentials": "true",
            "leader-elect": "false",
            # Kubelets report every second here; noticing a dead node takes 8 s instead of 40.
            "node-monitor-period": "1s",
            "node-monitor-grace-period": "8s",
            # The default of 20 requests per second makes its own start take five seconds.
            "kube-api-qps": "200",
            "kube-api-burst": "400",
            **self._closed_ports(),
            **self._gates(),
        }
        return [*_flags(flags), *self._options.controller_manager_flags]

    def _closed_ports(self) -> dict[str, str]:
        """Beside others the controller manager and the scheduler serve nothing."""
        if self._seat.alone:
            return {}
        return {"secure-port": "0", **({"port": "0"} if self._programs.version < PLAIN_TEXT_UNTIL else {})}

    def _scheduler_flags(self) -> list[str]:
        user = self.authority.issue("scheduler", "system:kube-scheduler")
        configuration: dict[str, object] = {
            "apiVersion": f"kubescheduler.config.k8s.io/{scheduler_api(self._programs.version)}",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig_for("scheduler", user)), "qps": 200, "burst": 400},
            "leaderElection": {"leaderElect": False},
        }
        if not self._seat.alone and self._programs.version < PLAIN_TEXT_UNTIL:
            # The flag for it has no effect beside a configuration.
            address = f"127.0.0.1:{free_ports(1)[0]}"
            configuration |= {"healthzBindAddress": address, "metricsBindAddress": address}
        path = _write(self._directory / "scheduler.json", configuration)
        return _flags({"config": path, **self._closed_ports(), **self._gates()})

    def _proxy_flags(self) -> list[str]:
        user = self.authority.issue("kube-proxy", "system:kube-proxy")
        configuration: dict[str, object] = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig_for("kube-proxy", user))},
            "mode": "iptables",
            "clusterCIDR": self._seat.cluster_cidr,
            "hostnameOverride": "node-1",
            # New endpoints count within a second; the default batches changes for longer.
            "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
            # Zero leaves the kernel's connection tracking as it is: its limits belong to the whole machine.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
        proxy = self._programs.version_of("kube-proxy")
        if (proxy.major, proxy.minor) < (1, 21):
            # It knows a version of EndpointSlices only that current servers have dropped; Endpoints they all have.
            configuration["featureGates"] = {"EndpointSliceProxying": False}
        return _flags({"config": _write(self._directory / "kube-proxy.json", configuration)})

    def _gates(self) -> dict[str, str]:
        gates = self._options.feature_gates
        if not gates:
            return {}
        return {"feature-gates": ",".join(f"{name}={str(on).lower()}" for name, on in gates.items())}


def scheduler_api(version: provision.Version) -> str:
    """Return the newest version of the scheduler's configuration that a release reads."""
    if version >= provision.Version(1, 25):
        return "v1"
    if version >= provision.Version(1, 23):
        return "v1beta3"
    if version >= provision.Version(1, 22):
        return "v1beta2"
    return "v1beta1"


def _flags(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def _write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document, indent=1))
    return path
