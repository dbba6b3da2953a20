from dataclasses import replace

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.units import MemoryUnit
from gpushare_cli import holders, inspect_command, reading
from testing.builders import Json, make_container, make_grant, make_inventory, make_mig, make_node, make_pod
from testing.cli.podding import bound, changed
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.clusters import ack_pod, aliyun_node, aliyun_pod, api_of, node, our_node, our_pod, pod
from tests.unit.gpushare_cli.findings import Told

PART = make_grant("GPU-node-a-0", gib=3, compute_percent=20)
WHOLE = make_grant("GPU-node-a-1", gib=15, compute_percent=100, whole=True)
SHARED = {"grantedMiB": 3072, "usedMiB": 3072, "computePercent": 20, "whole": False}
WHOLLY = {"grantedMiB": 15360, "usedMiB": 15360, "computePercent": 100, "whole": True}


def asking(name: str, **limits: object) -> Json:
    """A bound pod without an allocation."""
    return make_pod(make_container(resources={"limits": limits}), name=name, node="node-a", phase="Running")


def noted(found: Json, **annotations: str) -> Json:
    found["metadata"].setdefault("annotations", {}).update(annotations)
    return found


def old(name: str = "old", gpu: int = 0, mem: int = 3, **fields: str) -> Json:
    return aliyun_pod(name, gpu=gpu, mem=mem, **fields)


UNBOUND = old("unbound")
del UNBOUND["spec"]["nodeName"]
RUNNING = {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}
NOTHING = changed(pod("plain"), "spec", containers=[{"name": "main"}])
FIELD = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{names.PREFIX_DEVICES}main']"}}}
TAKEN_CARE_OF = asking("ours", **{names.GPU: "1"})
TAKEN_CARE_OF["spec"]["containers"][0]["env"] = [{"name": names.ENV_VISIBLE_DEVICES, **FIELD}]
BINDING = {
    names.ANNOTATION_ALLOCATION: '{"version":9,"minReader":9}',
    "devices.gpushare.dev/main": "GPU-node-a-0",
    "memory.gpushare.dev/main": "2048",
}
NANO = {names.NANO_ASSUME: "true", f"{names.PREFIX_NANO_CONTAINER}main": "0"}
ONE, BOTH = our_node("node-a", 15360), our_node("node-a", 15360, 15360)
TRAIN = bound("train", WHOLE)
CASES: dict[str, tuple[list[Json], list[Json]]] = {
    "nodes without GPUs do not appear": ([node("cpu-only"), aliyun_node("b"), our_node("a", 1024)], []),
    "finished pods hold nothing": ([aliyun_node()], [old("done", phase="Succeeded"), old("failed", phase="Failed")]),
    "a failed pod whose container still runs holds its share": (
        [aliyun_node()],
        [changed(old("evicted", phase="Failed"), "status", **RUNNING)],
    ),
    "a deleted pod holds its share until it is gone": (
        [aliyun_node()],
        [changed(old("leaving", 1), "metadata", deletionTimestamp="2026-01-01T00:00:00Z")],
    ),
    "pods without a node or on another do not count": ([aliyun_node()], [UNBOUND, pod("elsewhere", on="node-z")]),
    "pods of the old system are found by index on a node with an inventory": ([BOTH], [old(gpu=1)]),
    "a total of more than 100 for each GPU is MiB": (
        [aliyun_node("a", mem="101", count="1"), aliyun_node("b", mem="200", count="2")],
        [],
    ),
    "an uneven total of the old system stays whole in the node's total": ([aliyun_node(mem="31")], []),
    "a missing or wild count is noted and shown as one GPU": (
        [
            node("missing", allocatable={names.GPU_MEM: "80"}),
            node("wild", allocatable={names.GPU_MEM: "80", names.GPU_COUNT: "65"}),
        ],
        [],
    ),
    "a node whose memory is no positive number shares nothing": (
        [aliyun_node("shares"), *(aliyun_node(f"n{i}", mem=mem) for i, mem in enumerate(("0", "-1", "many", "")))],
        [],
    ),
    "an unreadable inventory is noted and the status is shown": (
        [noted(aliyun_node(), **{names.ANNOTATION_INVENTORY: "{}"})],
        [],
    ),
    "an unreadable allocation and a lost GPU are noted and counted as pending": (
        [ONE],
        [our_pod("moved", "GPU-node-a-0", mib=2048, made_for="node-b"), our_pod("p", "GPU-gone", mib=2048)],
    ),
    "an unreadable allocation is counted by the other annotations of its binding": (
        [ONE],
        [noted(our_pod("newer", "GPU-node-a-0", mib=2048), **BINDING)],
    ),
    "a bound pod whose request cannot be read is noted": ([ONE], [pod("odd", mem="1.5")]),
    "pods that ask for nothing of ours have no row": ([ONE], [NOTHING, asking("theirs", **{names.GPU: "1"})]),
    "rows are grouped by GPU and pending pods come last": (
        [aliyun_node()],
        [pod("z"), old("b", 1, 1), old("c", 0, 1), old("a", 1, 1)],
    ),
    "a whole GPU that has grown is held with all it has": ([our_node("node-a", 15360, 20480)], [TRAIN]),
    "a part of a GPU that nano-gpu gave counts as that part of its memory": (
        [ONE],
        [noted(asking("nano", **{names.GPU_PERCENT: "50"}), **NANO)],
    ),
    "a part that no one gave is pending as a part of the largest GPU": (
        [our_node("node-a", 10240, 20480)],
        [asking("waits", **{names.GPU_PERCENT: "50"})],
    ),
    "whole GPUs that the webhook has taken care of are pending": ([ONE], [TAKEN_CARE_OF]),
}


