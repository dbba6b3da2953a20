"""Nodes on which NVIDIA's container runtime runs the containers that ask for it, as far as it chooses devices."""

import contextlib
import json
from collections.abc import Iterator, Mapping

from gpushare import names
from gpushare.kube import api as kube
from gpushare.model.gpu import HandOver, NodeInventory
from gpushare.wire import inventory as inventory_wire
from localcluster import process
from localcluster.node import Node
from testing.tenant.escapes import GPU_NODES
from tests.e2e import disturb
from tests.e2e.system import Json, System

_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
_CLASS = f"{_CLASSES}/{names.RUNTIME_CLASS}"
CONFIG = """\
accept-nvidia-visible-devices-envvar-when-unprivileged = {by_variable}
accept-nvidia-visible-devices-as-volume-mounts = {by_mounts}
[nvidia-container-runtime]
mode = "cdi"
runtimes = ["{runc}"]
[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
annotation-prefixes = ["cdi.k8s.io/"]
"""
"""As NVIDIA's documents have it: who lets mounts choose takes the variable from unprivileged containers."""


def spec(inventory: NodeInventory) -> Json:
    """What `nvidia-ctk cdi generate` would write of simulated GPUs: each by number and UUID, and all of them."""
    edits = {
        gpu: {"path": f"/dev/nvidia{gpu.index}", "type": "c", "major": 60, "minor": gpu.index} for gpu in inventory.gpus
    }
    devices = [(name, [node]) for gpu, node in edits.items() for name in (str(gpu.index), str(gpu.uuid))]
    devices.append(("all", list(edits.values())))
    listed = [{"name": name, "containerEdits": {"deviceNodes": nodes}} for name, nodes in devices]
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": listed}


@contextlib.contextmanager
def runtime(system: System, inventories: Mapping[str, NodeInventory]) -> Iterator[None]:
    """NVIDIA's runtime is the handler `nvidia` of every node, and the GPUs have device nodes there."""
    for node in system.cluster.nodes:
        inventory = inventories[node.name]
        (node.cdi_dir / "nvidia.json").write_text(json.dumps(spec(inventory)))
        made = [f"[ -e nvidia{gpu.index} ] || mknod nvidia{gpu.index} c 60 {gpu.index}" for gpu in inventory.gpus]
        process.run([*node.enter, "sh", "-ec", f"mkdir -p {GPU_NODES}; cd {GPU_NODES}; {'; '.join(made)}"])
        configure(system, node, inventory.hand_over)
    before = _replace_class(system, "nvidia")
    try:
        yield
    finally:
        _replace_class(system, before)
        for node in system.cluster.nodes:
            node.nvidia_config.unlink()
            (node.cdi_dir / "nvidia.json").unlink()


def _replace_class(system: System, handler: str) -> str:
    """Have the RuntimeClass of GPU pods name another handler, which takes a new one. Returns the former."""
    found = system.api.get(_CLASS)
    metadata = {key: value for key, value in found["metadata"].items() if key in {"name", "labels", "annotations"}}
    system.api.delete(_CLASS)
    system.api.create(_CLASSES, {**found, "metadata": metadata, "handler": handler})
    return str(found["handler"])


def configure(system: System, node: Node, way: HandOver) -> None:
    """The node's administrator sets NVIDIA's runtime up for a way to hand GPUs over."""
    by_mounts = str(way is HandOver.VOLUME_MOUNTS).lower()
    by_variable = str(way is not HandOver.VOLUME_MOUNTS).lower()
    runc = system.cluster.program("runc")
    node.nvidia_config.write_text(CONFIG.format(by_mounts=by_mounts, by_variable=by_variable, runc=runc))


@contextlib.contextmanager
def handing_over(system: System, node: Node, way: HandOver) -> Iterator[None]:
    """The node hands GPUs over in another way for a while."""
    before = _hand_over(system, node)
    _label(system, node, way.value, way)
    configure(system, node, way)
    try:
        yield
    finally:
        configure(system, node, before)
        _label(system, node, None, before)


def _label(system: System, node: Node, value: str | None, way: HandOver) -> None:
    body = {"metadata": {"labels": {names.LABEL_HAND_OVER: value}}}
    system.api.patch(kube.node_path(node.name), body, kind=kube.PatchKind.STRATEGIC)
    disturb.restart_plugins(system, node)  # it reads its Node every five minutes
    system.eventually(f"{node.name} hands over by {way.value}", lambda: _hand_over(system, node) is way)


def _hand_over(system: System, node: Node) -> HandOver:
    found = inventory_wire.of_node(system.api.get(kube.node_path(node.name), timeout_s=30))
    assert found is not None
    return found.hand_over
