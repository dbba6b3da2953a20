"""Dynamic resource allocation beside shares: what the doctor says of objects that the API server has taken."""

import contextlib
import json
from collections.abc import Iterator

import pytest

from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from localcluster.provision import Version
from tests.e2e.system import Json, System, gpushare

pytestmark = pytest.mark.e2e
GROUP = "/apis/resource.k8s.io/v1"
SERVED_FROM = Version(1, 34)
DRIVER = "gpu.nvidia.com"
CHECKS = {"dra-devices", "device-classes"}


@contextlib.contextmanager
def offered(system: System, node: str) -> Iterator[None]:
    """A node's GPUs as NVIDIA's DRA driver offers them, and a DeviceClass that takes requests for shares."""
    uuids = [gpu.uuid for gpu in system.ledgers()[NodeName(node)].inventory.gpus]
    devices = [{"name": f"gpu-{i}", "attributes": {"uuid": {"string": uuid}}} for i, uuid in enumerate(uuids)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    made: list[tuple[str, Json]] = [
        ("resourceslices", {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}),
        ("deviceclasses", {"extendedResourceName": names.GPU_MEM}),
    ]
    try:
        for collection, spec in made:
            system.api.create(f"{GROUP}/{collection}", {"metadata": {"name": DRIVER}, "spec": spec})
        yield
    finally:
        for collection, _ in made:
            with contextlib.suppress(kube.NotFoundError):
                system.api.delete(f"{GROUP}/{collection}/{DRIVER}")


def told(system: System) -> dict[str, list[str]]:
    """The objects that each of both checks finds; on servers without such objects none."""
    _, out, err = gpushare(system, "doctor", "-o", "json")
    answer = json.loads(out)
    done = {each["id"] for each in answer["checks"] if each["result"] != "skipped"}
    assert done >= CHECKS, err
    return {id_: [each["object"] for each in answer["findings"] if each["check"] == id_] for id_ in CHECKS}


def test_doctor_finds_gpus_that_a_dra_driver_offers_too_and_a_class_that_takes_requests_for_shares(
    system: System,
) -> None:
    nothing: dict[str, list[str]] = {"dra-devices": [], "device-classes": []}
    assert told(system) == nothing
    if system.cluster.version >= SERVED_FROM:
        with offered(system, "node-1"):
            assert told(system) == {"dra-devices": ["node/node-1"], "device-classes": [f"deviceclass/{DRIVER}"]}
        assert told(system) == nothing
