from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import names
from gpushare.identity import ContainerName, GpuUuid, NodeName
from gpushare.kube import api as kube
from gpushare.model.allocation import Grant
from gpushare.model.gpu import GpuHealth
from gpushare.units import MemoryUnit
from gpushare_cli import holders, inspect_command, reading
from testing.builders import make_allocation, make_grant, make_inventory, make_mig, make_node
from testing.cli.podding import bound
from testing.fakes.kube import FakeKube
from tests.unit.gpushare_cli.clusters import (
    CONFIG_MAPS,
    Object,
    ack_pod,
    aliyun_node,
    aliyun_pod,
    api_of,
    given,
    node,
    our_node,
    our_pod,
    pod,
    unhealthy_gpus,
)
from tests.unit.gpushare_cli.findings import Told


def used(nodes: list[Object], pods: list[Object]) -> tuple[list[int], int]:
    """MiB on each GPU of the only node, and pending."""
    (row,) = holders.build(nodes, pods).nodes
    return [gpu.used_mib for gpu in row.gpus], row.pending_mib


def test_nodes_without_gpus_do_not_appear() -> None:
    found = holders.build([node("cpu-only"), aliyun_node("b"), our_node("a", 1024)], [])
    assert [row.name for row in found.nodes] == ["a", "b"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_pods_hold_nothing(phase: str) -> None:
    assert used([aliyun_node()], [aliyun_pod("done", gpu=0, mem=3, phase=phase)]) == ([0, 0], 0)


def test_a_failed_pod_whose_container_still_runs_holds_its_share() -> None:
    evicted = aliyun_pod("evicted", gpu=0, mem=3, phase="Failed")
    evicted["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}}]
    assert used([aliyun_node()], [evicted]) == ([3 * 1024, 0], 0)


def test_a_deleted_pod_holds_its_share_until_it_is_gone() -> None:
    leaving = aliyun_pod("leaving", gpu=1, mem=3)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert used([aliyun_node()], [leaving]) == ([0, 3 * 1024], 0)


def test_pods_without_a_node_or_on_another_do_not_count() -> None:
    unbound = aliyun_pod("unbound", gpu=0, mem=3)
    del unbound["spec"]["nodeName"]
    elsewhere = pod("elsewhere", on="node-z")
    assert used([aliyun_node()], [unbound, elsewhere]) == ([0, 0], 0)


def test_pods_of_the_old_system_are_found_by_index_on_a_node_with_an_inventory() -> None:
    assert used([our_node("node-a", 15360, 15360)], [aliyun_pod("old", gpu=1, mem=3)]) == ([0, 3072], 0)


def test_a_total_of_more_than_100_for_each_gpu_is_mib() -> None:
    found = holders.build([aliyun_node("a", mem="101", count="1"), aliyun_node("b", mem="200", count="2")], []).nodes
    assert [(row.unit.name, row.total_mib) for row in found] == [("MiB", 101), ("GiB", 200 * 1024)]


def test_an_uneven_total_of_the_old_system_stays_whole_in_the_nodes_total() -> None:
    (row,) = holders.build([aliyun_node(mem="31")], []).nodes
    assert [gpu.total_mib for gpu in row.gpus] == [15 * 1024, 15 * 1024]
    assert row.total_mib == 31 * 1024


@pytest.mark.parametrize(
    ("count", "note"),
    [
        ({}, "no aliyun.com/gpu-count in its status; its memory is shown as one GPU"),
        ({names.GPU_COUNT: "65"}, "aliyun.com/gpu-count is 65, more than any node has; shown as one GPU"),
    ],
)
def test_a_missing_or_wild_count_is_noted_and_shown_as_one_gpu(count: dict[str, str], note: str) -> None:
    found = holders.build([node(allocatable={names.GPU_MEM: "80", **count})], [])
    assert found.notes == (f"node node-a: {note}",)
    assert len(found.nodes[0].gpus) == 1


@pytest.mark.parametrize("mem", ["0", "-1", "many", ""])
def test_a_node_whose_memory_is_no_positive_number_shares_nothing(mem: str) -> None:
    assert holders.build([aliyun_node(mem=mem)], []).nodes == ()


def test_an_unreadable_inventory_is_noted_and_the_status_is_shown(told: Told) -> None:
    broken = aliyun_node()
    broken["metadata"]["annotations"] = {names.ANNOTATION_INVENTORY: "{}"}
    found = holders.build([broken], [])
    assert len(found.nodes[0].gpus) == 2
    assert list(found.notes) == told()


@pytest.mark.parametrize(
    ("pod", "note"),
    [
        (
            our_pod("moved", "GPU-node-a-0", mib=2048, made_for="node-b"),
            "annotation gpushare.dev/allocation: made for node node-b, but the pod is on node-a; and annotation"
            " devices.gpushare.dev/main: expected UUIDs of different GPUs, found None; counted as pending",
        ),
        (our_pod("p", "GPU-gone", mib=2048), "holds memory on GPU GPU-gone, which node node-a does not list"),
    ],
)
def test_an_unreadable_allocation_and_a_lost_gpu_are_noted_and_counted_as_pending(pod: Object, note: str) -> None:
    found = holders.build([our_node("node-a", 15360)], [pod])
    assert found.nodes[0].pending_mib == 2048
    assert found.notes == (f"pod default/{pod['metadata']['name']}: {note}",)


def test_an_unreadable_allocation_is_counted_by_the_other_annotations_of_its_binding() -> None:
    pod = our_pod("newer", "GPU-node-a-0", mib=2048)
    pod["metadata"]["annotations"] |= {
        names.ANNOTATION_ALLOCATION: '{"version":9,"minReader":9}',
        "devices.gpushare.dev/main": "GPU-node-a-0",
        "memory.gpushare.dev/main": "2048",
    }
    found = holders.build([our_node("node-a", 15360)], [pod])
    assert found.nodes[0].pending_mib == 0
    assert found.nodes[0].gpus[0].used_mib == 2048
    assert found.notes[0].endswith("upgrade it; counted by the other annotations of its binding")


def test_a_bound_pod_whose_request_cannot_be_read_is_noted(told: Told) -> None:
    found = holders.build([our_node("node-a", 15360)], [pod("odd", mem="1.5")])
    assert found.nodes[0].pods == ()
    assert list(found.notes) == told()


def test_pods_that_ask_for_nothing_of_ours_have_no_row() -> None:
    plain = pod("plain")
    plain["spec"]["containers"] = [{"name": "main"}]
    theirs = asking("theirs", **{names.GPU: "1"})
    assert holders.build([our_node("node-a", 15360)], [plain, theirs]).nodes[0].pods == ()


def test_rows_are_grouped_by_gpu_and_pending_pods_come_last() -> None:
    pods = [pod("z"), aliyun_pod("b", gpu=1, mem=1), aliyun_pod("c", gpu=0, mem=1), aliyun_pod("a", gpu=1, mem=1)]
    (row,) = holders.build([aliyun_node()], pods).nodes
    assert [entry.name for entry in row.pods] == ["c", "a", "b", "z"]


def test_json_is_in_mib_and_names_every_gpu() -> None:
    pods = [our_pod("p", "GPU-node-a-0", mib=2048), pod("waiting", mem=1)]
    value = inspect_command.as_value(holders.build([our_node("node-a", 15500, unhealthy=[0])], pods))
    used = {"index": 0, "grantedMiB": 2048, "usedMiB": 2048, "computePercent": 0, "whole": False}
    health = {"health": "Unhealthy", "reason": "Xid 79: GPU has fallen off the bus"}
    gpu = {**used, "uuid": "GPU-node-a-0", "model": "Tesla T4", **health, "totalMiB": 15360}
    pods = [
        {"namespace": "default", "name": "p", "gpus": [used], "pendingMiB": 0},
        {"namespace": "default", "name": "waiting", "gpus": [], "pendingMiB": 1024},
    ]
    total = {"unit": "GiB", "totalMiB": 15360, "grantedMiB": 3072, "usedMiB": 3072}
    node = {"name": "node-a", "address": "192.168.0.71", **total, "pendingMiB": 1024, "gpus": [gpu], "pods": pods}
    assert value == {**total, "nodes": [node], "notes": ()}


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
    found = holders.build([our_node("node-a", 15360, 15360)], pods)
    assert inspect_command.summary(found) == (
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
    found = holders.build([our_node("node-a", 15360)], [given("part", make_allocation("part", PART))])
    table = "NAME    GPU  Compute(Allocated)  Whole GPU Of\nnode-a  0    20%                 \n"
    assert inspect_command.detail(found).endswith(f"In Cluster:  3/15 (20%)  \n\n{table}")


def test_json_has_percent_and_whole_of_gpus_and_pods() -> None:
    pods = [given("part", make_allocation("part", PART)), given("train", make_allocation("train", WHOLE))]
    (node,) = inspect_command.as_value(holders.build([our_node("node-a", 15360, 15360)], pods))["nodes"]
    assert [(gpu["computePercent"], gpu["whole"]) for gpu in node["gpus"]] == [(20, False), (100, True)]
    assert [entry["gpus"] for entry in node["pods"]] == [
        [{"index": 0, "grantedMiB": 3072, "usedMiB": 3072, "computePercent": 20, "whole": False}],
        [{"index": 1, "grantedMiB": 15360, "usedMiB": 15360, "computePercent": 100, "whole": True}],
    ]


def test_a_whole_gpu_that_has_grown_is_held_with_all_it_has() -> None:
    found = holders.build([our_node("node-a", 15360, 20480)], [given("train", make_allocation("train", WHOLE))])
    assert found.nodes[0].gpus[1].used_mib == 20480


def test_a_part_of_a_gpu_that_nano_gpu_gave_counts_as_that_part_of_its_memory() -> None:
    nano = asking("nano", **{names.GPU_PERCENT: "50"})
    nano["metadata"]["annotations"] = {names.NANO_ASSUME: "true", f"{names.PREFIX_NANO_CONTAINER}main": "0"}
    (row,) = holders.build([our_node("node-a", 15360)], [nano]).nodes
    assert (row.gpus[0].used_mib, row.gpus[0].compute_percent) == (7680, 50)


def test_a_part_that_no_one_gave_is_pending_as_a_part_of_the_largest_gpu() -> None:
    found = holders.build([our_node("node-a", 10240, 20480)], [asking("waits", **{names.GPU_PERCENT: "50"})])
    assert found.nodes[0].pending_mib == 10240


def test_whole_gpus_that_the_webhook_has_taken_care_of_are_pending() -> None:
    ours = asking("ours", **{names.GPU: "1"})
    path = f"metadata.annotations['{names.PREFIX_DEVICES}main']"
    ours["spec"]["containers"][0]["env"] = [
        {"name": names.ENV_VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    ]
    assert holders.build([our_node("node-a", 15360)], [ours]).nodes[0].pending_mib == 15360


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
    found = holders.build([node], [], {NodeName("node-a"): unhealthy})
    assert found.nodes[0].gpus[0].gpu.health is expected


def plain(name: str) -> dict[str, object]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "main"}]},
    }


