"""Profiles of simulated GPUs: what they say, and what is said about those that are wrong."""

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin import simulated
from deviceplugin.inventory import build
from deviceplugin.simulated import SimulatedSource
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB
from gpushare.wire import profile
from gpushare.wire.profile import Fault, FaultKind, GpuSpec

PROFILES = sorted((Path(__file__).parents[2] / "profiles").glob("*.yaml"))
NODE = NodeName("node-a")
T4 = {"model": "Tesla T4", "memoryMiB": 15360}


def test_a_profile_says_what_each_gpu_is_like() -> None:
    document = {"seed": 7, "gpus": [T4 | {"count": 2}, {"model": "A100", "memoryMiB": 81920, "numa": 1}]}
    found = profile.parse(document, NODE)

    assert (found.seed, found.total) == (7, 3)
    assert [found.spec(i).model for i in range(3)] == ["Tesla T4", "Tesla T4", "A100"]
    assert found.spec(2) == GpuSpec(model="A100", memory_mib=81920, numa=1)


def test_a_node_may_have_others() -> None:
    document = {"gpus": [T4], "faults": [{"kind": "xid"}], "nodes": {"node-b": {"gpus": [T4 | {"count": 4}]}}}

    assert profile.nodes(document) == ("node-b",)
    assert (profile.parse(document, NODE).total, len(profile.parse(document, NODE).faults)) == (1, 1)
    found = profile.parse(document, NodeName("node-b"))
    assert (found.total, found.faults) == (4, ())


def test_faults_have_defaults() -> None:
    document = {"gpus": [T4], "faults": [{"gpu": 0, "kind": "lost", "afterSeconds": 5, "recoversAfterPolls": 2}]}

    assert profile.parse(document, NODE).faults == (
        Fault(gpu=0, kind=FaultKind.LOST, after_seconds=5.0, recovers_after_polls=2),
    )


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_the_inventory_is_the_one_that_the_plugin_publishes(path: Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    source = SimulatedSource(path=path, node=NODE, clock=SystemClock())
    published = build(source.read(), node=NODE, unit=GIB)
    found = profile.inventory(document, NODE, GIB)

    assert [(gpu.uuid, gpu.model, gpu.memory_mib) for gpu in found.gpus][: len(published.gpus)] == [
        (gpu.uuid, gpu.model, gpu.memory_mib) for gpu in published.gpus
    ]


def test_derived_uuids_are_those_of_the_plugin() -> None:
    for _ in range(20):
        seed, index = random.randrange(1000), random.randrange(64)
        assert profile.uuid_of(seed, NODE, index) == simulated.uuid_of(seed, NODE, index)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "expected faults, gpus, nodes, seed, found None"),
        ({"gpu": []}, "unknown field 'gpu'; known are faults, gpus, nodes, seed"),
        ({}, "gpus: expected a list, found None"),
        ({"gpus": []}, "gpus: 0 GPUs; a node has 1 to 64"),
        ({"gpus": [T4 | {"count": 65}]}, "gpus: 65 GPUs; a node has 1 to 64"),
        ({"gpus": [T4 | {"count": 0}]}, "gpus[0].count: expected a whole number, 1 or more, found 0"),
        ({"gpus": [T4 | {"count": True}]}, "gpus[0].count: expected a whole number, 1 or more, found True"),
        ({"gpus": ["T4"]}, "gpus[0]: expected count, memoryMiB, model, numa, uuid, found 'T4'"),
        ({"gpus": [{"model": "", "memoryMiB": 1}]}, "gpus[0].model: expected a name such as Tesla T4, found ''"),
        ({"gpus": [{"model": "T4"}]}, "gpus[0].memoryMiB: expected a whole number, 1 or more, found None"),
        ({"gpus": [T4 | {"numa": -1}]}, "gpus[0].numa: expected a whole number, 0 or more, found -1"),
        (
            {"gpus": [T4 | {"uuid": "GPU-1"}]},
            "gpus[0].uuid: expected GPU- and 32 hexadecimal digits in NVIDIA's groups, found 'GPU-1'",
        ),
        (
            {"gpus": [T4 | {"uuid": "GPU-00000000-0000-0000-0000-000000000000", "count": 2}]},
            "gpus[0].uuid: 2 GPUs cannot share one; leave it out or set count to 1",
        ),
        (
            {"gpus": [T4 | {"uuid": "GPU-00000000-0000-0000-0000-000000000000"}] * 2},
            "gpus: two GPUs with the same uuid; leave uuid out to have them derived",
        ),
        ({"gpus": [T4], "seed": "x"}, "seed: expected a whole number, 0 or more, found 'x'"),
        ({"gpus": [T4], "faults": {}}, None),
        ({"gpus": [T4], "faults": {"a": 1}}, "faults: expected a list, found {'a': 1}"),
        ({"gpus": [T4], "faults": [{}]}, "faults[0].kind: expected one of xid, ecc, lost, found None"),
        (
            {"gpus": [T4], "faults": [{"kind": "xid", "gpu": 1}]},
            "faults[0].gpu: there is no GPU 1; the node has 0 to 0",
        ),
        (
            {"gpus": [T4], "faults": [{"kind": "xid", "afterSeconds": -1}]},
            "faults[0].afterSeconds: expected a number, 0 or more, found -1",
        ),
        ({"gpus": [T4], "nodes": 3}, "nodes: expected names of nodes, each with gpus, found 3"),
        ({"gpus": [T4], "nodes": {"b": 3}}, "nodes.b: expected faults, gpus, seed, found 3"),
        ({"gpus": [T4], "nodes": {"b": {"gpus": 3}}}, "nodes.b.gpus: expected a list, found 3"),
    ],
)
def test_a_wrong_profile_names_its_path_and_what_is_expected(document: Any, message: str | None) -> None:
    if message is None:
        assert profile.parse(document, NODE).faults == ()
        return
    with pytest.raises(WireError) as caught:
        profile.parse(document, NODE)

    assert str(caught.value) == message
