"""Other systems that hand out the same GPUs, and how their pods are told. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from gpushare import names
from gpushare.identity import NodeName, PodRef
from gpushare.kube.api import JsonObject
from gpushare.wire import fields, pods
from gpushare_cli.doctor import objects


class Role(Enum):
    PLUGIN = "device plugin"
    SCHEDULER = "scheduler"
    MPS = "MPS control daemon"


@dataclass(frozen=True, slots=True)
class System:
    """Names are regular expressions that match all of a name."""

    name: str
    plugin: str  # names of the DaemonSet
    images: str  # last parts of the plugin's image names, without tag
    scheduler: str | None  # names of the scheduler's or extender's Deployment
    fix: str  # how its plugin is taken off a node


_DELETE: Final = "kubectl -n {namespace} delete daemonset {workload}"
_KEEP_OFF: Final = (
    "keep it off the nodes that share: kubectl -n {namespace} edit daemonset {workload} (its nodeSelector or affinity),"
    " or with the GPU Operator: kubectl label node {node} nvidia.com/gpu.deploy.device-plugin=false"
)
_HOOK: Final = f"{_DELETE}, and restore the NVIDIA runtime's hook that its init container replaced on the node"
_NANO: Final = "nano-gpu-agent|elastic-gpu-agent"
_LABEL: Final = "kubectl label node {node} gpu- (the label that its DaemonSet {workload} selects)"
_VOLCANO: Final = "volcano-(vgpu-)?device-plugin"
NVIDIA: Final = System("NVIDIA", r"(.*-)?nvidia-(gpu-)?device-plugin.*", "k8s-device-plugin", None, _KEEP_OFF)
SHARING: Final = (
    System("Aliyun gpushare", "gpushare-device-plugin-ds", "k8s-gpushare-plugin", "gpushare-schd-extender", _DELETE),
    System("nano-gpu", _NANO, _NANO, "nano-gpu-scheduler|elastic-gpu-scheduler", _HOOK),
    System("HAMi", ".*hami-(vgpu-)?device-plugin", "hami", ".*hami-(vgpu-)?scheduler", _LABEL),
    System("Volcano", _VOLCANO, _VOLCANO, None, _DELETE),
)
EXTENDER: Final = re.compile("gpushare-schd-extender|nano-gpu-scheduler|elastic-gpu-scheduler|:32766|:39999")
"""In the addresses of their extenders: their Services and ports."""
_MPS: Final = "mps-control-daemon"  # where NVIDIA's plugin shares by MPS
_HANDS_OUT_NOTHING: Final = re.compile("feature-discovery|mps-control|exporter|monitor")  # though of these families
_SEES_ALL: Final = frozenset(  # last parts of the names of images that are made to see every GPU, without tag
    {"dcgm", "dcgm-exporter", "gpu-feature-discovery", "gpu-operator-validator", "k8s-device-plugin", "k8s-mig-manager"}
)
_SHARING: Final = re.compile(r"^sharing:[^\S\n]*\n(?:[^\S\n]*(?:#.*)?\n)*[^\S\n]+(mps|timeSlicing):", re.MULTILINE)
"""In a configuration of NVIDIA's plugin, as its documents write it."""
_ALL: Final = {"name": names.ENV_VISIBLE_DEVICES, "value": "all"}
_HASH: Final = re.compile(r"-[0-9a-z]{1,10}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPod:
    system: System
    role: Role
    pod: PodRef
    workload: str  # name of the DaemonSet or Deployment that it belongs to; its own if it belongs to none
    node: NodeName | None

    def __str__(self) -> str:
        return f"the {self.role.value} of {self.system.name} (pod {self.pod})"


def foreign_pod(pod: Mapping[str, Any]) -> ForeignPod | None:
    """Whose pod it is, if it belongs to one of these systems and has not ended."""
    if not pods.counts(pod):
        return None
    owner, workload = _workload(fields.mapping(pod, "metadata", "pod"))
    images = set(map(_image, fields.objects(fields.mapping(pod, "spec", "pod"), "containers", "spec")))
    for system in (NVIDIA, *SHARING):
        if (role := _role(system, owner, workload, images)) is not None:
            return ForeignPod(system=system, role=role, pod=pods.ref(pod), workload=workload, node=pods.node_of(pod))
    return None


def needs_every_gpu(workload: JsonObject) -> bool:
    """Whether a DaemonSet is made to see the GPUs of its nodes without asking for any."""
    spec = objects.pod_spec(workload)
    under_nvidia = fields.text(spec, "runtimeClassName", "spec") in objects.RUNTIME_CLASSES
    return any(
        not any(resource.startswith(names.GPU_DOMAINS) for resource in pods.amounts(container, "limits"))
        and (under_nvidia or _image(container) in _SEES_ALL or _ALL in fields.objects(container, "env", "container"))
        for container in fields.objects(spec, "containers", "spec")
    )


def sharing(config_map: JsonObject) -> Mapping[str, str]:
    """Name of each configuration of NVIDIA's plugin in a ConfigMap that shares GPUs -> by what."""
    return {
        key: "MPS" if way[1] == "mps" else "time-slicing"
        for key, text in fields.mapping(config_map, "data", "ConfigMap").items()
        if isinstance(text, str) and (way := _SHARING.search(text))
    }


def _role(system: System, owner: str, workload: str, images: set[str]) -> Role | None:
    if system.scheduler is not None and owner != "DaemonSet" and re.fullmatch(system.scheduler, workload):
        return Role.SCHEDULER
    if system is NVIDIA and owner == "DaemonSet" and _MPS in workload:
        return Role.MPS
    if owner not in {"", "DaemonSet"} or _HANDS_OUT_NOTHING.search(workload):
        return None
    is_plugin = re.fullmatch(system.plugin, workload) or any(re.fullmatch(system.images, image) for image in images)
    return Role.PLUGIN if is_plugin else None


def _workload(metadata: Mapping[str, Any]) -> tuple[str, str]:
    for owner in fields.objects(metadata, "ownerReferences", "metadata"):
        kind, name = fields.text(owner, "kind", "owner"), fields.text(owner, "name", "owner")
        if kind == "ReplicaSet":
            return "Deployment", _HASH.sub("", name)
        if kind:
            return kind, name
    return "", fields.text(metadata, "name", "metadata")


def _image(container: Mapping[str, Any]) -> str:
    """The last part of its image's name, without tag and digest."""
    name = fields.text(container, "image", "container")
    return name.partition("@")[0].rsplit("/", 1)[-1].partition(":")[0]