def asked(api: FakeKube) -> list[str]:
    return [call.path for call in api.calls]


def test_lists_are_read_page_by_page_and_of_pods_only_the_bound_ones() -> None:
    api = api_of([aliyun_node(f"n{i}") for i in range(1001)], [aliyun_pod(f"p{i}", gpu=0, mem=1) for i in range(501)])
    cluster = reading.on_nodes(api)
    assert (len(cluster.nodes), len(cluster.pods)) == (1001, 501)
    assert asked(api) == ["/api/v1/nodes"] * 3 + ["/api/v1/pods"] * 2 + [CONFIG_MAPS]
    assert {(call.verb, call.params["limit"]) for call in api.calls} == {("list", "500")}
    assert {call.params.get("fieldSelector") for call in api.calls if "pods" in call.path} == {"spec.nodeName!="}


def test_one_node_needs_no_list_of_nodes() -> None:
    api = api_of([aliyun_node("a"), aliyun_node("b")], [pod("x", on="a"), pod("y", on="b")])
    cluster = reading.on_nodes(api, "b")
    assert asked(api) == ["/api/v1/nodes/b", "/api/v1/pods", CONFIG_MAPS]
    assert [found["metadata"]["name"] for found in cluster.pods] == ["y"]


def test_pods_that_neither_ask_nor_hold_are_dropped() -> None:
    no_limit = our_pod("ours", "GPU-1", mib=1024)
    no_limit["spec"]["containers"] = [{"name": "main"}]
    ack = ack_pod("ack", '{"0":{"0":1}}', mem=1)
    ack["spec"]["containers"] = [{"name": "main"}]
    cluster = reading.on_nodes(api_of([], [plain("web"), pod("gpu"), no_limit, ack]))
    assert [found["metadata"]["name"] for found in cluster.pods] == ["ack", "gpu", "ours"]


