"""Configuration files of a node's containerd and kubelet."""

import os
import shutil
import sys
from pathlib import Path

from localcluster import nvidia_runtime as nvidia_runtime_module, pki, process, provision, runtimes

SANDBOX_IMAGE = "gpushare.test/pause:1"
RUNTIME_ENDPOINT = "unix:///run/containerd/containerd.sock"
NVIDIA_CONFIG = "nvidia/nvidia-container-runtime/config.toml"
"""In a node's directory: while it is there, the handler ``nvidia`` acts by it; without it, it is plain runc."""
NVIDIA_RUNTIME_VARIABLE = "GPUSHARE_NVIDIA_RUNTIME"
"""Path of NVIDIA's own nvidia-container-runtime, to try against in place of ours."""
NVIDIA_SCRIPT = """\
#!/bin/sh
[ -e {config} ] || exec {runc} "$@"
case " $* " in *" create "*) {choice} ;; esac
exec {runc} "$@"
"""

CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""containerd's default; both are the node's own."""

CAP_SYS_RESOURCE = 24


def containerd_configuration(directory: Path, programs: provision.Programs, runtime: runtimes.ContainerRuntime) -> str:
    """Return the configuration file of the containerd whose files are in a directory."""
    cri = "plugins.'io.containerd.grpc.v1.cri'"
    lines = [
        "version = 2",
        f"root = '{directory / 'containerd'}'",
        "state = '/run/containerd'",
        "[grpc]",
        "address = '/run/containerd/containerd.sock'",
        "[plugins.'io.containerd.internal.v1.opt']",
        f"path = '{directory / 'opt'}'",
        f"[{cri}]",
        f"sandbox_image = '{SANDBOX_IMAGE}'",
        # Without the capability to raise priorities, every sandbox would fail.
        f"restrict_oom_score_adj = {str(not _has_capability(CAP_SYS_RESOURCE)).lower()}",
        "tolerate_missing_hugetlb_controller = true",
        "disable_apparmor = true",
        *_cdi_settings(runtime),
        f"[{cri}.cni]",
        f"bin_dir = '{programs.cni_directory}'",
        f"conf_dir = '{directory / 'net.d'}'",
        f"[{cri}.containerd]",
        f"snapshotter = '{snapshotter(directory)}'",
        "default_runtime_name = 'runc'",
    ]
    for handler, program in (("runc", programs["runc"]), ("nvidia", directory / "nvidia-runtime")):
        lines += [f"[{cri}.containerd.runtimes.{handler}]", "runtime_type = 'io.containerd.runc.v2'"]
        lines += [f"runtime_path = '{runtime.shim}'"] if runtime.shim else []
        lines += [f"[{cri}.containerd.runtimes.{handler}.options]", f"BinaryName = '{program}'"]
    return "\n".join(lines) + "\n"


def nvidia_runtime(directory: Path, programs: provision.Programs) -> str:
    """Return the script that is the handler ``nvidia`` of the node whose files are in a directory."""
    config, runc = directory / NVIDIA_CONFIG, programs["runc"]
    if real := os.environ.get(NVIDIA_RUNTIME_VARIABLE):
        choice = f'XDG_CONFIG_HOME={directory / "nvidia"} exec {real} "$@"'
    else:
        choice = f'exec {sys.executable} -I -S {nvidia_runtime_module.__file__} {config} {runc} "$@"'
    return NVIDIA_SCRIPT.format(config=config, runc=runc, choice=choice)


def _cdi_settings(runtime: runtimes.ContainerRuntime) -> list[str]:
    if runtime.version < runtimes.CDI_SINCE:
        return []
    directories = ", ".join(f"'{path}'" for path in CDI_DIRECTORIES)
    return [f"enable_cdi = {str(runtime.cdi).lower()}", f"cdi_spec_dirs = [{directories}]"]


def kubelet_configuration(
    directory: Path,
    version: provision.Version,
    *,
    address: str,
    name_server: str,
    cgroup: str,
    serving: pki.KeyPair,
    client_authority: Path,
) -> dict[str, object]:
    """Return a KubeletConfiguration for a release of Kubernetes."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "healthzBindAddress": address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(client_authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "cgroupRoot": f"/{cgroup}",
        "clusterDNS": [name_server],
        "clusterDomain": "cluster.local",
        # The machine's own name servers need not be reachable from pods.
        "resolvConf": str(directory / "resolv.conf"),
        "volumePluginDir": str(directory / "volume-plugins"),
        **_common_settings(),
        **settings_of(version),
    }


def _common_settings() -> dict[str, object]:
    return {
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        # Ready within a second of the runtime instead of ten.
        "nodeStatusUpdateFrequency": "1s",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # There is no registry to fetch a collected image from again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # Kubelets share the network namespace, where kube-proxy makes these chains.
        "makeIPTablesUtilChains": False,
        "eventRecordQPS": 0,
        # Five requests a second, the default up to 1.26, would make the statuses of a hundred pods a matter of minutes.
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        # What failed once, such as the end of a pod, is tried again sooner than after a minute.
        "syncFrequency": "10s",
        "serializeImagePulls": False,
    }


def settings_of(version: provision.Version) -> dict[str, object]:
    """Return the settings that only some releases know."""
    settings: dict[str, object] = {}
    if version >= provision.Version(1, 25):
        # The kubelet cannot tell the size of a container's writable layer on every file system; without isolation
        # it does not have to.
        settings["localStorageCapacityIsolation"] = False
    if version >= provision.Version(1, 27):
        settings["containerRuntimeEndpoint"] = RUNTIME_ENDPOINT
    if version >= provision.Version(1, 31):
        settings["failCgroupV1"] = False
    return settings


def _has_capability(number: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def snapshotter(directory: Path) -> str:
    """Return overlayfs where the directory can carry it; inside most containers it cannot."""
    for name in ("lower", "upper", "work", "merged"):
        (directory / "probe" / name).mkdir(parents=True)
    probe = directory / "probe"
    options = f"lowerdir={probe / 'lower'},upperdir={probe / 'upper'},workdir={probe / 'work'}"
    try:
        process.run(["unshare", "--mount", "mount", "-t", "overlay", "-o", options, "overlay", probe / "merged"])
    except process.ClusterError:
        return "native"
    finally:
        shutil.rmtree(probe)
    return "overlayfs"
