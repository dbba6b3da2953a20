"""Pod affinity and anti-affinity in `gpushare simulate`."""

from pathlib import Path
from typing import Any

import pytest

from testing.builders import Json
from testing.cli.simulating import listed, manifest, simulate
from tests.unit.gpushare_cli.test_simulate_scheduler import node, nodes_of, pod

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


def test_pods_that_avoid_each_other_go_to_different_nodes_and_then_nowhere(tmp_path: Path) -> None:
    pods = [social(f"p{i}", "podAntiAffinity", REQUIRED, term()) for i in range(3)]
    found = simulate(tmp_path, listed(node("node-a"), node("node-b")), *pods, as_json=True)
    where = nodes_of(found)
    assert {where["p0"], where["p1"], where["p2"]} == {"node-a", "node-b", None}
    assert where["p2"] is None
    assert found.value["summary"]["refused"] == {
        "pod affinity or topology spread, its own or that of pods there, keeps it away": 1
    }
    assert found.value["notes"] == []


def test_a_pod_that_is_avoided_by_one_that_is_there_stays_away(tmp_path: Path) -> None:
    there = social("there", "podAntiAffinity", REQUIRED, term("zone", app="batch"))
    there["metadata"] |= {"uid": "u", "namespace": "default"}
    there["spec"]["nodeName"] = "node-a"
    there["status"] = {"phase": "Running"}
    cluster = listed(zoned("node-a", "one"), zoned("node-b", "one"), zoned("node-c", "two"), there)
    batch = [
        manifest(pod(f"batch-{i}", labels={"app": "batch"}, namespace=space))
        for i, space in enumerate(("default", "ml"))
    ]
    assert nodes_of(simulate(tmp_path, cluster, batch[0], as_json=True)) == {"batch-0": "node-c"}
    seen = {
        nodes_of(simulate(tmp_path, cluster, batch[1], seeds=(seed,), as_json=True))["batch-1"] for seed in range(8)
    }
    assert len(seen) > 1  # of another namespace


@pytest.mark.parametrize(("app", "together"), [("web", True), ("other", False)])
def test_a_group_may_begin_anywhere_if_its_first_pod_is_one_of_it(tmp_path: Path, app: str, together: bool) -> None:
    pods = [social(f"p{i}", "podAffinity", REQUIRED, term(), app=app) for i in range(4)]
    where = nodes_of(simulate(tmp_path, listed(*(node(f"node-{i}") for i in range(4))), *pods, as_json=True))
    assert len(set(where.values())) == 1
    assert (None not in where.values()) == together


def test_preferences_count_in_both_directions(tmp_path: Path) -> None:
    cluster = listed(*(node(f"node-{i}") for i in range(6)))
    first = manifest(pod("first", labels={"app": "web"}))
    weighted = {"weight": 10, "podAffinityTerm": term()}
    near = [social(f"near-{i}", "podAffinity", PREFERRED, weighted, app="x") for i in range(3)]
    apart = [social(f"apart-{i}", "podAntiAffinity", PREFERRED, weighted, app="x") for i in range(3)]
    where = nodes_of(simulate(tmp_path, cluster, first, *near, as_json=True))
    assert set(where.values()) == {where["first"]}
    for seed in range(4):
        where = nodes_of(simulate(tmp_path, cluster, first, *apart, seeds=(seed,), as_json=True))
        assert list(where.values()).count(where["first"]) == 1
        where = nodes_of(simulate(tmp_path, cluster, apart[0], first, seeds=(seed,), as_json=True))
        assert where["apart-0"] != where["first"]


def test_selectors_and_namespaces_say_which_pods_are_meant(tmp_path: Path) -> None:
    cluster = listed(*(node(f"node-{i}") for i in range(6)))
    first = manifest(pod("first", labels={"app": "web"}, namespace="ml"))

    def follows(**changes: Any) -> bool:
        follower = social("p", "podAffinity", REQUIRED, {**term(), **changes}, app="x")
        return nodes_of(simulate(tmp_path, cluster, first, follower, as_json=True))["p"] is not None

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
    constraint = {"maxSkew": 1, "topologyKey": topology, "whenUnsatisfiable": when, "labelSelector": selector, **more}
    made["spec"]["topologySpreadConstraints"] = [constraint]
    return made


def test_a_required_constraint_keeps_the_skew_and_pods_waiting(tmp_path: Path) -> None:
    small = zoned("node-b", "two")
    small["status"]["allocatable"]["pods"] = "1"
    pods = [evenly(f"p{i}", "DoNotSchedule") for i in range(4)]
    found = simulate(tmp_path, listed(zoned("node-a", "one"), small, node("node-c")), *pods, as_json=True)
    where = list(nodes_of(found).values())
    assert (where.count("node-a"), where.count("node-b"), where.count(None)) == (2, 1, 1)  # node-c has no zone
    assert found.value["notes"] == []


@pytest.mark.parametrize(("minimum", "placed"), [(2, 4), (3, 2)])
def test_too_few_domains_count_as_an_empty_one_more(tmp_path: Path, minimum: int, placed: int) -> None:
    pods = [evenly(f"p{i}", "DoNotSchedule", minDomains=minimum) for i in range(4)]
    cluster = listed(zoned("node-a", "one"), zoned("node-b", "two"))
    where = nodes_of(simulate(tmp_path, cluster, *pods, as_json=True))
    assert sum(each is not None for each in where.values()) == placed


def test_nodes_that_a_pods_selector_does_not_mean_are_no_domains(tmp_path: Path) -> None:
    pods = [evenly(f"p{i}", "DoNotSchedule") for i in range(3)]
    for one in pods:
        one["spec"]["nodeSelector"] = {"zone": "one"}
    where = nodes_of(simulate(tmp_path, listed(zoned("node-a", "one"), zoned("node-b", "two")), *pods, as_json=True))
    assert set(where.values()) == {"node-a"}


def test_a_preferred_constraint_counts_more_than_free_cpu(tmp_path: Path) -> None:
    busy = manifest(pod("busy", cpu="2", memory="4Gi", node="node-b"))
    cluster = listed(zoned("node-a", "one"), zoned("node-b", "two"))
    for seed in range(4):
        where = nodes_of(
            simulate(
                tmp_path,
                cluster,
                busy,
                *(evenly(f"p{i}", "ScheduleAnyway") for i in range(4)),
                seeds=(seed,),
                as_json=True,
            )
        )
        assert sorted(str(where[f"p{i}"]) for i in range(4)) == ["node-a", "node-a", "node-b", "node-b"]