def test_a_list_that_expires_is_read_again_and_given_up_at_the_third_time() -> None:
    api = api_of([aliyun_node()])
    api.fail_next(lambda _: True, kube.GoneError("too old"), times=2)
    assert len(reading.on_nodes(api).nodes) == 1
    api.fail_next(lambda _: True, kube.GoneError("too old"), times=3)
    with pytest.raises(kube.GoneError):
        reading.on_nodes(api)


def test_config_maps_of_unhealthy_gpus_are_read_by_node() -> None:
    maps = [
        unhealthy_gpus("node-a", "0, 2"),
        unhealthy_gpus("node-b", ""),
        {"metadata": {"name": "kube-root-ca.crt", "namespace": "kube-system"}},
    ]
    cluster = reading.on_nodes(api_of([aliyun_node()], [], maps))
    assert cluster.unhealthy == {"node-a": frozenset({0, 2}), "node-b": frozenset()}
    assert cluster.notes == ()


def test_config_maps_that_may_not_be_read_become_a_note(told: Told) -> None:
    api = api_of([aliyun_node()])
    api.fail_next(lambda call: call.path == CONFIG_MAPS, kube.ForbiddenError("configmaps is forbidden"))
    cluster = reading.on_nodes(api)
    assert cluster.unhealthy == {}
    assert list(cluster.notes) == told()


