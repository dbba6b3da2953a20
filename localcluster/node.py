"""One node: a real kubelet with a containerd of its own.

A kubelet's device-plugin directory is fixed at /var/lib/kubelet/device-plugins, so every node lives in a mount
namespace where that path, and the others that kubelets would fight over, are its own. It has a process namespace as
well, whose first process does nothing but collect orphans: killing that one is a power cut, while kubelet and
containerd can come and go without ending the node.
"""

import json
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from localcluster import cgroups, limits, network, node_files, pki, process, provision, runtimes

SHARED_PATHS = {
    "kubelet": "/var/lib/kubelet",
    "log-pods": "/var/log/pods",
    "log-containers": "/var/log/containers",
    "cni": "/var/lib/cni",
    "cdi": "/etc/cdi",
}
"""Directory below the node's own, and where it lies inside the node."""

KUBELET_PORT = 10250

FIRST_PROCESS = """\
set -e
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/containerd /run/lock
{binds}
trap '' TERM INT HUP
echo up > {ready}
# Waiting also collects the orphans that end up here, as the first process of a machine must.
while :; do sleep 3600 & wait; done
"""


class Node:
    """One node of the cluster."""

    def __init__(
        self,
        number: int,
        directory: Path,
        logs: Path,
        programs: provision.Programs,
        net: network.Network,
        authority: pki.Authority,
        server: str,
        *,
        runtime: runtimes.ContainerRuntime,
        configuration: Mapping[str, object],
    ) -> None:
        self.name = f"node-{number}"
        self.ip = net.plan.node_ip(number)
        self.directory = directory
        self.logs = logs
        self._number = number
        self.runtime = runtime
        self._programs = programs
        self._net = net
        self._authority = authority
        self._server = server
        self._configuration = configuration
        self.cgroup = f"{net.name}/{self.name}"
        self._write_files()
        self.holder = process.Process(
            f"{self.name} (first process)", self._holder_command(), logs / "node.log", wrapped=True
        )
        self.containerd: process.Process | None = None
        self.kubelet: process.Process | None = None
        self._kubelet_started = 0.0

    @property
    def device_plugins_dir(self) -> Path:
        """The kubelet's device-plugin directory as a path on the machine: a plugin may serve there from outside."""
        return self.directory / "kubelet/device-plugins"

    @property
    def pod_resources_socket(self) -> Path:
        """The kubelet's PodResources socket as a path on the machine."""
        return self.directory / "kubelet/pod-resources/kubelet.sock"

    @property
    def nvidia_config(self) -> Path:
        """Configuration of NVIDIA's runtime on this node; while there is none, the handler is plain runc."""
        return self.directory / node_files.NVIDIA_CONFIG

    @property
    def cdi_dir(self) -> Path:
        """The node's /etc/cdi as a path on the machine."""
        return self.directory / "cdi"

    @property
    def enter(self) -> list[str]:
        """The beginning of a command line that runs inside the node, at the paths that pods with hostPath see."""
        return [str(self._programs["nsenter"]), f"--target={self.holder.pid}", "--mount", "--net", "--pid"]

    @property
    def processes(self) -> list[process.Process]:
        """What runs, in the order of its start."""
        return [child for child in (self.holder, self.containerd, self.kubelet) if child is not None]

    def start(self) -> None:
        """Start the node, without the kubelet's having registered yet."""
        self.start_containerd()
        self.start_kubelet()

    def start_containerd(self) -> None:
        """Start the node up to its container runtime, which needs no API server."""
        ready = self.directory / "ready"
        if not self.holder.alive:
            ready.unlink(missing_ok=True)
            cgroups.create(self.cgroup)
            self.holder.start()
            process.wait_until(ready.exists, f"{self.name}: mounts", limits.MOUNTS_S, self.holder)
        argv = [*self.enter, str(self.runtime.containerd), "--config", str(self.directory / "containerd.toml")]
        self.containerd = process.Process(f"{self.name}: containerd", argv, self.logs / "containerd.log", wrapped=True)
        self.containerd.start()

        def answers() -> bool:
            probe = [*self.enter, str(self.runtime.ctr), "--connect-timeout=1s", "version"]
            done = subprocess.run(
                probe, check=False, capture_output=True, timeout=limits.COMMAND_S, env=process.clean_environment()
            )
            return done.returncode == 0

        process.wait_until(answers, f"{self.name}: containerd answers", limits.CONTAINERD_S, self.containerd)

    def start_kubelet(self) -> None:
        """Start the kubelet; a no-op if it runs."""
        argv = [*self.enter, str(self._programs["kubelet"]), *self._kubelet_flags()]
        if self.kubelet is not None and self.kubelet.alive:
            return
        self._kubelet_started = time.time()
        self.kubelet = process.Process(f"{self.name}: kubelet", argv, self.logs / "kubelet.log", wrapped=True)
        self.kubelet.start()

    @property
    def kubelet_serves(self) -> bool:
        """Whether the kubelet, as started last, serves its API and its device-plugin socket."""
        kubelet_socket = self.device_plugins_dir / "kubelet.sock"
        try:
            # An earlier kubelet leaves its socket behind; file times lag behind the clock by some milliseconds.
            if kubelet_socket.stat().st_ctime < self._kubelet_started - 0.05:
                return False
            socket.create_connection((self.ip, KUBELET_PORT), timeout=2).close()
        except OSError:
            return False
        return True

    def wait_kubelet(self, timeout_s: float = limits.KUBELET_S) -> None:
        """Wait until the kubelet serves; what the API says of the node may be older than its last start."""
        assert self.kubelet is not None, "never started"
        process.wait_until(lambda: self.kubelet_serves, f"{self.name}: kubelet serves", timeout_s, self.kubelet)

    def stop_kubelet(self) -> None:
        """End the kubelet in order; pods go on."""
        if self.kubelet is not None:
            self.kubelet.stop()

    def restart_kubelet(self) -> None:
        """Stop and start the kubelet; pods go on."""
        self.stop_kubelet()
        self.start_kubelet()

    def restart_containerd(self) -> None:
        """Kill the container runtime and start it again; its containers go on."""
        if self.containerd is not None:
            self.containerd.kill()
        self.start_containerd()

    def import_image(self, archive: Path) -> None:
        """Give the node an image from a docker-archive file."""
        argv = [*self.enter, str(self.runtime.ctr), "--namespace=k8s.io", "images", "import", "-"]
        with archive.open("rb") as data:
            done = subprocess.run(
                argv,
                check=False,
                stdin=data,
                capture_output=True,
                text=True,
                timeout=limits.IMAGE_S,
                env=process.clean_environment(),
            )
        if done.returncode != 0:
            raise process.ClusterError(f"{self.name}: importing {archive}: {done.stderr.strip()}")

    def _holder_command(self) -> list[str]:
        unshare = [str(self._programs["unshare"]), "--mount", "--propagation=private", "--pid", "--fork"]
        unshare += ["--kill-child", "--mount-proc"]
        script = self.directory / "first-process.sh"
        return [*self._net.enter, *unshare, str(self._programs["busybox"]), "sh", str(script)]

    def _write_files(self) -> None:
        self.logs.mkdir(parents=True)
        for name, inside in SHARED_PATHS.items():
            (self.directory / name).mkdir(parents=True)
            # Something to mount over must exist on the machine. It stays: removing it could pull the ground
            # from under another cluster.
            Path(inside).mkdir(parents=True, exist_ok=True)
        cni = self.directory / "net.d"
        cni.mkdir()
        (cni / "10-test.conflist").write_text(network.ptp_configuration(self._net.plan.pod_subnet(self._number)))
        (self.directory / "resolv.conf").write_text("")
        containerd = node_files.containerd_configuration(self.directory, self._programs, self.runtime)
        (self.directory / "containerd.toml").write_text(containerd)
        nvidia = self.directory / "nvidia-runtime"
        nvidia.write_text(node_files.nvidia_runtime(self.directory, self._programs))
        nvidia.chmod(0o755)
        (self.directory / node_files.NVIDIA_CONFIG).parent.mkdir(parents=True)
        serving = self._authority.issue(f"{self.name}-serving", self.name, subjects=[self.ip, self.name])
        kubelet = node_files.kubelet_configuration(
            self.directory,
            self._programs.version,
            address=self.ip,
            name_server=self._net.plan.dns_ip,
            cgroup=self.cgroup,
            serving=serving,
            client_authority=self._authority.certificate,
        )
        (self.directory / "kubelet.json").write_text(json.dumps({**kubelet, **self._configuration}, indent=1))
        user = self._authority.issue(f"{self.name}-client", f"system:node:{self.name}", organization="system:nodes")
        self._authority.kubeconfig(self.directory / "kubelet.kubeconfig", self._server, user)
        binds = [f"mount -o bind {self.directory / name} {inside}" for name, inside in SHARED_PATHS.items()]
        script = FIRST_PROCESS.format(binds="\n".join(binds), ready=self.directory / "ready")
        (self.directory / "first-process.sh").write_text(script)

    def _kubelet_flags(self) -> list[str]:
        flags = [f"--config={self.directory / 'kubelet.json'}", f"--hostname-override={self.name}"]
        flags += [f"--kubeconfig={self.directory / 'kubelet.kubeconfig'}", f"--node-ip={self.ip}"]
        if self._programs.version < provision.Version(1, 27):
            flags += ["--container-runtime=remote", f"--container-runtime-endpoint={node_files.RUNTIME_ENDPOINT}"]
        return flags
