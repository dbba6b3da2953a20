"""A control plane without nodes, for everything that needs an API server and no container; it needs no root.

Nodes are objects, and this project's webhook, controller and scheduler are processes of this machine, installed from
`manifests/` as on a cluster: the same objects with the same rights, but for the addresses by which they are called.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from gpushare import names
from gpushare.kube import client as kube_client
from gpushare.kube.client import RestClient
from localcluster import client, controlplane, installation, limits, process, provision

Json = dict[str, Any]
WORKLOADS: Final = frozenset({"Deployment", "DaemonSet"})
WEBHOOKS: Final = frozenset({"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})
POLICIES_SINCE: Final = provision.Version(1, 30)
OPTIONS: Final = controlplane.Options(
    # Without kubelets every node would be called dead.
    controller_manager_flags=("--controllers=*,-nodelifecycle",)
)


class ApiServer:
    """etcd, API server, controller manager and scheduler on free ports, and what is installed there."""

    def __init__(
        self,
        workdir: Path,
        programs: provision.Programs,
        options: controlplane.Options = OPTIONS,
        *,
        controllers: bool = True,
    ) -> None:
        """Describe it; nothing happens yet.

        Args:
            workdir: an existing directory, in which the logs stay.
            programs: see `provision.control_plane`.
            options: about the control plane.
            controllers: whether the controller manager and the cluster's own scheduler run.
        """
        self.programs = programs
        self.workdir = workdir
        self.logs = workdir / "logs"
        self.controllers = controllers
        seat = controlplane.free_seat()
        self.control = controlplane.ControlPlane(self.workdir / "control", self.logs, programs, seat, options)
        self.kubectl = client.Kubectl(programs["kubectl"], self.control.kubeconfig, self.workdir)
        self.api = kube_client.connect(str(self.control.kubeconfig))
        self.extender = ""
        """URL of the controller, once it is installed."""
        self.probes = ""
        """URL of its probes and metrics."""
        self._own: list[process.Process] = []

    @property
    def version(self) -> provision.Version:
        """Of Kubernetes."""
        return self.programs.version

    @property
    def has_policies(self) -> bool:
        """Whether the server checks ValidatingAdmissionPolicies, and the manifests have some for it."""
        return self.version >= POLICIES_SINCE

    def __enter__(self) -> Self:
        try:
            self.control.start_store()
            self.control.wait_ready()
            if self.controllers:
                self.control.start_controllers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End everything; the logs stay."""
        self.api.close()
        with ThreadPoolExecutor() as pool:  # the controller and the scheduler give their leases back
            list(pool.map(process.Process.stop, self._own))
        self.control.stop()
        shutil.rmtree(self.workdir / "control")

    def check_alive(self) -> None:
        """Raise with the end of its log if a program has ended."""
        for child in (*self.control.processes, *self._own):
            child.check_alive()

    def create(self, documents: Iterable[Json]) -> None:
        """Create objects of any kind."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        # The server checks them itself; kubectl would need the whole description of the API first.
        self.kubectl("create", "--validate=false", "-f", "-", input=json.dumps(listed))

    def as_user(self, name: str) -> RestClient:
        """A client with a certificate of this user."""
        return kube_client.connect(str(self.kubeconfig(name)))

    def kubeconfig(self, user: str, group: str = "") -> Path:
        """With a certificate of this user."""
        stem = user.rpartition(":")[2]
        return self.control.kubeconfig_for(stem, self.control.authority.issue(stem, user, organization=group))

    def install(self, config: Mapping[str, str], *patches: Mapping[str, object]) -> None:
        """Apply the manifests, start this project's programs, and wait until they serve.

        Args:
            config: entries to add to the ConfigMap gpushare-config.
            patches: what else a user's own kustomization changes.
        """
        # Servers before 1.21 do not write the label that the webhooks' selectors need.
        self.kubectl("label", "--overwrite", "namespace", "kube-system", "kubernetes.io/metadata.name=kube-system")
        documents = self.rendered(config, *patches)
        port, probes, hooks, *plain = controlplane.free_ports(5)
        self.extender, self.probes = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{probes}"
        self.create(
            called_at(f"https://127.0.0.1:{hooks}", each) for each in documents if each["kind"] not in WORKLOADS
        )
        settings = next(_named(documents, "ConfigMap", names.CONFIG))["data"]
        commands = {
            each["metadata"]["name"]: each["spec"]["template"]["spec"]["containers"][0]["command"][1:]
            for each in documents
            if each["kind"] == "Deployment"
        }
        local = ["--bind-address=127.0.0.1", f"--port={port}", f"--probe-port={probes}"]
        self._run(names.CONTROLLER, [sys.executable, *commands[names.CONTROLLER], *local], settings)
        local = ["--address=127.0.0.1", f"--port={hooks}", "--cert-extra-names=127.0.0.1"]
        local += [f"--cert-dir={self.workdir / 'certs'}"]
        self._run(names.WEBHOOK, [sys.executable, *commands[names.WEBHOOK], *local], settings)
        self._start_scheduler(next(_named(documents, "ConfigMap", names.SCHEDULER)), plain)
        self._wait_for_controller()
        process.wait_until(self._has_webhook, "webhook ready", limits.INSTALLATION_S, *self._own)

    @contextlib.contextmanager
    def without(self, name: str) -> Iterator[None]:
        """One of this project's programs is stopped, and started again."""
        [program] = [each for each in self._own if each.name == name]
        program.stop()
        try:
            yield
        finally:
            program.start()
            self._wait_for_controller()

    def rendered(self, config: Mapping[str, str], *patches: Mapping[str, object]) -> Sequence[Json]:
        """All objects of the manifests for this server's version."""
        whole_gpus = config.get("GPUSHARE_WHOLE_GPUS") == "true"
        built_on = installation.bases(self.version, whole_gpus=whole_gpus)
        own = [installation.config_map(names.CONFIG, config), *patches]
        directory = installation.write_kustomization(self.workdir / "kustomization", built_on, own)
        built = self.kubectl("kustomize", str(directory)).stdout
        return [document for document in yaml.safe_load_all(built) if document]

    def _run(self, name: str, argv: Sequence[str], settings: Mapping[str, str]) -> None:
        account = f"system:serviceaccount:{names.NAMESPACE}:{name}"
        kubeconfig = self.kubeconfig(account, "system:serviceaccounts")
        environment = {**settings, "PYTHONPATH": str(installation.ROOT)}
        child = process.Process(
            name, [*argv, f"--kubeconfig={kubeconfig}"], self.logs / f"{name}.log", environment=environment
        )
        child.start()
        self._own.append(child)

    def _start_scheduler(self, config_map: Json, plain: Sequence[int]) -> None:
        configuration: Json = yaml.safe_load(config_map["data"]["scheduler.yaml"])
        account = f"system:serviceaccount:{names.NAMESPACE}:{names.SCHEDULER}"
        kubeconfig = self.kubeconfig(account, "system:serviceaccounts")
        configuration["clientConnection"]["kubeconfig"] = str(kubeconfig)
        for extender in configuration["extenders"]:
            extender["urlPrefix"] = self.extender + names.EXTENDER_PREFIX
        for field, port in zip(("healthzBindAddress", "metricsBindAddress"), plain, strict=True):
            if field in configuration:
                configuration[field] = f"127.0.0.1:{port}"
        path = self.workdir / "scheduler.json"
        path.write_text(json.dumps(configuration))
        argv: list[str | Path] = [self.programs["kube-scheduler"], f"--config={path}", "--secure-port=0"]
        child = process.Process(names.SCHEDULER, argv, self.logs / f"{names.SCHEDULER}.log")
        child.start()
        self._own.append(child)

    def _wait_for_controller(self) -> None:
        leads = f"{self.extender}/readyz"
        process.wait_until(lambda: _answers(leads), "controller ready", limits.INSTALLATION_S, *self._own)

    def _has_webhook(self) -> bool:
        container = {"name": "c", "image": "i", "resources": {"limits": {names.GPU_MEM: "1"}}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": {"containers": [container]}}
        argv = ["create", "--dry-run=server", "--validate=false", "-o", "json", "-f", "-"]
        made: subprocess.CompletedProcess[str] = self.kubectl(*argv, input=json.dumps(pod), check=False)
        return made.returncode == 0 and names.LABEL_MANAGED in json.loads(made.stdout)["metadata"].get("labels", {})


def called_at(url: str, document: Json) -> Json:
    """A webhook configuration whose webhooks are at a URL; other objects as they are."""
    if document["kind"] not in WEBHOOKS:
        return document
    hooks = [
        {**hook, "clientConfig": {"url": url + hook["clientConfig"]["service"]["path"]}}
        for hook in document["webhooks"]
    ]
    return {**document, "webhooks": hooks}


def _named(documents: Iterable[Json], kind: str, name: str) -> Iterator[Json]:
    return (each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name))


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
