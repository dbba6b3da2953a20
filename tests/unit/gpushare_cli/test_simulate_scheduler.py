"""What of kube-scheduler `gpushare simulate` looks at: CPU, memory, other pods, chance, and orders."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpushare import names
from gpushare.model.request import Policy
from gpushare_cli.scheduler_config import ServerVersion
from gpushare_cli.simulate.command import Order
from testing.builders import Json, make_container, make_inventory, make_node, make_pod
from testing.cli.calling import Run
from testing.cli.simulating import Result, listed, manifest, simulate, where, workload

NONE = ("none",)


def node(name: str = "node-a", *gib: int, cpu: str = "8", memory: str = "32Gi", pods: str = "110") -> Json:
    made = make_node(make_inventory(*gib, node=name)) if gib else make_node(name=name)
    made["status"]["allocatable"] |= {"cpu": cpu, "memory": memory, "pods": pods}
    return made


def pod(name: str, gpu_mem: int = 0, cpu: str = "0", memory: str = "0", **more: Any) -> Json:
    limits = {names.GPU_MEM: gpu_mem} if gpu_mem else {}
    resources = {"limits": limits, "requests": {"cpu": cpu, "memory": memory}}
    return make_pod(make_container(resources=resources), name=name, **more)


def nodes_of(result: Result) -> dict[str, str | None]:
    return {each["name"]: each["node"] for each in result.value["pods"]}


def placed(*objects: Json, **options: Any) -> dict[str, str | None]:
    return nodes_of(simulate(*objects, as_json=True, **options))


def test_cpu_keeps_a_pod_away_and_strands_gpus() -> None:
    pods = [manifest(pod(name, 5, cpu="3")) for name in ("one", "two")]
    pods += [manifest(pod(name, 20)) for name in ("large", "huge")]
    found = simulate(node("node-a", 15, cpu="4"), *pods)
    value = simulate(node("node-a", 15, cpu="4"), *pods, policies=("binpack", "none"), as_json=True).value
    assert found.code == 3
    assert (
        "waits: node-a has room, but: Insufficient cpu: 3000m asked for, 4000m allocatable, 3000m requested by pods"
        " there" in found.details
    )
    assert list(value["summary"]["refused"].items()) == [("InsufficientGpuMemory", 2), ("Insufficient cpu", 1)]
    assert value["notes"] == []
    room = {"allocated": 0.333, "free": 0.667, "freeTooSmall": 0.0, "freeWithoutHost": 0.667}
    assert value["summary"]["gpus"] == [{"model": "Tesla T4", "gpus": 1, **room}]


def test_memory_and_the_number_of_pods_keep_a_pod_away() -> None:
    there = pod("there", node="node-a", phase="Running")
    little: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"memory": "1Gi"}, {"memory": "2Gi"}, "Insufficient memory: 2048Mi asked for, 1024Mi allocatable, 0Mi"),
        ({"pods": "1"}, {}, "Too many pods: 1 of 1 there"),
    ]
    for has, asks, message in little:
        found = simulate(listed(node("node-a", 15, **has), there, pod("x", namespace="ml", **asks)))
        assert message in found.details


def test_a_node_of_which_more_is_requested_than_it_has_takes_pods_that_request_none() -> None:
    there = pod("there", cpu="9", node="node-a", phase="Running")
    assert placed(listed(node("node-a", 15), there), manifest(pod("train", 5))) == {"train": "node-a"}


def test_pods_without_gpus_take_cpu_before_and_after() -> None:
    there = pod("there", cpu="4", node="node-a", phase="Running")
    found = simulate(
        listed(node("node-a", 15), there),
        *(manifest(pod(name, cpu="2", namespace="ml")) for name in ("web", "api")),
        manifest(pod("train", 5, cpu="1")),
        as_json=True,
    )
    assert nodes_of(found) == {"web": "node-a", "api": "node-a", "train": None}
    assert found.value["pods"][0]["containers"] == []
    line = simulate(node("cpu"), manifest(pod("web"))).details.splitlines()[1]
    assert line.split() == ["default/web", "cpu", "-", "-", "no", "GPU"]
    assert placed(listed(node("cpu"), pod("web", cpu="1", namespace="ml"))) == {"web": "cpu"}


def test_chance_among_equal_nodes_is_decided_by_the_seed() -> None:
    cluster = listed(*(node(f"node-{i}", 15) for i in range(8)))

    def chosen(seed: int, policies: Sequence[str]) -> str | None:
        return placed(cluster, manifest(pod("x", 5)), policies=policies, seeds=(seed,))["x"]

    assert len({chosen(seed, NONE) for seed in range(8)}) > 2
    assert chosen(3, NONE) == chosen(3, NONE)
    assert {chosen(seed, ("binpack",)) for seed in range(8)} == {"node-0"}


def test_several_policies_and_seeds_have_a_run_each_and_a_line_in_the_summary() -> None:
    arguments: dict[str, Any] = {"policies": ("dense", "spread", "none"), "seeds": (1, 2)}
    cluster = listed(node("node-a", 15, 15), node("node-b", 15))
    found = simulate(cluster, workload("ReplicaSet", "web", replicas=4), **arguments)
    runs = simulate(cluster, workload("ReplicaSet", "web", replicas=4), **arguments, as_json=True).value["runs"]
    assert {(run["placed"], run["allocatedPercent"]) for run in runs} == {(4, 26.67)}
    assert found.out.splitlines()[:2] == [
        "POLICY  SEEDS  PODS PLACED   GPU MEMORY     ASKED FOR",
        "dense   2      4 ± 0.0 of 4  26.7 ± 0.00 %  26.7 %",
    ]
    assert found.err.splitlines()[0] == "dense, seed 1: 4 pods on 2 nodes ..."


def test_pods_may_come_in_a_shuffled_order() -> None:
    pods = [manifest(pod(f"p{i}", 10)) for i in range(8)]

    def first(seed: int) -> list[str]:
        found = placed(node("node-a", 15), *pods, order=Order.SHUFFLED, seeds=(seed,))
        return [name for name, where in found.items() if where]

    assert len({tuple(first(seed)) for seed in range(6)}) > 1


def test_pods_may_come_in_the_order_of_their_creation() -> None:
    def waiting(name: str, created: str) -> Json:
        made = pod(name, 10, namespace="ml")
        made["metadata"]["creationTimestamp"] = created
        made["spec"]["priority"] = 100 if name == "urgent" else 0
        return made

    cluster = listed(
        node("node-a", 15), waiting("urgent", "2026-01-01T00:00:02Z"), waiting("early", "2026-01-01T00:00:01Z")
    )
    assert placed(cluster) == {"urgent": "node-a", "early": None}
    assert placed(cluster, order=Order.TIMESTAMPS) == {"urgent": None, "early": "node-a"}


def test_soft_taints_and_preferred_affinity_count() -> None:
    avoided, liked = node("node-a"), node("node-b")
    avoided["spec"] = {"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}
    assert placed(listed(avoided, liked), manifest(pod("x"))) == {"x": "node-b"}
    liked["metadata"].setdefault("labels", {})["disk"] = "fast"
    picky = manifest(pod("x"))
    preference = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}
    picky["spec"]["affinity"] = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": preference}]}
    }
    cluster = listed(*(node(f"node-{letter}") for letter in "acde"), liked)
    assert placed(cluster, picky) == {"x": "node-b"}


def test_free_cpu_ranks_nodes_for_pods_without_gpus_unless_the_controller_or_the_configuration_does() -> None:
    cluster = listed(
        node("node-a", 15, 15), node("node-b", cpu="10"), pod("there", cpu="2", node="node-b", phase="Running")
    )
    web = manifest(pod("web", cpu="1", memory="4Gi", namespace="ml"))
    assert placed(cluster, web) == {"web": "node-a"}
    assert placed(cluster, web, most_allocated=True) == {"web": "node-b"}
    assert placed(cluster, web, others_weight=9, policies=("dense",)) == {"web": "node-b"}


@pytest.mark.parametrize("policy", Policy)
def test_what_gpu_pods_need_ranks_nodes_for_pods_without_gpus_whatever_the_policy(policy: Policy) -> None:
    """node-a has more free CPU, and needs all of it for its GPUs, by what is typical of the pods that are there."""
    there = pod("there", 5, cpu="2", node="node-c", phase="Running")
    nodes = node("node-a", 15, 15, 15, 15, cpu="24"), node("node-b", 15, cpu="8"), node("node-c", 5, cpu="2")
    cluster, web = listed(*nodes, there), manifest(pod("web", cpu="2", namespace="ml"))
    assert placed(cluster, web, policies=(policy.value,))["web"] == "node-a"
    assert placed(cluster, web, policies=(policy.value,), others_weight=9)["web"] == "node-b"


def test_replicas_go_to_different_nodes_also_from_those_that_are_there() -> None:
    web = workload("Deployment", "web", replicas=3, template={"spec": {"containers": [{"name": "c"}]}})
    cluster = listed(*(node(f"node-{letter}") for letter in "abc"))
    assert set(placed(cluster, web, most_allocated=True).values()) == {"node-a", "node-b", "node-c"}
    there = [pod(f"web-{i}", node="node-a", phase="Running") for i in range(2)]
    new = pod("web-x", namespace="default")
    for one in (*there, new):
        one["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}]
    assert placed(listed(node("node-a"), node("node-b"), *there, new)) == {"web-x": "node-b"}


def ran(name: str, minute: int, minutes: int | None) -> Json:
    made = pod(name, 10, node="node-a", namespace="ml", phase="Succeeded" if minutes else "Running")
    made["metadata"]["creationTimestamp"] = f"2026-01-01T00:{minute:02}:00Z"
    if minutes:
        ends = [{"finishedAt": end} for end in (None, f"2026-01-01T00:{minute + minutes:02}:00Z")]
        made["status"] |= {
            "startTime": f"2026-01-01T00:{minute:02}:00Z",
            "containerStatuses": [{"name": "main", "state": {"terminated": end}} for end in ends],
        }
    return made


def test_a_replay_places_what_a_cluster_had_again_for_as_long_as_it_ran() -> None:
    daemon = pod("daemon", cpu="1", node="node-a", phase="Running")
    daemon["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]
    cluster = listed(node("node-a", 15), daemon, ran("c", 20, 10), ran("a", 0, 10), ran("b", 5, 10), ran("d", 25, None))
    found = simulate(cluster, replay=True, as_json=True)
    assert nodes_of(found) == {"a": "node-a", "b": "node-a", "c": "node-a", "d": None}
    assert found.value["summary"]["usedMiB"] == 10 * 1024
    # Who has ended is avoided no more.
    pods = [ran(name, minute, 10) for name, minute in (("first", 0), ("second", 20))]
    for one in pods:
        one["metadata"]["labels"] = {"app": "web"}
        one["spec"]["affinity"] = {"podAntiAffinity": {REQUIRED: [term()]}}
    assert placed(listed(node("node-a", 15), *pods), replay=True) == {"first": "node-a", "second": "node-a"}


def test_a_plot_has_a_line_for_each_policy_over_load_or_where_pods_end_over_hours(tmp_path: Path) -> None:
    drawn = tmp_path / "plot.svg"
    simulate(
        listed(node("node-a", 15, 15), node("node-b", 15)),
        workload("ReplicaSet", "web", replicas=20),
        policies=("dense", "none"),
        seeds=(1, 2),
        plot=str(drawn),
    )
    text = drawn.read_text(encoding="utf-8")
    assert "At the end: dense 100.0 %; none 100.0 %." in text
    assert "asked for by pods, % of all GPU memory" in text
    cluster = listed(node("node-a", 15), ran("stays", 0, None), ran("ends", 30, 10))
    simulate(cluster, manifest(pod("new", 1)), replay=True, plot=str(drawn))
    text = drawn.read_text(encoding="utf-8")
    assert "hours since the first pod" in text
    (points,) = re.findall(r'id="line-0">\s*<path d="M([^"]*)"', text)
    first, second, new = (float(point.split()[0]) for point in points.split("L"))
    assert first < second == new


def test_a_plot_that_cannot_be_written_is_an_error_without_a_directory_before_files_are_read(tmp_path: Path) -> None:
    found = simulate(node("node-a", 15), manifest(pod("x", 1)), plot=str(tmp_path))
    assert (found.code, found.err.replace(str(tmp_path), "FOLDER")) == (1, "error: FOLDER: Is a directory\n")
    found = simulate("[", plot=str(tmp_path / "no" / "plot.svg"))
    assert (found.code, found.err) == (
        2,
        f"error: --plot {tmp_path}/no/plot.svg: there is no such directory; make it first\n",
    )
    gated = manifest(pod("x", 1))
    gated["spec"]["schedulingGates"] = [{"name": "quota"}]
    for pods in [], [gated]:
        found = simulate(node("node-a", 15), *pods, plot=str(tmp_path / "plot.svg"))
        assert found.code == 2
        assert found.err.startswith("error: --plot: there is no pod to place, so nothing to draw; ")


def test_a_time_of_a_replay_that_is_none_is_named() -> None:
    whole = json.dumps(ran("x", 7, 2))
    for minute, path in ("07", "metadata.creationTimestamp"), ("09", "status.containerStatuses.finishedAt"):
        found = simulate(node("node-a", 15), whole.replace(f"2026-01-01T00:{minute}:00Z", "today"), replay=True)
        assert f"2.yaml: Pod ml/x: {path}: expected a time such as 2026-01-31T12:00:00Z, found 'today'" in found.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "best"], "--policy 'best': 'best' is no policy; write some of binpack, spread, dense, fgd, none"),
        (["--policy", ""], "--policy '': '' is no policy; write some of binpack, spread, dense, fgd, none"),
        (["--seeds", "1-x"], "--seeds 1-x: write numbers, such as 1-5 or 1,2,9"),
        (["--seeds", "5-1"], "--seeds 5-1: write 1 to 100 numbers"),
        (["--seeds", f"1-{10**20}"], f"--seeds 1-{10**20}: write 1 to 100 numbers"),
    ],
)
def test_policies_and_seeds_that_are_none(arguments: Sequence[str], message: str, run: Run) -> None:
    assert run("simulate", *arguments)[::2] == (2, f"error: {message}\n")


def test_the_policy_of_a_namespace_is_that_of_its_pods_that_name_none() -> None:
    namespace = {"kind": "Namespace", "metadata": {"name": "ml", "labels": {names.ANNOTATION_POLICY: "spread"}}}
    cluster = listed(node("node-a", 15, 15), namespace, {"kind": "Namespace", "metadata": {"name": "plain"}})
    named = {names.ANNOTATION_POLICY: "binpack"}
    pods = [pod(f"p{i}", 3 + i, namespace="ml") for i in range(2)] + [pod("own", 3, namespace="ml", annotations=named)]
    found = simulate(cluster, *map(manifest, pods), as_json=True)
    assert [each[2] for each in where(found)] == [[[0]], [[1]], [[1]]]
    assert found.value["notes"] == []


@pytest.mark.parametrize(
    ("versions", "given", "chosen"),
    [
        ((), None, "node-a"),
        (("v1.35.2", "v1.20.15"), None, "node-b"),
        (("v1.36.1", "v1.20.15"), None, "node-a"),
        (("odd",), None, "node-a"),
        (("v1.36.1",), "1.35", "node-b"),
    ],
)
def test_the_scores_are_those_of_the_newest_kubelet_unless_a_version_is_given(
    versions: Sequence[str], given: str | None, chosen: str
) -> None:
    """Node-a is fuller, and gets more even by the pod; node-b is even, and stays so."""
    busy = [pod(f"busy-{i}", node=f"node-{letter}", phase="Running", **asks) for i, (letter, asks) in enumerate(LOADS)]
    nodes = [node("node-a", cpu="10", memory="10Gi"), node("node-b", cpu="10", memory="10Gi"), node("node-c", cpu="0")]
    for one, version in zip(nodes, versions, strict=False):
        one["status"]["nodeInfo"] = {"kubeletVersion": version}
    server: dict[str, Any] = {"server": ServerVersion.parse(given)} if given else {}
    web = manifest(pod("web", cpu="2", memory="0", namespace="ml"))
    assert placed(listed(*nodes, *busy), web, **server) == {"web": chosen}


LOADS: Sequence[tuple[str, dict[str, Any]]] = (("a", {"memory": "5Gi"}), ("b", {"cpu": "2", "memory": "2Gi"}))


HOST = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def zoned(name: str, zone: str) -> Json:
    made = node(name)
    made["metadata"]["labels"] = {"zone": zone}
    return made


def term(topology: str = HOST, app: str = "web", **more: Any) -> Json:
    return {"topologyKey": topology, "labelSelector": {"matchLabels": {"app": app}}, **more}


def social(name: str, kind: str, when: str, *terms: Json, app: str = "web", **more: Any) -> Json:
    made = manifest(pod(name, labels={"app": app}, **more))
    made["spec"]["affinity"] = {kind: {when: list(terms)}}
    return made


def test_pods_that_avoid_each_other_go_to_different_nodes_and_then_nowhere() -> None:
    pods = [social(f"p{i}", "podAntiAffinity", REQUIRED, term()) for i in range(3)]
    found = simulate(listed(node("node-a"), node("node-b")), *pods, as_json=True)
    where = nodes_of(found)
    assert {where["p0"], where["p1"], where["p2"]} == {"node-a", "node-b", None}
    assert where["p2"] is None
    assert found.value["summary"]["refused"] == {
        "pod affinity or topology spread, its own or that of pods there, keeps it away": 1
    }
    assert found.value["notes"] == []


def test_a_pod_that_is_avoided_by_one_that_is_there_stays_away() -> None:
    there = social("there", "podAntiAffinity", REQUIRED, term("zone", app="batch"))
    there["metadata"] |= {"uid": "u", "namespace": "default"}
    there["spec"]["nodeName"] = "node-a"
    there["status"] = {"phase": "Running"}
    cluster = listed(zoned("node-a", "one"), zoned("node-b", "one"), zoned("node-c", "two"), there)
    batch = [
        manifest(pod(f"batch-{i}", labels={"app": "batch"}, namespace=space))
        for i, space in enumerate(("default", "ml"))
    ]
    assert placed(cluster, batch[0]) == {"batch-0": "node-c"}
    seen = {placed(cluster, batch[1], seeds=(seed,))["batch-1"] for seed in range(8)}
    assert len(seen) > 1  # of another namespace


def test_a_group_may_begin_anywhere_if_its_first_pod_is_one_of_it() -> None:
    for app, together in ("web", True), ("other", False):
        pods = [social(f"p{i}", "podAffinity", REQUIRED, term(), app=app) for i in range(4)]
        where = placed(listed(*(node(f"node-{i}") for i in range(4))), *pods)
        assert len(set(where.values())) == 1
        assert (None not in where.values()) == together


def test_preferences_count_in_both_directions() -> None:
    cluster = listed(*(node(f"node-{i}") for i in range(6)))
    first = manifest(pod("first", labels={"app": "web"}))
    weighted = {"weight": 10, "podAffinityTerm": term()}
    near = [social(f"near-{i}", "podAffinity", PREFERRED, weighted, app="x") for i in range(3)]
    nowhere = social("x", "podAffinity", PREFERRED, {"weight": 10, "podAffinityTerm": term("zone")})
    assert placed(cluster, first, nowhere)["x"], "no node has such a label, and none needs it"
    apart = [social(f"apart-{i}", "podAntiAffinity", PREFERRED, weighted, app="x") for i in range(3)]
    where = placed(cluster, first, *near)
    assert set(where.values()) == {where["first"]}
    for seed in range(4):
        where = placed(cluster, first, *apart, seeds=(seed,))
        assert list(where.values()).count(where["first"]) == 1
        where = placed(cluster, apart[0], first, seeds=(seed,))
        assert where["apart-0"] != where["first"]


def test_selectors_and_namespaces_say_which_pods_are_meant() -> None:
    cluster = listed(*(node(f"node-{i}") for i in range(6)))
    first = manifest(pod("first", labels={"app": "web"}, namespace="ml"))

    def follows(**changes: Any) -> bool:
        follower = social("p", "podAffinity", REQUIRED, {**term(), **changes}, app="x")
        return placed(cluster, first, follower)["p"] is not None

    assert not follows()
    assert follows(namespaces=["ml"])
    assert follows(namespaceSelector={})
    assert not follows(namespaces=["ml"], labelSelector=None)
    assert follows(namespaces=["ml"], labelSelector={})
    expression = {"key": "app", "operator": "In", "values": ["web", "api"]}
    assert follows(namespaces=["ml"], labelSelector={"matchExpressions": [expression]})
    assert not follows(namespaces=["ml"], topologyKey="zone")


def evenly(name: str, when: str, topology: str = "zone", **more: Any) -> Json:
    made = manifest(pod(name, labels={"app": "web"}))
    selector = {"matchLabels": {"app": "web"}}
    constraint = {"topologyKey": topology, "whenUnsatisfiable": when, "labelSelector": selector, **more}
    made["spec"]["topologySpreadConstraints"] = [constraint]
    return made


def test_a_required_constraint_keeps_the_skew_and_pods_waiting() -> None:
    small = zoned("node-b", "two")
    small["status"]["allocatable"]["pods"] = "1"
    pods = [evenly(f"p{i}", "DoNotSchedule", maxSkew=2) for i in range(5)]
    pods.append(evenly("nowhere", "DoNotSchedule", "rack"))
    found = simulate(listed(zoned("node-a", "one"), small, node("node-c")), *pods, as_json=True)
    where = list(nodes_of(found).values())
    assert (where.count("node-a"), where.count("node-b"), where.count(None)) == (3, 1, 2)  # node-c has no zone
    assert found.value["notes"] == []


def test_too_few_domains_count_as_an_empty_one_more_and_nodes_that_a_selector_does_not_mean_are_none() -> None:
    cluster = listed(zoned("node-a", "one"), zoned("node-b", "two"))
    for minimum, count in (2, 4), (3, 2):
        pods = [evenly(f"p{i}", "DoNotSchedule", minDomains=minimum) for i in range(4)]
        where = placed(cluster, *pods)
        assert sum(each is not None for each in where.values()) == count
    pods = [evenly(f"p{i}", "DoNotSchedule") for i in range(3)]
    for one in pods:
        one["spec"]["nodeSelector"] = {"zone": "one"}
    assert set(placed(cluster, *pods).values()) == {"node-a"}


def test_a_preferred_constraint_counts_more_than_free_cpu() -> None:
    busy = manifest(pod("busy", cpu="2", memory="4Gi", node="node-b"))
    cluster = listed(zoned("node-a", "one"), zoned("node-b", "two"))
    pods = [*(evenly(f"p{i}", "ScheduleAnyway") for i in range(4)), evenly("other", "ScheduleAnyway", "rack")]
    for seed in range(4):
        where = placed(cluster, busy, *pods, seeds=(seed,))
        assert where["other"] is not None, "no node has such a label, and none needs it"
        assert sorted(str(where[f"p{i}"]) for i in range(4)) == ["node-a", "node-a", "node-b", "node-b"]
