"""Whether dynamic resource allocation (DRA) hands out GPUs that are shared, or takes requests for shares. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import names
from gpushare.kube.api import JsonObject
from gpushare.wire import fields
from gpushare_cli.doctor import finding
from gpushare_cli.doctor.cluster import Cluster, GpuNode
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import known

_NVIDIA: Final = "gpu.nvidia.com"  # its other driver, compute-domain.nvidia.com, hands out no GPUs
_UUID: Final = "uuid"


def devices(cluster: Cluster) -> Iterator[Finding]:
    """No DRA driver offers GPUs of a node that shares: a ResourceClaim would get a GPU on which pods hold shares."""
    nodes = {node.name: node for node in cluster.nodes if node.is_wanted or node.plugin is not None}
    found: dict[tuple[str, str], set[str]] = {}
    for each in known(cluster.snapshot.resource_slices):
        spec = fields.mapping(each, "spec", "ResourceSlice")
        name, driver = fields.text(spec, "nodeName", "spec"), fields.text(spec, "driver", "spec")
        if node := nodes.get(name):
            offered = {device for device, uuid in _offered(spec) if _is_shared(node, driver, uuid)}
            found.setdefault((name, driver), set()).update(offered)
    for (name, driver), offered in sorted(found.items()):
        if offered:
            yield finding.error(
                f"node/{name}",
                f"the DRA driver {driver} offers {len(offered)} devices there that are shared"
                f" ({', '.join(sorted(offered))}); nothing in Kubernetes keeps a ResourceClaim off a GPU on which pods"
                " hold shares",
                f"keep the driver's kubelet plugin off nodes with the label {names.LABEL_SHARES}, as in"
                " docs/gpu-operator.md#beside-nvidias-dra-driver; before that, drain the node",
            )


def device_classes(cluster: Cluster) -> Iterator[Finding]:
    """No DeviceClass has kube-scheduler serve requests for shares with whole devices (extendedResourceName)."""
    ours = {*names.SHARED_RESOURCES, names.GPU_CORE, *({names.GPU} if cluster.settings.whole_gpus else ())}
    for each in known(cluster.snapshot.device_classes):
        name = str(each["metadata"]["name"])
        resource = fields.text(fields.mapping(each, "spec", "DeviceClass"), "extendedResourceName", "spec")
        if resource in ours:
            yield finding.error(
                f"deviceclass/{name}",
                f"its extendedResourceName is {resource}: where a node offers none of it, kube-scheduler serves a"
                f" request for 3 of it with 3 whole devices of this class (by default from 1.36 on)",
                f"kubectl patch deviceclass {name} --type=json"
                """ -p='[{"op": "remove", "path": "/spec/extendedResourceName"}]'""",
            )


def _offered(spec: JsonObject) -> Iterator[tuple[str, str]]:
    """Name and UUID of the devices of a slice; the UUID is empty if the driver does not tell it."""
    for device in fields.objects(spec, "devices", "spec"):
        basic = device.get("basic")  # until v1beta1
        attributes = fields.mapping(basic if isinstance(basic, dict) else device, "attributes", "device")
        yield fields.text(device, "name", "device"), _uuid(attributes)


def _uuid(attributes: Mapping[str, Any]) -> str:
    """Attributes may have the driver's domain before their name."""
    found = (value for key, value in attributes.items() if key.rpartition("/")[2] == _UUID)
    return next((str(value.get("string", "")) for value in found if isinstance(value, dict)), "")


def _is_shared(node: GpuNode, driver: str, uuid: str) -> bool:
    if node.published is None or not uuid:
        return driver == _NVIDIA
    return uuid in {gpu.uuid for gpu in node.published.gpus}
