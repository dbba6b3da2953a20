"""How long PreStartContainer takes on a node with many GPU pods that run, and what the plugin's memory is then.

    python -m bench.hand_over [--pods 100] [--json FILE]

The plugin is a real process with eight simulated GPUs; API server, PodResources and kubelet are simulated here, on real
sockets. Every container is started once, one after another, and once more eight at a time, as after a node's restart.
"""

import argparse
import base64
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import orjson

from bench.results import Results, table
from bench.turns import cpu_s
from deviceplugin.resources import MEMORY
from gpushare import names, units
from gpushare.identity import NodeName
from gpushare.model.gpu import HandOver, NodeInventory
from gpushare.wire import allocations, inventory as inventory_wire
from testing.builders import Json, make_allocation, make_container, make_grant, make_node, make_pod
from testing.fakes import kube_http
from testing.fakes.http_server import free_port
from testing.fakes.kube import FakeKube
from testing.fakes.kubelet import FakeKubelet, FakePodResources, Plugin, wait_until

ROOT = Path(__file__).resolve().parent.parent
PROFILE = ROOT / "testing/profiles/a100x8.yaml"
NODE = NodeName("node-a")
UNITS = 4


def pod_of(number: int, inventory: NodeInventory) -> Json:
    """As the webhook and the controller leave it: 4 GiB of one GPU."""
    name, gpu = f"pod-{number:03}", inventory.gpus[number % len(inventory.gpus)]
    grant = make_grant(gpu.uuid, gib=UNITS)
    path = f"metadata.annotations['{names.PREFIX_DEVICES}main']"
    variable = {"name": names.ENV_VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    annotations = {
        names.ANNOTATION_ALLOCATION: allocations.encode(make_allocation(name, grant)),
        names.PREFIX_DEVICES + "main": gpu.uuid,
        names.PREFIX_MEMORY + "main": str(grant.memory_mib),
    }
    return make_pod(
        make_container("main", UNITS, env=[variable]), name=name, node=NODE, annotations=annotations, phase="Running"
    )


def admit(plugin: Plugin, resources: FakePodResources, checkpoint: Path, pods: Sequence[Json]) -> list[tuple[str, ...]]:
    """Give each pod its device IDs, as a kubelet does."""
    held = [tuple(MEMORY.device(UNITS * i + k) for k in range(UNITS)) for i in range(len(pods))]
    entries = []
    for pod, ids in zip(pods, held, strict=True):
        resources.hold(pod["metadata"]["name"], *ids)
        (answer,) = plugin.answers(ids)
        response = base64.b64encode(answer.SerializeToString()).decode()
        entries.append(
            {
                "PodUID": pod["metadata"]["uid"],
                "ContainerName": "main",
                "ResourceName": MEMORY.name,
                "DeviceIDs": {"-1": ids},
                "AllocResp": response,
            }
        )
    checkpoint.write_bytes(orjson.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 1}))
    return held


def timed(plugin: Plugin, ids: Sequence[str]) -> float:
    began = time.monotonic()
    refusal = plugin.start(*ids)
    if refusal:
        raise SystemExit(f"a start was refused: {refusal}")
    return 1000 * (time.monotonic() - began)


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@contextmanager
def running(url: str, directory: Path, resources: FakePodResources, way: HandOver) -> Iterator[tuple[Plugin, int]]:
    """A plugin that has registered, and its process."""
    (directory / "config").write_text(kube_http.kubeconfig(url))
    for name in ("plugins", "cdi"):
        (directory / name).mkdir()
    kubelet = FakeKubelet(directory / "plugins")
    kubelet.start()
    flags: Mapping[str, object] = {
        "node-name": NODE,
        "kubeconfig": directory / "config",
        "gpu-source": f"simulated:{PROFILE}",
        "gpu-percent": "false",
        "device-plugins-dir": directory / "plugins",
        "pod-resources-socket": resources.socket,
        "probe-port": free_port(),
        "metrics-port": 0,
        "hand-over": way.value,
        "cdi-dir": directory / "cdi",
    }
    command = [sys.executable, "-m", "deviceplugin", *(f"--{name}={value}" for name, value in flags.items())]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield kubelet.wait_for_devices(), process.pid
    finally:
        process.terminate()
        process.wait(20)
        kubelet.stop()


def measure(way: HandOver, count: int) -> dict[str, object]:
    """A row of the table."""
    api = FakeKube()
    api.seed(f"/api/v1/nodes/{NODE}", make_node(name=NODE))
    with tempfile.TemporaryDirectory(prefix="gs") as path, kube_http.serving(api) as url:
        directory = Path(path)
        resources = FakePodResources(directory / "resources.sock")
        with running(url, directory, resources, way) as (plugin, pid):
            wait_until(lambda: inventory_wire.of_node(api.read(f"/api/v1/nodes/{NODE}")))
            inventory = inventory_wire.of_node(api.read(f"/api/v1/nodes/{NODE}"))
            if inventory is None or inventory.unit != units.GIB:
                raise SystemExit("the inventory was not published")
            pods = [pod_of(i, inventory) for i in range(count)]
            for pod in pods:
                api.seed(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", pod)
            held = admit(plugin, resources, directory / "plugins/kubelet_internal_checkpoint", pods)
            timed(plugin, held[-1])  # until the watch has told of the last one
            cpu = cpu_s(pid)
            alone = [timed(plugin, ids) for ids in held]
            cpu = (cpu_s(pid) - cpu) / count
            with ThreadPoolExecutor(8) as pool:
                began = time.monotonic()
                together = list(pool.map(lambda ids: timed(plugin, ids), held))
                seconds = time.monotonic() - began
            row: dict[str, object] = {
                "hand-over": way.value,
                "pods": count,
                "CPU ms a start": round(1000 * cpu, 1),
                "alone: p50 ms": round(_at(alone, 0.5), 1),
                "p99 ms": round(_at(alone, 0.99), 1),
                "eight at a time: p50 ms": round(_at(together, 0.5), 1),
                "starts a second": round(count / seconds),
                "VmRSS MiB": round(resident_mib(pid)),
            }
        resources.stop()
    return row


def _at(times: Sequence[float], part: float) -> float:
    return sorted(times)[int(part * (len(times) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    results = Results("hand_over", options.json)
    for way in (HandOver.CDI, HandOver.ENVVAR):
        results.add([measure(way, options.pods)])
    print("\n".join(table(results.rows[0], results.rows)))


if __name__ == "__main__":
    main()
