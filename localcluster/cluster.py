"""The facade: a whole cluster as one object.

with Cluster(nodes=2) as cluster:
    cluster.kubectl("get", "nodes")
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from localcluster import (
    client,
    controlplane,
    dns,
    images,
    inotify,
    leftovers,
    limits,
    network,
    process,
    provision,
    runtimes,
)
from localcluster.node import Node
from localcluster.node_files import SANDBOX_IMAGE

BUSYBOX_IMAGE = "gpushare.test/busybox:1"
"""Present on every node: prints its environment and waits."""

LONGEST_WORKDIR = 50
"""Characters; a Unix socket's path may have 107, and a device plugin's lies deep below the working directory."""


class Cluster:
    """A real Kubernetes cluster on this machine; needs root.

    Start and stop it with the methods, or use it as a context manager. Several may run beside each other.
    """

    def __init__(
        self,
        workdir: Path | None = None,
        nodes: int = 2,
        *,
        cdi: Collection[int] = (),
        audit: bool = False,
        options: controlplane.Options | None = None,
        kubelet_configuration: Mapping[str, object] | None = None,
        keep: bool | None = None,
        say: provision.Say = provision.say_nothing,
    ) -> None:
        """Describe the cluster; nothing happens yet.

        Args:
            workdir: Where its files go, a short path that does not exist yet or is empty; a temporary directory if
                not given.
            nodes: How many nodes, at least one.
            cdi: Numbers, from 1, of the nodes whose container runtime injects CDI devices; the others' does not.
            audit: Write ``audit_log``, one JSON line per request for pods or bindings.
            options: More about the control plane; ``audit`` there counts as well.
            kubelet_configuration: Fields of every node's KubeletConfiguration to add or replace.
            keep: Whether ``logs`` outlives the cluster; if not given, it does when ``workdir`` was given.
            say: Called with one line of progress at a time.
        """
        self._given_workdir = workdir
        self._count = nodes
        self._cdi = frozenset(cdi)
        chosen = options or controlplane.Options()
        self._options = dataclasses.replace(chosen, audit=audit or chosen.audit)
        self._kubelet_configuration = dict(kubelet_configuration or {})
        self._keep = keep if keep is not None else workdir is not None
        self._say = say
        self._owned: leftovers.Owned | None = None
        self._control: controlplane.ControlPlane | None = None
        self._programs: provision.Programs | None = None
        self._runtimes: dict[bool, runtimes.ContainerRuntime] = {}
        self._plan: network.AddressPlan | None = None
        self._dns: process.Process | None = None
        self.nodes: list[Node] = []
        self.workdir = workdir or Path()

    def start(self) -> Self:
        """Start everything and wait until all nodes are Ready; a failure leaves nothing behind but the logs."""
        if os.geteuid() != 0:
            raise process.ClusterError("a cluster needs root, for namespaces, mounts and control groups")
        began = time.monotonic()
        self._programs = provision.provision(self._say)
        self._runtimes = {False: runtimes.of_the_machine(self._programs)}
        if self._cdi:
            self._runtimes[True] = runtimes.with_cdi(self.version, self._say)
        try:
            self._start()
        except BaseException as error:
            # Anyone who pressed Ctrl-C does not look for the reason in the logs.
            self._keep = self._keep or isinstance(error, Exception)
            self.stop()
            raise
        self._say(f"cluster of {self._count} nodes, Kubernetes {self.version}: {time.monotonic() - began:.1f} s")
        return self

    def stop(self) -> None:
        """End every process and remove everything from the machine; a no-op when it was never started."""
        if self._owned is None:
            return
        with process.timed(self._say, "cluster removed"):
            leftovers.end_processes(self._owned.name)
            for child in self._processes():
                child.kill()
            with leftovers.exclusive():
                leftovers.remove(self._owned if self._keep == self._owned.keep else self._kept(self._owned))
        self._owned = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def control(self) -> controlplane.ControlPlane:
        """The control plane's processes and files."""
        assert self._control is not None, "not started"
        return self._control

    @property
    def plan(self) -> network.AddressPlan:
        """The addresses; ``plan.host_ip`` is this machine as the cluster sees it."""
        assert self._plan is not None, "not started"
        return self._plan

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.control.kubeconfig

    @property
    def server(self) -> str:
        """The API server's URL, for this machine and for pods."""
        return self.control.server

    @property
    def version(self) -> provision.Version:
        """The version of Kubernetes."""
        assert self._programs is not None, "not started"
        return self._programs.version

    @property
    def logs(self) -> Path:
        """The directory with a log file per component, nodes' in directories of their own."""
        return self.workdir / "logs"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, if the cluster writes one."""
        return self.control.audit_log

    def program(self, name: str) -> Path:
        """Return the path of a program that the cluster uses."""
        assert self._programs is not None, "not started"
        return Path(self._programs[name])

    def node(self, name: str) -> Node:
        """Return a node by its name."""
        return next(node for node in self.nodes if node.name == name)

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as subprocess.run calls it
        check: bool = True,
        timeout_s: float = limits.COMMAND_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator; a failure that is checked carries what kubectl said."""
        return self._kubectl(*arguments, input=input, check=check, timeout_s=timeout_s)

    @property
    def _kubectl(self) -> client.Kubectl:
        assert self._programs is not None, "not started"
        return client.Kubectl(self._programs["kubectl"], self.kubeconfig, self.workdir)

    def apply(self, *documents: Mapping[str, object]) -> None:
        """Create or change objects."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.kubectl("apply", "-f", "-", input=json.dumps(listed))

    def import_image(self, archive: Path) -> None:
        """Give all nodes an image from a docker-archive file."""
        with process.timed(self._say, f"image {archive.name} on {len(self.nodes)} nodes"), ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.import_image(archive), self.nodes))

    def wait_nodes_ready(self, timeout_s: float = limits.NODES_READY_S) -> None:
        """Wait until every node's kubelet serves and the API calls it Ready."""
        kubelets = [node.kubelet for node in self.nodes if node.kubelet is not None]
        process.wait_until(self._all_serve, "kubelets serve", timeout_s, *kubelets)
        process.wait_until(self._all_ready, "nodes Ready", timeout_s, *kubelets)

    def _all_serve(self) -> bool:
        return all(node.kubelet_serves for node in self.nodes)

    def _all_ready(self) -> bool:
        done = self.kubectl("get", "nodes", "--output=json", check=False)
        if done.returncode != 0:
            return False
        ready = 0
        for item in json.loads(done.stdout)["items"]:
            conditions = {condition["type"]: condition["status"] for condition in item["status"].get("conditions", [])}
            tainted = any(t["key"].startswith("node.kubernetes.io/") for t in item["spec"].get("taints", []))
            ready += conditions.get("Ready") == "True" and not tainted
        return ready == self._count

    def _start(self) -> None:
        assert self._programs is not None
        with process.timed(self._say, "network"), leftovers.exclusive():
            for line in leftovers.remove_abandoned():
                self._say(line)
            inotify.check(self._count)
            net = network.Network(self._programs)
            self.workdir = self._prepare_workdir(net.name)
            self._owned = leftovers.record(net.name, self.workdir, keep=self._keep)
            net.create(self._count)
        self._plan = net.plan
        self._control = controlplane.ControlPlane(
            self.workdir / "control", self.logs, self._programs, controlplane.seat_in(net), self._options
        )
        self.control.start_store()
        self.nodes = [self._new_node(number + 1, net) for number in range(self._count)]
        with process.timed(self._say, "container runtimes and images"):
            self._start_runtimes()
        with process.timed(self._say, "API server ready"):
            self.control.wait_ready()
        with process.timed(self._say, "nodes Ready"):
            self.control.start_controllers()
            for node in self.nodes:
                node.start_kubelet()
            self._dns = self._start_dns(net)
            self.wait_nodes_ready()

    def _new_node(self, number: int, net: network.Network) -> Node:
        assert self._programs is not None
        name = f"node-{number}"
        return Node(
            number,
            self.workdir / name,
            self.logs / name,
            self._programs,
            net,
            self.control.authority,
            self.server,
            runtime=self._runtimes[number in self._cdi],
            configuration=self._kubelet_configuration,
        )

    def _prepare_workdir(self, name: str) -> Path:
        workdir = self._given_workdir or Path(tempfile.mkdtemp(prefix=f"{name}-"))
        workdir = workdir.absolute()
        if len(str(workdir)) > LONGEST_WORKDIR:
            raise process.ClusterError(f"{workdir} is too long for sockets below it (more than {LONGEST_WORKDIR})")
        if (workdir / "control").exists():
            raise process.ClusterError(f"{workdir} holds another cluster")
        self.workdir = workdir
        # The logs of an earlier run in the same place would only confuse.
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        return workdir

    def _start_runtimes(self) -> None:
        assert self._programs is not None
        busybox = self._programs["busybox"]
        archives = [
            images.pause_image(self.workdir / "control/pause.tar", SANDBOX_IMAGE, busybox),
            images.busybox_image(self.workdir / "control/busybox.tar", [BUSYBOX_IMAGE], busybox),
        ]

        def start(node: Node) -> None:
            node.start_containerd()
            for archive in archives:
                node.import_image(archive)

        with ThreadPoolExecutor() as pool:
            list(pool.map(start, self.nodes))

    def _start_dns(self, net: network.Network) -> process.Process:
        user = self.control.authority.issue("dns", "dns", organization=controlplane.MASTERS)
        # The file is run by itself, without this package's directory, hence by its path.
        argv = [*net.enter, sys.executable, str(Path(dns.__file__)), net.plan.dns_ip, self.server]
        argv += [str(self.control.authority.certificate), str(user.certificate), str(user.key)]
        child = process.Process("dns", argv, self.logs / "dns.log")
        child.start()
        return child

    def _processes(self) -> list[process.Process]:
        children = [child for node in self.nodes for child in node.processes]
        children += self._control.processes if self._control is not None else []
        children += [self._dns] if self._dns is not None else []
        return children

    def _kept(self, owned: leftovers.Owned) -> leftovers.Owned:
        self._say(f"logs stay in {owned.workdir / 'logs'}")
        return dataclasses.replace(owned, keep=self._keep)
