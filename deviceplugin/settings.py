"""What an administrator can set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin import inventory
from deviceplugin.handover import choice
from deviceplugin.inventory import Factors
from deviceplugin.limits import node as limits_of_node
from deviceplugin.limits.node import AUTO, OnFailure
from deviceplugin.mps import DIRECTORY
from deviceplugin.usage.join import WatchdogPolicy
from gpushare import names, units
from gpushare.runtime import options
from gpushare.runtime.options import boolean, option, positive
from gpushare.units import MemoryUnit

NVML: Final = "nvml"
USABLE: Final = "usable"
TOTAL: Final = "total"


def gpu_source(text: str) -> str:
    if text == NVML or (text.startswith(names.SIMULATED) and len(text) > len(names.SIMULATED)):
        return text
    raise ValueError(f"write {NVML} for the node's own GPUs, or {names.SIMULATED}PATH for those of a profile")


def limits(text: str) -> str:
    limits_of_node.order(text)
    return text


def node_name(text: str) -> str:
    if not text or len(text) > 253 or not all(c.isascii() and (c.isalnum() or c in "-.") for c in text):
        raise ValueError("write the name of this machine's Node object; in a pod take it from spec.nodeName")
    return text


def xids(text: str) -> frozenset[int]:
    try:
        return frozenset(int(number) for number in text.split(",") if number.strip())
    except ValueError as error:
        raise ValueError("write the numbers of Xids with commas between them, such as 63,94") from error


def unified_memory(text: str) -> int:
    return units.parse_memory(text, MemoryUnit(1)) if text not in {"", "0"} else 0


def mib(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError("write a whole number of MiB")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Share the GPUs of this node. With --check: exit 0 if a running plugin is registered with the kubelet, else 1."""

    node_name: str = option("", "name of this machine's Node object; required", parse=node_name)
    kubeconfig: str = option("", "kubeconfig file; without one the service account of the pod is used")
    gpu_source: str = option(NVML, "nvml, or simulated:PATH for GPUs from a YAML profile", parse=gpu_source)
    memory_unit: MemoryUnit = option(
        units.GIB,
        f"what 1 of {names.GPU_MEM} stands for: GiB, MiB or a multiple such as 256MiB; the same in the whole cluster",
        parse=MemoryUnit.parse,
    )
    gpu_memory: str = option(
        USABLE,
        "usable: share what CUDA can give; total: also what the driver keeps for itself, as Aliyun's plugin counts it,"
        " though shares then cannot be allocated in full",
        parse=options.choice(USABLE, TOTAL),
    )
    unified_memory: int = option(
        0,
        "size such as 96Gi of each GPU whose driver does not say how much memory it has, because it uses the"
        " processor's; 0: such GPUs are left out",
        parse=unified_memory,
    )
    ignored_xids: frozenset[int] = option(
        frozenset(),
        "numbers of driver errors (Xids), with commas between them, that do not make a GPU unhealthy, beside those that"
        " faulty programs cause",
        parse=xids,
    )
    xid_recovery: float = option(
        0.0,
        "seconds without another fault after which a GPU with a driver error (Xid) or memory error counts as healthy"
        " again; 0: only after a reset, when this plugin starts, or by --recovery-action",
        parse=options.seconds("or 0 for never"),
    )
    recovery_action: bool = option(
        True,
        "true or false: a GPU is unhealthy while its driver (570 and later) asks for a reset or a reboot, and one with"
        " a driver error is healthy again when the driver asks for nothing",
        parse=boolean,
    )
    oversubscription: Factors = option(
        Factors(),
        "factor such as 1.5: how much of each GPU's memory may be granted to all pods together; MODEL=FACTOR for those"
        f" of one model, or both as in 1,T4=1.5; the label {names.LABEL_OVERSUBSCRIPTION} of a node overrides it; 1: no"
        " more than there is",
        parse=inventory.parse_factors,
    )
    gpu_percent: bool = option(True, f"true or false: offer {names.GPU_PERCENT}, 100 of each GPU", parse=boolean)
    whole_gpus: bool = option(
        False,
        f"true or false: offer {names.GPU}, one for each GPU; the same in the whole cluster, and not beside NVIDIA's"
        " own plugin",
        parse=boolean,
    )
    device_plugins_dir: Path = option(
        Path("/var/lib/kubelet/device-plugins"), "directory of the kubelet's and the plugins' sockets", parse=Path
    )
    dra: bool = option(
        False,
        f"true or false: GPUs of mode dra ({names.ANNOTATION_MODE} of a node) are shared by ResourceClaims; needs"
        " Kubernetes 1.36",
        parse=boolean,
    )
    kubelet_dir: Path = option(
        Path("/var/lib/kubelet"), "the kubelet's directory, for --dra; at the same path as on the node", parse=Path
    )
    pod_resources_socket: Path = option(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        "the kubelet's PodResources socket, which says who holds which devices",
        parse=Path,
    )
    hand_over: str = option(
        AUTO,
        f"{', '.join(choice.SETTINGS)}: how containers get their GPUs; auto: cdi where the node supports it, else"
        f" envvar; the label {names.LABEL_HAND_OVER} of a node overrides it",
        parse=options.choice(*choice.SETTINGS),
    )
    nvidia_default_runtime: bool = option(
        False,
        "true or false: NVIDIA's runtime is the default one of the node's container runtime; the label"
        f" {names.LABEL_NVIDIA_DEFAULT} of a node overrides it",
        parse=boolean,
    )
    cdi_dir: Path = option(
        Path("/var/run/cdi"), "directory for the CDI specs of containers; the container runtime reads it", parse=Path
    )
    limits: str = option(
        AUTO,
        "what holds containers to their share of a GPU: auto for the strongest that works, or some of cgroup, mps,"
        f" hami-core, advisory in the order in which they are tried; the label {names.LABEL_LIMITS} of a node overrides"
        " it; without advisory, GPUs on which nothing works take no containers",
        parse=limits,
    )
    cgroup_mount: Path = option(
        Path("/sys/fs/cgroup"),
        "where the node's cgroups are, for the limit cgroup; in a container a volume, not the container's own",
        parse=Path,
    )
    mps_dir: Path = option(
        DIRECTORY, "directory of the MPS daemon, for the limit mps; the same on the node and in containers", parse=Path
    )
    mps_shared_memory: Path = option(
        Path("/dev/shm/gpushare-mps"),  # noqa: S108 - memory, and the node's root made it
        "directory of the node that is /dev/shm for the MPS daemon and its containers",
        parse=Path,
    )
    hami_core_dir: Path | None = option(
        None,
        "directory of HAMi-core's libvgpu.so and ld.so.preload, for the limit hami-core; at the same path on the node",
        parse=Path,
    )
    limit_failure: OnFailure = option(
        OnFailure.REFUSE,
        "what happens if a limit cannot be set when a container starts: refuse the start, or use the next of --limits",
        parse=options.one_of(OnFailure),
    )
    poll_interval: float = option(
        5.0, "seconds between readings of the GPUs; faults that the driver reports are seen at once", parse=positive
    )
    publish_interval: float = option(
        300.0, "seconds after which the inventory on the Node is compared with the GPUs", parse=positive
    )
    probe_port: int = option(
        12346, "port that takes connections while the plugin is registered, for probes and --check", parse=options.port
    )
    metrics_port: int = option(12347, "port of /metrics; 0 for none", parse=options.port)
    usage: bool = option(
        False,
        "true or false: read which processes use how much of the GPUs, for metrics and views; needs hostPID"
        " (manifests/usage)",
        parse=boolean,
    )
    usage_interval: float = option(5.0, "seconds between these readings", parse=positive)
    watchdog: WatchdogPolicy = option(
        WatchdogPolicy.OFF,
        "what is done about containers that use more than their grant: off, report, evict or kill; all but off read"
        f" usage. Pods and namespaces can ask for a stricter one ({names.WATCHDOG}), not for a more lenient one",
        parse=WatchdogPolicy.parse,
    )
    watchdog_grace: float = option(30.0, "seconds for which a container may be above its grant", parse=positive)
    watchdog_tolerance_mib: int = option(
        512,
        "MiB by which a container may be above its grant on a GPU: CUDA's own memory, which frameworks do not count",
        parse=mib,
    )
    simulated_processes: str = option("", "JSON file with the processes on simulated GPUs; without one there are none")
    log_level: str = options.log_level()
