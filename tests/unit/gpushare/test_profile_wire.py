"""Profiles of simulated GPUs: what they say, and what is wrong in one, and where."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.inventory import build
from deviceplugin.simulated import SimulatedSource
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.model.gpu import Limit, MigInstance
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB
from gpushare.wire import profile
from gpushare.wire.profile import Fault, FaultKind, GpuSpec, MigSpec, Profile

NODE = NodeName("node-a")
SHIPPED = sorted((Path(__file__).parents[3] / "testing" / "profiles").glob("*.yaml"))
T4 = {"model": "Tesla T4", "memoryMiB": 15360}


def parse(text: str, node: str = NODE) -> Profile:
    return profile.parse(yaml.safe_load(text), NodeName(node))


def test_a_minimal_and_a_full_profile() -> None:
    assert parse("gpus: [{model: Tesla T4, memoryMiB: 15360}]") == Profile(
        seed=0, gpus=(GpuSpec(model="Tesla T4", memory_mib=15360),), faults=()
    )
    text = """
    seed: 7
    gpus:
      - {model: A, memoryMiB: 100, count: 2, numa: 1}
      - {model: B, memoryMiB: 200, uuid: GPU-01234567-89ab-cdef-0123-456789abcdef}
    faults:
      - {gpu: 1, kind: lost, afterSeconds: 2.5}
      - {kind: xid, afterPolls: 3, recoversAfterPolls: 2}
    """
    assert parse(text) == Profile(
        seed=7,
        gpus=(
            *(GpuSpec(model="A", memory_mib=100, numa=1),) * 2,
            GpuSpec(model="B", memory_mib=200, uuid="GPU-01234567-89ab-cdef-0123-456789abcdef"),
        ),
        faults=(
            Fault(gpu=1, kind=FaultKind.LOST, after_seconds=2.5),
            Fault(gpu=None, kind=FaultKind.XID, after_polls=3, recovers_after_polls=2),
        ),
    )


def test_nodes_share_and_name_in_order_what_a_profile_says_of_them() -> None:
    text = """
    seed: 7
    gpus: [{model: A, memoryMiB: 100, count: 4}]
    faults: [{gpu: 3, kind: ecc}]
    nodes:
      node-b: {gpus: [{model: B, memoryMiB: 200}]}
      node-c: {faults: [{gpu: 0, kind: xid}], seed: 9}
    """
    a, b, c = (parse(text, node) for node in ("node-a", "node-b", "node-c"))
    assert ([gpu.model for gpu in a.gpus], len(a.faults), a.seed) == (["A"] * 4, 1, 7)
    assert ([gpu.model for gpu in b.gpus], len(b.faults), b.seed) == (["B"], 0, 7)
    assert ([gpu.model for gpu in c.gpus], c.faults[0].gpu, c.seed) == (["A"] * 4, 0, 9)
    assert profile.nodes({"gpus": [T4], "nodes": {"node-c": {}, "node-b": {}}}) == ("node-c", "node-b")
    assert profile.nodes({"gpus": [T4]}) == ()
    cases: list[object] = [None, []]
    for nothing in cases:
        assert profile.parse({"gpus": [T4], "faults": nothing}, NODE).faults == ()


def test_derived_uuids_stay_the_same_from_version_to_version() -> None:
    """Pods that run hold GPUs by them."""
    two = {"seed": 1, "gpus": [{**T4, "count": 2}]}
    assert [gpu.uuid for gpu in profile.inventory(two, NODE, GIB).gpus] == [
        "GPU-c38ef6ed-3f9d-cc54-e8eb-24bb9813eb03",
        "GPU-9e2f1580-22a6-7b37-216b-2b318029ff73",
    ]
    [other] = profile.inventory({"seed": 1, "gpus": [T4]}, NodeName("node-b"), GIB).gpus
    assert other.uuid == "GPU-250e5b34-9dcd-6a5f-06d4-5b52243ec128"


def test_a_gpu_in_mig_mode_offers_its_instances_alone_after_whole_ones() -> None:
    found = parse(
        """
        gpus:
          - {model: T4, memoryMiB: 15360, reservedMiB: 300}
          - model: A100
            memoryMiB: 40960
            numa: 1
            mig: [{profile: 1g.5gb, memoryMiB: 4864, count: 2}, {profile: 3g.20gb, memoryMiB: 19968}]
          - {model: A100, memoryMiB: 40960, mig: []}
        """
    )
    assert found.gpus[1].mig == (MigSpec(profile="1g.5gb", memory_mib=4864),) * 2 + (
        MigSpec(profile="3g.20gb", memory_mib=19968),
    )
    assert [gpu.memory_mib for gpu in found.offered(NODE, 0)] == [15060]
    assert [gpu.memory_mib for gpu in found.offered(NODE, 0, reserved=True)] == [15360]
    instances = found.offered(NODE, 1)
    assert [(gpu.label, gpu.index, gpu.memory_mib, gpu.numa, gpu.limit) for gpu in instances] == [
        ("1:0", 80, 4864, 1, Limit.MIG),
        ("1:1", 81, 4864, 1, Limit.MIG),
        ("1:2", 82, 19968, 1, Limit.MIG),
    ]
    assert [gpu.mig for gpu in instances][2] == MigInstance(gpu=1, number=2, profile="3g.20gb")
    assert len({gpu.uuid for gpu in instances}) == 3
    assert all(re.fullmatch(r"MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", gpu.uuid) for gpu in instances)
    assert found.offered(NODE, 2) == ()
    split = {**T4, "mig": [{"profile": "1g.5gb", "memoryMiB": 4864}]}
    assert [gpu.index for gpu in profile.inventory({"gpus": [split, T4]}, NODE, GIB).gpus] == [1, 64]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_inventory_of_a_shipped_profile_is_the_one_that_the_plugin_publishes(path: Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    source = SimulatedSource(path=path, node=NODE, clock=SystemClock())
    published = build(source.read(), node=NODE, unit=GIB)
    found = profile.inventory(document, NODE, GIB)

    assert found.gpus
    assert [(gpu.uuid, gpu.model, gpu.memory_mib) for gpu in found.gpus][: len(published.gpus)] == [
        (gpu.uuid, gpu.model, gpu.memory_mib) for gpu in published.gpus
    ]


WHOLE = "expected a whole number, 1 or more, found"
COUNT = "expected a whole number, 0 or more, found"
OWN_UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"
WRONG: list[tuple[Any, str]] = [
    (None, "expected an object, found nothing"),
    ({"gpu": []}, "unknown field 'gpu'; known are faults, gpus, nodes, seed"),
    ({"gpus": {}}, "gpus: expected a list, found an object"),
    ({"gpus": []}, "gpus: 0 GPUs; a node has 1 to 64"),
    ({"gpus": [{**T4, "count": 65}]}, "gpus: 65 GPUs; a node has 1 to 64"),
    ({"gpus": ["T4"]}, "gpus[0]: expected an object, found a string"),
    ({"gpus": [{"memoryMiB": 1}]}, "gpus[0].model: expected a string, found nothing"),
    ({"gpus": [T4, {"model": "T4"}]}, f"gpus[1].memoryMiB: {WHOLE} nothing"),
    (
        {"gpus": [{**T4, "uuid": OWN_UUID}] * 2},
        "gpus: two GPUs with the same uuid; leave uuid out to have them derived",
    ),
    ({"gpus": [T4], "faults": 3}, "faults: expected a list, found a number"),
    ({"gpus": [T4], "faults": [3]}, "faults[0]: expected an object, found a number"),
    ({"gpus": [T4], "nodes": ["node-b"]}, "nodes: expected an object, found a list"),
]
WRONG_GPUS: list[tuple[dict[str, Any], str]] = [
    ({"memoryGiB": 15}, ": unknown field 'memoryGiB'; known are count, memoryMiB, mig, model, numa, reservedMiB, uuid"),
    ({"reservedMiB": 15360}, ".reservedMiB: 15360 MiB of 15360 leave nothing to share"),
    ({"mig": 7}, ".mig: expected a list, found a number"),
    ({"mig": [7]}, ".mig[0]: expected an object, found a number"),
    ({"mig": [{"profile": "1g.5gb"}]}, f".mig[0].memoryMiB: {WHOLE} nothing"),
    ({"mig": [{"profile": "1g.5gb", "memoryMiB": 1, "count": 10**9}]}, ".mig: 17 instances; a GPU has up to 16"),
    ({"model": ""}, ".model: expected a string, found an empty string"),
    ({"memoryMiB": 0}, f".memoryMiB: {WHOLE} 0"),
    ({"count": 0}, f".count: {WHOLE} 0"),
    ({"numa": -1}, f".numa: {COUNT} -1"),
    ({"uuid": "GPU-1"}, ".uuid: expected GPU- and 32 hexadecimal digits in NVIDIA's groups, found 'GPU-1'"),
    ({"count": 2, "uuid": OWN_UUID}, ".uuid: 2 GPUs cannot share one; leave it out or set count to 1"),
]
WRONG_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"gpu": 0, "kind": "fire"}, "kind: expected one of xid, ecc, lost, found 'fire'"),
    ({"gpu": 1, "kind": "xid"}, "gpu: there is no GPU 1; the node has 0 to 0"),
    ({"kind": "xid", "afterSeconds": -1}, "afterSeconds: expected a number, 0 or more, found -1"),
    ({"kind": "xid", "afterSeconds": float("nan")}, "afterSeconds: expected a number, 0 or more, found nan"),
    ({"kind": "xid", "recoversAfterPolls": 0}, f"recoversAfterPolls: {WHOLE} 0"),
]
WRONG_NODES: list[tuple[Any, str]] = [
    ({"gpus": 3}, ".gpus: expected a list, found a number"),
    ({"nodes": {}}, ": unknown field 'nodes'; known are faults, gpus, seed"),
    ({"gpus": [{"model": "X"}]}, f".gpus[0].memoryMiB: {WHOLE} nothing"),
    ({"seed": -1}, f".seed: {COUNT} -1"),
]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        *WRONG,
        *(({"gpus": [{**T4, **gpu}]}, f"gpus[0]{message}") for gpu, message in WRONG_GPUS),
        *(({"gpus": [T4], "faults": [fault]}, f"faults[0].{message}") for fault, message in WRONG_FAULTS),
        *(({"gpus": [T4], "nodes": {"node-b": node}}, f"nodes.node-b{message}") for node, message in WRONG_NODES),
    ],
)
def test_a_wrong_profile_is_refused_with_path_and_fix(document: Any, message: str) -> None:
    with pytest.raises(WireError) as caught:
        profile.parse(document, NODE)
    assert str(caught.value) == message
