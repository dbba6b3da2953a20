"""The control plane: etcd, API server, controller manager, scheduler, and kube-proxy for all nodes.

Everything runs in the cluster's network namespace, so every port is the usual one.
"""

import dataclasses
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster import limits, network, pki, process, provision

MASTERS = "system:masters"


@dataclasses.dataclass(frozen=True)
class Options:
    """What a test may change about the control plane."""

    audit: bool = False
    """Log every request for pods and bindings, without bodies, so that a test can count them."""
    api_server_flags: Sequence[str] = ()
    controller_manager_flags: Sequence[str] = ()
    feature_gates: Mapping[str, bool] = dataclasses.field(default_factory=dict)


class ControlPlane:
    """The processes of the control plane and their files below one directory."""

    def __init__(
        self, directory: Path, logs: Path, programs: provision.Programs, net: network.Network, options: Options
    ) -> None:
        self._directory = directory
        self._logs = logs
        self._programs = programs
        self._net = net
        self._options = options
        directory.mkdir(parents=True)
        self.authority = pki.Authority(directory / "pki", "test-cluster")
        self.server = f"https://{net.plan.api_ip}:6443"
        self.admin = self.authority.issue("admin", "admin", organization=MASTERS)
        self.kubeconfig = self.kubeconfig_for("admin", self.admin)
        self.audit_log = logs / "audit.log"
        self.etcd = self._process("etcd", self._etcd_flags())
        self.api_server = self._process("kube-apiserver", self._api_server_flags())
        self.controller_manager = self._process("kube-controller-manager", self._controller_manager_flags())
        self.proxy = self._process("kube-proxy", self._proxy_flags())
        self.scheduler = self._process("kube-scheduler", self._scheduler_flags({}))

    @property
    def processes(self) -> list[process.Process]:
        """All of them, in the order of their start."""
        return [self.etcd, self.api_server, self.controller_manager, self.proxy, self.scheduler]

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
        for child in (self.controller_manager, self.proxy, self.scheduler):
            child.start()

    def restart_scheduler(self, configuration: Mapping[str, object], flags: Sequence[str] = ()) -> None:
        """Start the scheduler again with parts of a KubeSchedulerConfiguration (profiles, extenders, ...).

        Connection, leader election and kind are filled in; the version is too unless given.
        """
        self.scheduler.stop()
        self.scheduler = self._process("kube-scheduler", [*self._scheduler_flags(configuration), *flags])
        self.scheduler.start()

    def stop(self) -> None:
        """End everything, the store last."""
        for child in reversed(self.processes):
            child.stop()

    def _process(self, name: str, flags: Sequence[str]) -> process.Process:
        argv = [*self._net.enter, str(self._programs[name]), *flags]
        return process.Process(name, argv, self._logs / f"{name}.log")

    def _etcd_flags(self) -> list[str]:
        url = "http://127.0.0.1:2379"
        # A lost write after a power cut does not matter to a test; waiting for the disk does.
        flags = [f"--data-dir={self._directory / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"]
        flags += [f"--listen-client-urls={url}", f"--advertise-client-urls={url}"]
        return [*flags, "--listen-peer-urls=http://127.0.0.1:2380"]

    def _api_server_flags(self) -> list[str]:
        plan = self._net.plan
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        names += ["kubernetes.default.svc.cluster.local", "localhost", "127.0.0.1", plan.api_ip, plan.api_service_ip]
        serving = self.authority.issue("kube-apiserver", "kube-apiserver", subjects=names)
        kubelet_client = self.authority.issue("kube-apiserver-kubelet", "kube-apiserver-kubelet", organization=MASTERS)
        self._tokens = self.authority.issue("service-account", "service-account")
        flags = {
            "etcd-servers": "http://127.0.0.1:2379",
            "bind-address": plan.api_ip,
            "advertise-address": plan.api_ip,
            "secure-port": "6443",
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
            "service-cluster-ip-range": plan.service_cidr,
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
            **self._gates(),
        }
        return [*_flags(flags), *self._options.controller_manager_flags]

    def _scheduler_flags(self, changes: Mapping[str, object]) -> list[str]:
        user = self.authority.issue("scheduler", "system:kube-scheduler")
        configuration: dict[str, object] = {
            "apiVersion": f"kubescheduler.config.k8s.io/{scheduler_api(self._programs.version)}",
            **changes,
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig_for("scheduler", user)), "qps": 200, "burst": 400},
            "leaderElection": {"leaderElect": False},
        }
        path = _write(self._directory / "scheduler.json", configuration)
        return _flags({"config": path, **self._gates()})

    def _proxy_flags(self) -> list[str]:
        user = self.authority.issue("kube-proxy", "system:kube-proxy")
        configuration: dict[str, object] = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig_for("kube-proxy", user))},
            "mode": "iptables",
            "clusterCIDR": self._net.plan.cluster_cidr,
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