def test_everything_includes_pods_that_wait() -> None:
    waiting = pod("waiting")
    del waiting["spec"]["nodeName"]
    assert [found["metadata"]["name"] for found in reading.everything(api_of([], [waiting, plain("web")])).pods] == [
        "waiting"
    ]


GOLDEN = Path(__file__).parent / "golden"
NINE = [aliyun_pod("binpack-1-0", gpu=0, mem=6), aliyun_pod("jupyter-1", gpu=1, mem=3, namespace="team-a")]
OURS = [
    our_pod("binpack-1-0", "GPU-node-a-0", mib=6 * 1024),
    our_pod("jupyter-1", "GPU-node-a-1", mib=3 * 1024, namespace="team-a"),
]
T4 = 15 * 1024 + 300  # MiB; the part of a unit is not handed out


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


def summary(nodes: list[Object], pods: list[Object] | None = None) -> str:
    return inspect_command.summary(holders.build(nodes, pods or []))


def detail(nodes: list[Object], pods: list[Object] | None = None) -> str:
    return inspect_command.detail(holders.build(nodes, pods or []))


@pytest.mark.parametrize(("node", "pods"), [(aliyun_node(), NINE), (our_node("node-a", T4, T4), OURS)])
def test_summary_is_the_captured_one_with_a_pending_pod_or_without(node: Object, pods: list[Object]) -> None:
    assert summary([node], pods) == golden("summary.txt")
    assert summary([node], [*pods, pod("waiting", mem=5)]) == golden("summary-pending.txt")


