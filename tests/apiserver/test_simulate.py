"""`gpushare simulate` against a real kube-scheduler: 300 pods over 8 nodes end where it says."""

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpushare.units import GIB
from gpushare.wire import allocations
from gpushare_cli import __main__
from testing import mix
from tests.apiserver.server import Json, Server, why_unschedulable

SEEDS: Final = "1-12"


@pytest.fixture
def nodes(server: Server) -> Iterator[None]:
    gib, labels = (mix.GPU_GIB,) * mix.GPUS, {mix.LABEL: "true"}
    with contextlib.ExitStack() as stack:
        for name in mix.NODES:
            stack.enter_context(server.node(name, gib, labels=labels, capacity=mix.HOST))
        yield


@pytest.mark.parametrize("policy", ["binpack", "dense"])
def test_300_pods_end_where_simulate_says(
    server: Server, namespace: str, nodes: None, tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = mix.pods(policy)
    assert len(wanted) == 300
    command = simulation(server, namespace, wanted, policy, tmp_path)
    assert __main__.main(command) in {0, 3}
    said = json.loads(capsys.readouterr().out)["runs"]
    for pod in wanted:
        server.create_pod(namespace, pod)
        name = pod["metadata"]["name"]
        server.eventually(f"{name} is bound or unschedulable", functools.partial(is_decided, server, namespace, name))
    there = [pod for pod in server.pods(namespace) if pod["spec"].get("nodeName")]
    allocated = 100 * sum(map(granted_mib, there)) / (len(mix.NODES) * mix.GPUS * mix.GPU_GIB * 1024)
    print(f"{policy}: {len(there)} placed and {allocated:.2f} % allocated; simulate: {said}")
    mix.assert_agrees(len(there), allocated, said)


def simulation(server: Server, namespace: str, wanted: list[Json], policy: str, folder: Path) -> list[str]:
    """The command that tells of the cluster as it is, for several seeds."""
    items = [{**item, "kind": "Node"} for item in server.api.get("/api/v1/nodes")["items"]]
    (folder / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}), encoding="utf-8")
    named = [{**pod, "metadata": {**pod["metadata"], "namespace": namespace}} for pod in wanted]
    (folder / "pods.json").write_text(json.dumps({"kind": "List", "items": named}), encoding="utf-8")
    files = ["-f", str(folder / "cluster.json"), "-f", str(folder / "pods.json")]
    version = f"{server.version.major}.{server.version.minor}"
    how = ["--policy", policy, "--seeds", SEEDS, "--server-version", version, "--whole-gpus", "-o", "json"]
    return ["simulate", *files, *how]


def is_decided(server: Server, namespace: str, name: str) -> bool:
    """So that the next one comes to what it has left."""
    pod = server.pod(namespace, name)
    return bool(pod["spec"].get("nodeName") or why_unschedulable(pod))


def granted_mib(pod: Json) -> int:
    """Of all its GPUs."""
    granted = allocations.granted(pod, GIB)
    return sum(len(grant.gpus) * grant.memory_mib for grant in granted.grants) if granted else 0