def told(nodes: list[Json], pods: list[Json]) -> list[str]:
    """All that a report has."""
    found = holders.build(nodes, pods)
    lines = [f"note: {note}" for note in found.notes]
    for row in found.nodes:
        lines.append(
            f"{row.name}: {row.used_mib} of {row.total_mib} MiB ({row.inventory.unit.name}), {row.pending_mib} pending"
        )
        lines += [f"GPU {x.gpu.label}: {x.used_mib} of {x.total_mib} MiB, {x.compute_percent} %" for x in row.gpus]
        lines += [f"pod {each.name}" for each in row.pods]
    return lines


@pytest.mark.parametrize("case", CASES)
def test_who_holds_what_is_told(case: str) -> None:
    assert told(*CASES[case]) == findings.golden("holders", case)


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


def test_compute_and_whole_gpus_follow_the_memory_in_a_table_of_their_own() -> None:
    pods = [bound("part", PART), bound("train", WHOLE)]
    found = holders.build([our_node("node-a", 15360, 15360)], pods)
    (node,) = inspect_command.as_value(found)["nodes"]
    parts, whole = [{"index": 0, **SHARED}], [{"index": 1, **WHOLLY}]
    assert [entry["gpus"] for entry in node["pods"]] == [parts, whole]
    assert [gpu | used == gpu for gpu, used in zip(node["gpus"], (SHARED, WHOLLY), strict=True)] == [True, True]
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
    # Details end with the same table.
    found = holders.build([our_node("node-a", 15360)], [bound("part", PART)])
    table = "NAME    GPU  Compute(Allocated)  Whole GPU Of\nnode-a  0    20%                 \n"
    assert inspect_command.detail(found).endswith(f"In Cluster:  3/15 (20%)  \n\n{table}")


def test_lists_are_read_page_by_page_and_of_pods_only_the_bound_ones() -> None:
    api = api_of([aliyun_node(f"n{i}") for i in range(1001)], [aliyun_pod(f"p{i}", gpu=0, mem=1) for i in range(501)])
    cluster = reading.on_nodes(api)
    assert (len(cluster.nodes), len(cluster.pods)) == (1001, 501)
    assert [call.path for call in api.calls] == ["/api/v1/nodes"] * 3 + ["/api/v1/pods"] * 2 + [reading.CONFIG_MAPS]
    assert {(call.verb, call.params["limit"]) for call in api.calls} == {("list", "500")}
    assert {call.params.get("fieldSelector") for call in api.calls if "pods" in call.path} == {"spec.nodeName!="}


def test_one_node_needs_no_list_of_nodes() -> None:
    api = api_of([aliyun_node("a"), aliyun_node("b")], [pod("x", on="a"), pod("y", on="b")])
    cluster = reading.on_nodes(api, "b")
    assert [call.path for call in api.calls] == ["/api/v1/nodes/b", "/api/v1/pods", reading.CONFIG_MAPS]
    assert [found["metadata"]["name"] for found in cluster.pods] == ["y"]


def test_pods_that_neither_ask_nor_hold_are_dropped() -> None:
    no_limit = our_pod("ours", "GPU-1", mib=1024)
    no_limit["spec"]["containers"] = [{"name": "main"}]
    ack = ack_pod("ack", '{"0":{"0":1}}', mem=1)
    ack["spec"]["containers"] = [{"name": "main"}]
    cluster = reading.on_nodes(api_of([], [make_pod(make_container(), node="node-a"), pod("gpu"), no_limit, ack]))
    assert [found["metadata"]["name"] for found in cluster.pods] == ["ack", "gpu", "ours"]


