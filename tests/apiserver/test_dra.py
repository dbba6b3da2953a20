"""Dynamic resource allocation beside shares: what the doctor says of objects that the API server has taken."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gpushare import names
from gpushare.identity import GpuUuid
from localcluster.provision import Version
from testing import skips
from tests.apiserver.server import Json, Server

GROUP = "/apis/resource.k8s.io/v1"
SERVED_FROM = Version(1, 34)
DRIVER = "gpu.nvidia.com"
CHECKS = {"dra-devices", "device-classes"}
NOTHING: dict[str, list[str]] = {"dra-devices": [], "device-classes": []}


@contextmanager
def offered(server: Server, node: str, uuids: list[GpuUuid]) -> Iterator[None]:
    """A node's GPUs as NVIDIA's DRA driver offers them, and a DeviceClass that takes requests for shares."""
    devices = [{"name": f"gpu-{i}", "attributes": {"uuid": {"string": uuid}}} for i, uuid in enumerate(uuids)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    made: list[tuple[str, Json]] = [
        ("resourceslices", {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}),
        ("deviceclasses", {"extendedResourceName": names.GPU_MEM}),
    ]
    with ExitStack() as stack:
        for collection, spec in made:
            server.api.create(f"{GROUP}/{collection}", {"metadata": {"name": DRIVER}, "spec": spec})
            stack.callback(server.api.delete, f"{GROUP}/{collection}/{DRIVER}")
        yield


def told(server: Server) -> dict[str, list[str]]:
    """The objects that each of both checks finds; on servers without such objects none."""
    argv = [sys.executable, "-m", "gpushare_cli", "doctor", "-o", "json"]
    argv += ["--kubeconfig", str(server.running.control.kubeconfig)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    answer = json.loads(done.stdout)
    finished = {each["id"] for each in answer["checks"] if each["result"] != "skipped"}
    assert finished >= CHECKS, done.stderr
    return {id_: [each["object"] for each in answer["findings"] if each["check"] == id_] for id_ in CHECKS}


def test_doctor_finds_nothing_of_dra_where_nothing_is_offered(server: Server) -> None:
    with server.node("node-1"):
        assert told(server) == NOTHING


def test_doctor_finds_gpus_that_a_dra_driver_offers_too_and_a_class_that_takes_requests_for_shares(
    server: Server,
) -> None:
    skips.older(server.version, SERVED_FROM, "it serves no ResourceSlices")
    with server.node("node-1", (16, 16)) as inventory, offered(server, "node-1", [gpu.uuid for gpu in inventory.gpus]):
        assert told(server) == {"dra-devices": ["node/node-1"], "device-classes": [f"deviceclass/{DRIVER}"]}
