"""What people see. The golden files were captured from Aliyun's tool and must stay byte for byte."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.units import MemoryUnit
from gpushare_cli import render, report
from testing.builders import make_grant, make_inventory, make_mig, make_node
from testing.cli.podding import bound
from tests.unit.gpushare_cli import clusters
from tests.unit.gpushare_cli.clusters import ack_pod, aliyun_node, aliyun_pod, our_node, our_pod, pod

GOLDEN = Path(__file__).parent / "golden"
NINE = [aliyun_pod("binpack-1-0", gpu=0, mem=6), aliyun_pod("jupyter-1", gpu=1, mem=3, namespace="team-a")]
OURS = [
    our_pod("binpack-1-0", "GPU-node-a-0", mib=6 * 1024),
    our_pod("jupyter-1", "GPU-node-a-1", mib=3 * 1024, namespace="team-a"),
]
T4 = 15 * 1024 + 300  # MiB; the part of a unit is not handed out


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


def summary(nodes: list[clusters.Object], pods: list[clusters.Object] | None = None) -> str:
    return render.summary(report.build(nodes, pods or []))


def detail(nodes: list[clusters.Object], pods: list[clusters.Object] | None = None) -> str:
    return render.detail(report.build(nodes, pods or []))


@pytest.mark.parametrize(("node", "pods"), [(aliyun_node(), NINE), (our_node("node-a", T4, T4), OURS)])
def test_summary_is_the_captured_one(node: clusters.Object, pods: list[clusters.Object]) -> None:
    assert summary([node], pods) == golden("summary.txt")


@pytest.mark.parametrize(("node", "pods"), [(aliyun_node(), NINE), (our_node("node-a", T4, T4), OURS)])
def test_summary_with_a_pending_pod_is_the_captured_one(node: clusters.Object, pods: list[clusters.Object]) -> None:
    assert summary([node], [*pods, pod("waiting", mem=5)]) == golden("summary-pending.txt")


def test_detail_with_a_pod_of_two_gpus_is_the_captured_one() -> None:
    pods = [*NINE, ack_pod("multi-1", '{"0":{"0":4,"1":4}}', mem=8)]
    assert detail([aliyun_node()], pods) == golden("detail.txt")


def test_what_may_be_granted_beyond_what_gpus_have_is_a_table_of_its_own() -> None:
    known = make_inventory(16, 16)
    more = make_node(replace(known, gpus=(replace(known.gpus[0], extra_mib=8 * 1024), known.gpus[1])))
    pods = [bound(name, make_grant(0, gib=10)) for name in ("a", "b")]
    assert summary([more], pods).splitlines()[1:] == [
        "node-a  192.168.0.71  20/16                  0/16                   20/32",
        *summary([make_node(known)], pods).splitlines()[2:],
        "",
        "NAME    GPU  Oversubscription  Allocated/Grantable/Total",
        "node-a  0    1.5               20/24/16",
    ]
    told = json.loads(render.as_json(report.build([more], pods)))["nodes"][0]["gpus"]
    assert [gpu.get("grantableMiB") for gpu in told] == [24 * 1024, None]


def test_detail_of_our_own_pods_looks_the_same() -> None:
    pods = [*OURS, our_pod("multi-1", "GPU-node-a-0", "GPU-node-a-1", mib=4 * 1024)]
    assert detail([our_node("node-a", T4, T4)], pods) == golden("detail.txt")


def test_dashes_of_a_wide_row_are_counted_from_the_raw_row() -> None:
    node = aliyun_node("dev-server-153", mem="184", count="8", address="192.168.0.153")
    assert summary([node]).split("\n")[2] == "-" * 95


def test_dashes_of_a_narrow_row_are_counted_from_the_raw_row() -> None:
    lines = summary([aliyun_node("archlinux", mem="16", count="1", address="192.168.8.100")]).split("\n")
    assert lines[2] == "-" * 54
    assert lines[4] == "0/16 (0%)  "


def test_percent_is_truncated() -> None:
    text = summary([aliyun_node(mem="16", count="1")], [aliyun_pod("a", gpu=0, mem=3)])
    assert "3/16 (18%)" in text


def test_a_node_with_fewer_gpus_shows_none_in_the_other_columns() -> None:
    nodes = [our_node("b", 15 * 1024, address="10.0.0.2"), our_node("a", 15 * 1024, 15 * 1024, address="10.0.0.1")]
    assert summary(nodes).split("\n")[:3] == [
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)",
        "a     10.0.0.1   0/15                   0/15                   0/30",
        "b     10.0.0.2   0/15                   0/0                    0/15",
    ]


def test_mig_instances_have_columns_of_their_own() -> None:
    nodes = [
        our_node("a", 15 * 1024, instances=[make_mig(1, 0), make_mig(1, 2, 20)]),
        our_node("b", 15 * 1024, 15 * 1024),
    ]

    assert [line.split() for line in summary(nodes, [our_pod("p", "MIG-1-2", mib=2048, on="a")]).split("\n")[:3]] == [
        [
            "NAME",
            "IPADDRESS",
            *(f"GPU{label}(Allocated/Total)" for label in ("0", "1", "1:0", "1:2")),
            "GPU",
            "Memory(GiB)",
        ],
        ["a", "192.168.0.71", "0/15", "0/0", "0/5", "2/20", "2/40"],
        ["b", "192.168.0.71", "0/15", "0/15", "0/0", "0/0", "0/30"],
    ]


def test_gpus_of_different_size_are_shown_with_their_own_size() -> None:
    row = summary([our_node("node-a", 15 * 1024, 80 * 1024)]).split("\n")[1]
    assert row == "node-a  192.168.0.71  0/15                   0/80                   0/95"


def test_a_large_gpu_is_labelled_in_its_nodes_unit() -> None:
    header, row, *_ = summary([our_node("node-a", 141 * 1024)]).split("\n")
    assert header.endswith("GPU Memory(GiB)")
    assert row.endswith("0/141")


def test_nodes_of_different_units_are_shown_in_mib() -> None:
    nodes = [our_node("a", T4), our_node("b", 1000, unit=MemoryUnit(256))]
    header, first, second, *_ = summary(nodes, [our_pod("p", "GPU-b-0", mib=256, on="b")]).split("\n")
    assert header.endswith("GPU Memory(MiB)")
    assert first.endswith("0/15360")
    assert second.endswith("256/768")


def test_a_share_that_is_no_whole_unit_is_rounded_up() -> None:
    text = summary([our_node("node-a", T4)], [our_pod("p", "GPU-node-a-0", mib=1500)])
    assert "2/15" in text


def test_a_node_without_address_is_unknown() -> None:
    assert "node-a  unknown  " in summary([our_node("node-a", T4, address=None)])


def test_pending_stays_empty_on_nodes_without_any() -> None:
    nodes = [aliyun_node("node-a"), aliyun_node("node-b")]
    _, first, second, *_ = summary(nodes, [pod("waiting", on="node-b", mem=5)]).split("\n")
    assert first == "node-a  192.168.0.71  0/15                   0/15                                       0/30"
    assert second == "node-b  192.168.0.71  0/15                   0/15                   5                   5/30"


def test_detail_has_a_pending_column_only_where_something_is_pending() -> None:
    text = detail([aliyun_node("node-a"), aliyun_node("node-b")], [pod("waiting", on="node-b", mem=5)])
    assert text.count("Pending(Allocated)") == 1
    assert "waiting      default    0                0                5                   " in text


def test_detail_of_an_idle_node_has_ten_dashes() -> None:
    assert "\n" + "-" * 10 + "\n" in detail([aliyun_node()])


def test_dashes_of_the_first_node_are_used_for_all() -> None:
    text = detail([aliyun_node("a"), aliyun_node("b")], [pod("waiting", on="b", mem=5)])
    assert [line for line in text.split("\n") if line.startswith("-")] == ["-" * 10, "-" * 10]


def test_a_node_that_lost_all_gpus_is_no_division_by_zero() -> None:
    lost = our_node("node-a")
    assert summary([lost]).endswith("0/0 (0%)  \n")
    assert "Allocated :  0 (0%)  " in detail([lost])