@pytest.mark.parametrize(
    ("node", "pods"),
    [
        (aliyun_node(), [*NINE, ack_pod("multi-1", '{"0":{"0":4,"1":4}}', mem=8)]),
        (our_node("node-a", T4, T4), [*OURS, our_pod("multi-1", "GPU-node-a-0", "GPU-node-a-1", mib=4 * 1024)]),
    ],
)
def test_detail_with_a_pod_of_two_gpus_is_the_captured_one(node: Object, pods: list[Object]) -> None:
    assert detail([node], pods) == golden("detail.txt")


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
    told = inspect_command.as_value(holders.build([more], pods))["nodes"][0]["gpus"]
    assert [gpu.get("grantableMiB") for gpu in told] == [24 * 1024, None]


def test_dashes_of_a_wide_row_and_of_a_narrow_one_are_counted_from_the_raw_row() -> None:
    node = aliyun_node("dev-server-153", mem="184", count="8", address="192.168.0.153")
    assert summary([node]).split("\n")[2] == "-" * 95
    lines = summary([aliyun_node("archlinux", mem="16", count="1", address="192.168.8.100")]).split("\n")
    assert lines[2] == "-" * 54
    assert lines[4] == "0/16 (0%)  "


def test_percent_is_truncated_and_a_share_that_is_no_whole_unit_rounded_up() -> None:
    assert "3/16 (18%)" in summary([aliyun_node(mem="16", count="1")], [aliyun_pod("a", gpu=0, mem=3)])
    objects = [our_node("node-a", T4)], [our_pod("p", "GPU-node-a-0", mib=1500)]
    assert (summary(*objects).count("2/15"), detail(*objects).count(" 2 ")) == (3, 2)


def test_a_node_with_fewer_gpus_shows_none_in_the_other_columns(told: Told) -> None:
    nodes = [our_node("b", 15 * 1024, address="10.0.0.2"), our_node("a", 15 * 1024, 15 * 1024, address="10.0.0.1")]
    assert summary(nodes).split("\n")[:3] == told()


def test_mig_instances_have_columns_of_their_own() -> None:
    nodes = [
        our_node("a", 15 * 1024, instances=[make_mig(1, 0), make_mig(1, 2, 20)]),
        our_node("b", 15 * 1024, 15 * 1024),
    ]
    columns = [f"GPU{label}(Allocated/Total)" for label in ("0", "1", "1:0", "1:2")]
    assert [line.split() for line in summary(nodes, [our_pod("p", "MIG-1-2", mib=2048, on="a")]).split("\n")[:3]] == [
        ["NAME", "IPADDRESS", *columns, "GPU", "Memory(GiB)"],
        ["a", "192.168.0.71", "0/15", "0/0", "0/5", "2/20", "2/40"],
        ["b", "192.168.0.71", "0/15", "0/15", "0/0", "0/0", "0/30"],
    ]


def test_gpus_are_shown_with_their_own_size_in_their_nodes_unit() -> None:
    row = summary([our_node("node-a", 15 * 1024, 80 * 1024)]).split("\n")[1]
    assert row == "node-a  192.168.0.71  0/15                   0/80                   0/95"
    header, row, *_ = summary([our_node("node-a", 141 * 1024)]).split("\n")
    assert header.endswith("GPU Memory(GiB)")
    assert row.endswith("0/141")


def test_nodes_of_different_units_are_shown_in_mib() -> None:
    nodes = [our_node("a", T4), our_node("b", 1000, unit=MemoryUnit(256))]
    header, first, second, *_ = summary(nodes, [our_pod("p", "GPU-b-0", mib=256, on="b")]).split("\n")
    assert header.endswith("GPU Memory(MiB)")
    assert first.endswith("0/15360")
    assert second.endswith("256/768")


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


def test_the_ten_dashes_of_an_idle_first_node_are_used_for_all() -> None:
    text = detail([aliyun_node("a"), aliyun_node("b")], [pod("waiting", on="b", mem=5)])
    assert [line for line in text.split("\n") if line.startswith("-")] == ["-" * 10, "-" * 10]


def test_a_node_that_lost_all_gpus_is_no_division_by_zero() -> None:
    lost = our_node("node-a")
    assert summary([lost]).endswith("0/0 (0%)  \n")
    assert "Allocated :  0 (0%)  " in detail([lost])
