"""Objects of dynamic resource allocation, as this project and its users write them."""

from typing import Any

from deviceplugin.dra import slices
from deviceplugin.inventory import PostedInventory
from gpushare import names
from gpushare.model.gpu import NodeInventory

Json = dict[str, Any]
_GROUP = {"apiVersion": "resource.k8s.io/v1"}


def resource_slice(inventory: NodeInventory) -> Json:
    """The first of a node, as long as no claim holds anything there."""
    found = slices.devices(PostedInventory(version=1, inventory=inventory, raw={}), (), "")
    metadata = {"name": slices.slice_name(inventory.node, 0)}
    return {**_GROUP, "kind": "ResourceSlice", "metadata": metadata, "spec": slices.specs(inventory.node, found, 1)[0]}


def template(name: str, gib: int, count: int = 1) -> Json:
    exactly = {"deviceClassName": names.DEVICE_CLASS, "count": count, "capacity": {"requests": {"memory": f"{gib}Gi"}}}
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    return {**_GROUP, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}
