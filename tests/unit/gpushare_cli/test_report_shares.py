"""Parts of GPUs, whole GPUs, and GPUs that take nothing new: what `inspect` shows of them."""

import orjson
import pytest

from gpushare import names
from gpushare.identity import ContainerName, GpuUuid, NodeName
from gpushare.model.allocation import Grant
from gpushare.model.gpu import GpuHealth
from gpushare_cli import render, report
from testing.builders import make_allocation
from tests.unit.gpushare_cli.clusters import Object, given, our_node, pod

PART = Grant(container=ContainerName("main"), gpus=(GpuUuid("GPU-node-a-0"),), memory_mib=3072, compute_percent=20)
WHOLE = Grant(
    container=ContainerName("main"), gpus=(GpuUuid("GPU-node-a-1"),), memory_mib=15360, compute_percent=100, whole=True
)


def asking(name: str, **limits: object) -> Object:
    """A bound pod without an allocation."""
    found = pod(name)
    found["spec"]["containers"][0]["resources"]["limits"] = limits
    return found


def test_compute_and_whole_gpus_follow_the_memory_in_a_table_of_their_own() -> None:
    pods = [given("part", make_allocation("part", PART)), given("train", make_allocation("train", WHOLE))]
    found = report.build([our_node("node-a", 15360, 15360)], pods)
    assert render.summary(found) == (
        "NAME    IPADDRESS     GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n"
        "node-a  192.168.0.71  3/15                   15/15                  18/30\n"
        "---------------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "18/30 (60%)  \n"
        "\n"
        "NAME    GPU  Compute(Allocated)  Whole GPU Of\n"
        "node-a  0    20%                 \n"
        "node-a  1    100%                default/train\n"
    )


def test_details_end_with_the_same_table() -> None:
    found = report.build([our_node("node-a", 15360)], [given("part", make_allocation("part", PART))])
    assert render.detail(found).endswith(
        "Allocated/Total GPU Memory In Cluster:  3/15 (20%)  \n"
        "\n"
        "NAME    GPU  Compute(Allocated)  Whole GPU Of\n"
        "node-a  0    20%                 \n"
    )


def test_json_has_percent_and_whole_of_gpus_and_pods() -> None:
    pods = [given("part", make_allocation("part", PART)), given("train", make_allocation("train", WHOLE))]
    (node,) = orjson.loads(render.as_json(report.build([our_node("node-a", 15360, 15360)], pods)))["nodes"]
    assert [(gpu["computePercent"], gpu["whole"]) for gpu in node["gpus"]] == [(20, False), (100, True)]
    assert [entry["gpus"] for entry in node["pods"]] == [
        [{"index": 0, "usedMiB": 3072, "computePercent": 20, "whole": False}],
        [{"index": 1, "usedMiB": 15360, "computePercent": 100, "whole": True}],
    ]


def test_a_whole_gpu_that_has_grown_is_held_with_all_it_has() -> None:
    found = report.build([our_node("node-a", 15360, 20480)], [given("train", make_allocation("train", WHOLE))])
    assert found.nodes[0].gpus[1].used_mib == 20480


def test_a_part_of_a_gpu_that_nano_gpu_gave_counts_as_that_part_of_its_memory() -> None:
    nano = asking("nano", **{names.GPU_PERCENT: "50"})
    nano["metadata"]["annotations"] = {names.NANO_ASSUME: "true", f"{names.PREFIX_NANO_CONTAINER}main": "0"}
    (row,) = report.build([our_node("node-a", 15360)], [nano]).nodes
    assert (row.gpus[0].used_mib, row.gpus[0].compute_percent) == (7680, 50)


def test_a_part_that_no_one_gave_is_pending_as_a_part_of_the_largest_gpu() -> None:
    found = report.build([our_node("node-a", 10240, 20480)], [asking("waits", **{names.GPU_PERCENT: "50"})])
    assert found.nodes[0].pending_mib == 10240


def test_whole_gpus_of_another_plugin_are_none_of_ours() -> None:
    found = report.build([our_node("node-a", 15360)], [asking("theirs", **{names.GPU: "1"})])
    assert found.nodes[0].pods == ()


def test_whole_gpus_that_the_webhook_has_taken_care_of_are_pending() -> None:
    ours = asking("ours", **{names.GPU: "1"})
    path = f"metadata.annotations['{names.PREFIX_DEVICES}main']"
    ours["spec"]["containers"][0]["env"] = [
        {"name": names.ENV_VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    ]
    assert report.build([our_node("node-a", 15360)], [ours]).nodes[0].pending_mib == 15360


@pytest.mark.parametrize(
    ("cordon", "unhealthy", "expected"),
    [
        ("", frozenset(), GpuHealth.HEALTHY),
        ("0", frozenset(), GpuHealth.CORDONED),
        ("GPU-node-a-0", frozenset(), GpuHealth.CORDONED),
        ("", frozenset({0}), GpuHealth.UNHEALTHY),
        ("0", frozenset({0}), GpuHealth.UNHEALTHY),
    ],
)
def test_gpus_are_as_the_annotation_and_the_config_map_say(
    cordon: str, unhealthy: frozenset[int], expected: GpuHealth
) -> None:
    node = our_node("node-a", 15360)
    node["metadata"]["annotations"][names.ANNOTATION_CORDON] = cordon
    found = report.build([node], [], {NodeName("node-a"): unhealthy})
    assert found.nodes[0].gpus[0].gpu.health is expected


def test_a_gpu_of_141_gib_is_counted_in_the_unit_of_its_inventory() -> None:
    (row,) = report.build([our_node("node-a", 144384)], []).nodes
    assert (row.unit.name, row.gpus[0].total_mib) == ("GiB", 141 * 1024)
