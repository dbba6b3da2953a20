"""Claims for shares of GPUs on a test cluster, and what became of them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import Gpu
from gpushare.units import quantity
from gpushare.wire import inventory as inventory_wire
from gpushare.wire.claims import device_name
from testing import skips
from tests.e2e.conftest import CLAIMS_SINCE, GPUS_PER_NODE
from tests.e2e.system import System, make_pod

Json = dict[str, Any]
NODE: Final = NodeName("node-1")  # whose container runtime has CDI
CLAIMED: Final = 2
"""Of the node's GPUs, those that are for claims."""
API: Final = "/apis/resource.k8s.io/v1"


def need_server(system: System) -> None:
    skips.older(system.cluster.version, CLAIMS_SINCE, "it has no claims for amounts of memory")


def claiming(name: str, of: str) -> Json:
    """A pod whose container has the claim of a template."""
    pod = make_pod(name, None)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": of}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return pod


def of_claims(system: System) -> Mapping[str, Gpu]:
    """Two GPUs of the node, by their names in slices."""
    inventory = inventory_wire.of_node(system.node(NODE))
    assert inventory
    return {device_name(gpu.uuid): gpu for gpu in inventory.gpus[:CLAIMED]}


def gpus(system: System) -> tuple[int, int]:
    """How many of the node's GPUs take gpu-mem, and how many claims."""
    found = inventory_wire.of_node(system.node(NODE))
    assert found
    return len(found.healthy), len(found.dra)


def slices(system: System) -> list[Json]:
    found = system.api.get(f"{API}/resourceslices")["items"]
    return [device for each in found for device in each["spec"].get("devices") or ()]


@contextmanager
def mode(system: System, text: str, of_claims: int) -> Iterator[None]:
    """The node's GPUs in the modes of an annotation, then all as before."""
    assert gpus(system) == (GPUS_PER_NODE, 0)
    system.cluster.kubectl("annotate", "--overwrite", "node", NODE, f"{names.ANNOTATION_MODE}={text}")
    try:
        wanted = (GPUS_PER_NODE - of_claims, of_claims)
        system.eventually(f"{of_claims} GPUs for claims", lambda: gpus(system) == wanted)
        system.eventually("slices", lambda: len(slices(system)) == of_claims)
        yield
    finally:
        system.cluster.kubectl("annotate", "node", NODE, f"{names.ANNOTATION_MODE}-")
    system.eventually("all GPUs are back", lambda: gpus(system) == (GPUS_PER_NODE, 0))
    assert not slices(system)


def claim_of(system: System, pod: Json) -> Json:
    """The claim that was made for a pod."""
    namespace, status = pod["metadata"]["namespace"], pod["status"]["resourceClaimStatuses"][0]
    return system.api.get(f"{API}/namespaces/{namespace}/resourceclaims/{status['resourceClaimName']}")


def allocated(claim: Json) -> list[tuple[str, int]]:
    """Devices of a claim, and the bytes that it has of each."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return [(each["device"], int(quantity(each["consumedCapacity"]["memory"]) or 0)) for each in results]


def booked(system: System) -> Mapping[str, int]:
    """Bytes of each device that all claims of the cluster have."""
    found: Counter[str] = Counter()
    for claim in system.api.get(f"{API}/resourceclaims")["items"]:
        for device, memory in allocated(claim):
            found[device] += memory
    return found


@contextmanager
def sharing_claims(system: System) -> Iterator[None]:
    """While an administrator lets pods name claims."""
    path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{names.CLAIM_PODS_POLICY}"
    binding = system.api.get(path)
    probe = claiming("probe", "")
    probe["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "x"}]

    def admitted() -> bool:
        with suppress(kube.BadRequestError, kube.ForbiddenError):
            return bool(system.admitted("default", probe))
        return False

    system.api.delete(path)
    try:
        system.eventually("pods may name claims", admitted)
        yield
    finally:
        metadata = {key: binding["metadata"][key] for key in ("name", "labels")}
        system.api.create(path.rpartition("/")[0], {**binding, "metadata": metadata})
        system.eventually("pods may not name claims", lambda: not admitted())