def test_a_list_that_expires_is_read_again_and_given_up_at_the_third_time() -> None:
    api = api_of([aliyun_node()])
    api.fail_next(lambda _: True, kube.GoneError("too old"), times=2)
    assert len(reading.on_nodes(api).nodes) == 1
    api.fail_next(lambda _: True, kube.GoneError("too old"), times=3)
    with pytest.raises(kube.GoneError):
        reading.on_nodes(api)


def test_config_maps_that_may_not_be_read_become_a_note(told: Told) -> None:
    api = api_of([aliyun_node()])
    api.fail_next(lambda call: call.path == reading.CONFIG_MAPS, kube.ForbiddenError("configmaps is forbidden"))
    cluster = reading.on_nodes(api)
    assert cluster.unhealthy == {}
    assert list(cluster.notes) == told()


NINE = [aliyun_pod("binpack-1-0", gpu=0, mem=6), aliyun_pod("jupyter-1", gpu=1, mem=3, namespace="team-a")]
OURS = [
    our_pod("binpack-1-0", "GPU-node-a-0", mib=6 * 1024),
    our_pod("jupyter-1", "GPU-node-a-1", mib=3 * 1024, namespace="team-a"),
]
T4 = 15 * 1024 + 300  # MiB; the part of a unit is not handed out


def summary(nodes: list[Json], pods: list[Json] | None = None) -> str:
    return inspect_command.summary(holders.build(nodes, pods or []))


def detail(nodes: list[Json], pods: list[Json] | None = None) -> str:
    return inspect_command.detail(holders.build(nodes, pods or []))


@pytest.mark.parametrize(("node", "pods"), [(aliyun_node(), NINE), (our_node("node-a", T4, T4), OURS)])
def test_summary_is_the_captured_one_with_a_pending_pod_or_without(node: Json, pods: list[Json]) -> None:
    assert summary([node], pods) == findings.file("summary.txt")
    assert summary([node], [*pods, pod("waiting", mem=5)]) == findings.file("summary-pending.txt")


@pytest.mark.parametrize(
    ("node", "pods"),
    [
        (aliyun_node(), [*NINE, ack_pod("multi-1", '{"0":{"0":4,"1":4}}', mem=8)]),
        (our_node("node-a", T4, T4), [*OURS, our_pod("multi-1", "GPU-node-a-0", "GPU-node-a-1", mib=4 * 1024)]),
    ],
)
def test_detail_with_a_pod_of_two_gpus_is_the_captured_one(node: Json, pods: list[Json]) -> None:
    assert detail([node], pods) == findings.file("detail.txt")


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


AWAITED = [pod("waiting", on="node-b", mem=5)]


@pytest.mark.parametrize(
    ("nodes", "pods", "unit", "rows"),
    [
        ([our_node("node-a", 15 * 1024, 80 * 1024)], [], "GiB", ["node-a 192.168.0.71 0/15 0/80 0/95"]),
        ([our_node("node-a", 141 * 1024, address=None)], [], "GiB", ["node-a unknown 0/141 0/141"]),
        (
            [our_node("a", T4), our_node("b", 1000, unit=MemoryUnit(256))],
            [our_pod("p", "GPU-b-0", mib=256, on="b")],
            "MiB",
            ["a 192.168.0.71 0/15360 0/15360", "b 192.168.0.71 256/768 256/768"],
        ),
        (
            [aliyun_node("node-a"), aliyun_node("node-b")],
            AWAITED,
            "GiB",
            ["node-a 192.168.0.71 0/15 0/15 0/30", "node-b 192.168.0.71 0/15 0/15 5 5/30"],
        ),
    ],
    ids=["own sizes", "an address that is not known", "different units", "pending on one node"],
)
def test_amounts_are_in_the_nodes_unit(nodes: list[Json], pods: list[Json], unit: str, rows: list[str]) -> None:
    header, *lines = summary(nodes, pods).split("\n")
    assert header.endswith(f"GPU Memory({unit})")
    assert [" ".join(line.split()) for line in lines[: len(rows)]] == rows


def test_details_of_pending_pods_stand_on_their_node_only_and_an_idle_first_node_has_ten_dashes() -> None:
    text = detail([aliyun_node("node-a"), aliyun_node("node-b")], AWAITED)
    assert text.count("Pending(Allocated)") == 1
    assert "waiting      default    0                0                5                   " in text
    assert [line for line in text.split("\n") if line.startswith("-")] == ["-" * 10, "-" * 10]


def test_a_node_that_lost_all_gpus_is_no_division_by_zero() -> None:
    lost = our_node("node-a")
    assert summary([lost]).endswith("0/0 (0%)  \n")
    assert "Allocated :  0 (0%)  " in detail([lost])
