"""Whatever the files of `simulate` and the objects of `explain` hold: an answer, or an error that says what is wrong.

The objects are right but for one or two places, so that every reader is reached.
"""

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushare import names
from gpushare.cluster import node_records
from gpushare.errors import SettingsError, WireError
from gpushare.model.request import Policy
from gpushare.wire import profile
from gpushare_cli import world, yamls
from gpushare_cli.explain import command, decide
from gpushare_cli.kube_scores import Rules
from gpushare_cli.reading import Objects, Settings
from gpushare_cli.simulate import objects, plan, question, render
from gpushare_cli.simulate.question import Profile
from gpushare_cli.simulate.render import Run
from gpushare_cli.simulate.scheduler import SchedulerConfig
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.explaining import config_map, copy
from testing.cli.podding import bound, mutated
from testing.cli.simulating import manifest, workload
from tests.property.test_odd_objects import amounts, anything, texts

readable = contextlib.suppress(WireError, SettingsError)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
PODS = {"topologyKey": "gpu", "namespaces": ["default"], "labelSelector": {"matchLabels": {"app": "web"}}}
AVOIDED = {"topologyKey": "gpu", "namespaceSelector": {}, "labelSelector": {"matchExpressions": []}}
EXPRESSION = {"key": "gpu", "operator": "In", "values": ["t4"]}


def rich_pod(name: str) -> Json:
    """A waiting pod with all that is ever read."""
    pod = mutated(
        make_pod(
            make_container("main", resources={"limits": {names.GPU_MEM: 2, names.GPU_CORE: 5}, "requests": {"cpu": 1}}),
            make_container("part", resources={"limits": {names.GPU_PERCENT: 10}}, ports=[{"hostPort": 1}]),
            init=[make_container("side", 1, restartPolicy="Always")],
            name=name,
            labels={"app": "web"},
            annotations={
                names.ANNOTATION_SAME_GPU: "app=web",
                names.ANNOTATION_MODEL: "T4",
                names.ANNOTATION_POLICY: "spread",
            },
        )
    )
    pod["metadata"] |= {"ownerReferences": [{"kind": "ReplicaSet", "name": "x-y", "uid": "u", "controller": True}]}
    pod["spec"] |= {
        "nodeSelector": {"gpu": "t4"},
        "tolerations": [{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [EXPRESSION], "matchFields": []}]},
                PREFERRED: [{"weight": 5, "preference": {"matchExpressions": [EXPRESSION]}}],
            },
            "podAffinity": {REQUIRED: [PODS], PREFERRED: [{"weight": 5, "podAffinityTerm": PODS}]},
            "podAntiAffinity": {REQUIRED: [AVOIDED]},
        },
        "volumes": [{"persistentVolumeClaim": {}}],
        "schedulingGates": [],
        "priority": 5,
    }
    pod["status"] |= {
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "full"}],
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "r", "message": "m"}}}],
    }
    return pod


def rich_node() -> Json:
    node = make_node(make_inventory(15, 10))
    node["metadata"] |= {"labels": {"gpu": "t4"}}
    node["metadata"]["annotations"][names.ANNOTATION_CORDON] = "1"
    node["spec"] = {"unschedulable": False, "taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
    node["status"]["allocatable"][names.GPU_PERCENT] = "200"
    return node


def old_node() -> Json:
    node = make_node(name="old")
    node["status"]["allocatable"] = {names.GPU_MEM: "30", names.GPU_COUNT: "2"}
    return node


def cluster_objects() -> list[Json]:
    """Objects that an API server may send."""
    alone = bound("alone", make_grant(0, gib=3))
    interop_pod = make_pod(name="legacy", node="old", phase="Running", annotations={names.ALIYUN_IDX: "0"})
    bypassed = mutated(make_pod(name="late", node="node-a"))
    marked = config_map("unhealthy-gpu-node-a", "kube-system", {"gpus": "0"})
    return [rich_node(), old_node(), alone, interop_pod, bypassed, rich_pod("waits"), marked]


def workload_objects() -> list[Json]:
    """Objects that a user may write."""
    template = {"metadata": {"labels": {"app": "web"}}, "spec": manifest(rich_pod("x"))["spec"]}
    made = [
        workload(kind, "w", copy(template), replicas=2, parallelism=2, completions=3, completionMode="Indexed")
        for kind in sorted(objects.WORKLOADS - {"CronJob"})
    ]
    cron = {"kind": "CronJob", "metadata": {"name": "w"}, "spec": {"jobTemplate": workload("Job", "w", copy(template))}}
    ordered = workload("StatefulSet", "o", copy(template), ordinals={"start": 1})
    return [*made, cron, ordered, manifest(rich_pod("new")), {"kind": "List", "items": [{"kind": "Service"}]}]


def paths(value: Any, start: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a value, but the value itself."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in entries for found in ((*start, key), *paths(inner, (*start, key)))]


@st.composite
def odd(draw: st.DrawFn, right: list[Json]) -> list[Json]:
    """The objects with one or two places that hold something else, or are gone."""
    found = copy({"items": right})["items"]
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from([path for path in paths(found) if len(path) > 1]))
        parent: Any = found
        with contextlib.suppress(LookupError, TypeError):
            for key in path[:-1]:
                parent = parent[key]
            if draw(st.booleans()) and isinstance(parent, dict):
                del parent[path[-1]]
            else:
                parent[path[-1]] = draw(anything | amounts | texts | st.sampled_from([-1, 0, 2**70, [], {}, ""]))
    return list(found)


@given(odd([*cluster_objects(), *workload_objects()]), st.booleans(), st.booleans())
def test_simulate_answers_or_says_what_is_wrong(found: list[Any], whole: bool, replay: bool) -> None:
    with readable:
        read = objects.collect([("f", found)])
        asked = question.prepare(read, None, None, whole_gpus=whole, replay=replay)
        config = SchedulerConfig(policy=Policy.BINPACK, rules=Rules(), weight=26)
        made = plan.run(asked, config, range(len(asked.pods)), lambda _: 0)
        runs = [Run.of("binpack", 1, made)]
        render.text(made, runs, asked.unit, 80, details=True)
        render.overlooked(made)
        render.as_json(made, runs, asked.unit, asked.notes)


@given(odd(cluster_objects()), st.integers(2, 5), st.booleans())
def test_explain_answers_or_says_what_is_wrong(found: list[Any], which: int, whole: bool) -> None:
    with readable:
        nodes, pods = tuple(found[:2]), tuple(found[2:6])
        around = Objects(nodes=nodes, pods=pods, unhealthy=node_records.unhealthy_by_node(found[6:]))
        said = decide.explain(pods[which - 2], world.of(around, Settings(whole_gpus=whole)))
        command.text(said, 80)
        command.as_json(said)


def test_the_objects_are_right_to_begin_with() -> None:
    read = objects.collect([("f", [*cluster_objects(), *workload_objects()])])
    asked = question.prepare(read, None, None, whole_gpus=True)

    assert len(asked.pods) == 16
    assert all(pod.request is not None for pod in asked.pods)


@given(st.text(max_size=40) | st.text("{}[]:-&*!|>#'\"\n \t,a1", max_size=60))
def test_any_text_is_values_or_an_error(text: str) -> None:
    with readable:
        objects.collect([("f", yamls.load_all(text, "f"))])


@given(anything, st.none() | st.integers(-1, 3))
def test_any_profile_is_nodes_or_an_error(document: Any, count: int | None) -> None:
    with readable:
        question.synthetic_nodes(Profile(document, "f", count), make_inventory(1).unit, ())
    with readable:
        profile.nodes(document)
