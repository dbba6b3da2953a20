"""What `gpushare simulate` says about input that it cannot read, to the letter."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpushare import names
from gpushare.units import MemoryUnit
from gpushare_cli import __main__ as cli
from gpushare_cli.simulate.command import Order
from testing.builders import Json, make_container, make_inventory, make_node, make_pod
from testing.cli.podding import bound
from testing.cli.simulating import T4S, listed, manifest, simulate, workload

NODE = make_node(make_inventory(15))
LIMITS = "spec.containers[0].resources.limits"


def changed(value: Json, **fields: Any) -> Json:
    return {**value, **fields}


def cron_job(**spec: Any) -> Json:
    return {"kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": {"spec": spec}}}


LIMITS_3 = manifest(make_pod(make_container(resources={"limits": 3})))
UNHEALTHY_3 = {"kind": "ConfigMap", "metadata": {"name": "unhealthy-gpu-a", "namespace": "kube-system"}, "data": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", ": not YAML at line 2, column 1; check indentation and brackets"),
        ("", ": no object in it; expected manifests, or what kubectl get nodes,pods -A -o yaml prints"),
        ("---\n---\n", ": no object in it; expected manifests, or what kubectl get nodes,pods -A -o yaml prints"),
        ("hello", ": expected an object of Kubernetes, found a string"),
        ("42", ": expected an object of Kubernetes, found a number"),
        ("true", ": expected an object of Kubernetes, found true or false"),
        ("- kind: Pod", ": expected an object of Kubernetes, found a list"),
        ("kind: Service\n---\n7", ", document 2: expected an object of Kubernetes, found a number"),
        ("metadata: {name: x}", ": kind: missing; expected an object of Kubernetes"),
        ("kind: 3", ": kind: expected a string, found a number"),
        ("kind: ''", ": kind: expected a string, found an empty string"),
        (T4S, ": this looks like a profile of GPUs; give it with --profile"),
        ("kind: List", ": items: expected a list, found nothing"),
        ("{kind: PodList, items: {}}", ": items: expected a list, found an object"),
        ("{kind: List, items: [x]}", ", items[0]: expected an object of Kubernetes, found a string"),
        ("{kind: List, items: [{}]}", ", items[0]: kind: missing; expected an object of Kubernetes"),
        ("{kind: Pod}", ": Pod: metadata.name: expected a string, found nothing"),
        ("{kind: Pod, metadata: 3}", ": Pod: Pod.metadata: expected an object, found a number"),
        ("{kind: Pod, metadata: {name: [a]}}", ": Pod: metadata.name: expected a string, found a list"),
        (
            "{kind: NodeList, items: [{metadata: {}}]}",
            ", items[0]: Node: metadata.name: expected a string, found nothing",
        ),
        (
            "{kind: Pod, metadata: {name: p, annotations: {gpushare.dev/gpus: 2}}}",
            ": Pod: metadata.annotations[gpushare.dev/gpus]: expected a string, found a number; put it in quotes",
        ),
        (
            "{kind: Pod, metadata: {name: p, labels: {on-call: yes}}}",
            ": Pod: metadata.labels[on-call]: expected a string, found true or false; put it in quotes",
        ),
        ("{kind: Pod, metadata: {name: p}}", ": Pod default/p: spec.containers: missing"),
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: {}}}",
            ": Pod default/p: spec.containers: expected a list, found an object",
        ),
        (
            "{kind: Pod, metadata: {name: p, uid: u}, spec: {containers: {}}}",
            ": Pod default/p: spec.containers: expected a list, found an object",
        ),
        (
            "{kind: Pod, metadata: {name: p, uid: 7}}",
            ": Pod default/p: metadata.uid: expected a string, found a number",
        ),
    ],
)
def test_texts_that_are_no_objects(text: str, message: str) -> None:
    found = simulate(text, NODE)
    assert (found.code, found.out, found.err) == (1, "", f"error: 1.yaml{message}\n")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *(
            (value, f"{where}: expected a whole number, 0 or more, found {found}")
            for value, where, found in (
                (workload("Deployment", "web", replicas=-1), "Deployment default/web: spec.replicas", "-1"),
                (workload("ReplicaSet", "web", replicas="3"), "ReplicaSet default/web: spec.replicas", "a string"),
                (workload("StatefulSet", "s", replicas=True), "StatefulSet default/s: spec.replicas", "true or false"),
                (workload("Job", "j", parallelism=1.5), "Job default/j: spec.parallelism", "1.5"),
                (workload("Job", "j", completions=-2), "Job default/j: spec.completions", "-2"),
                (cron_job(completions="all"), "CronJob default/c: spec.jobTemplate.spec.completions", "a string"),
                (
                    workload("StatefulSet", "s", ordinals={"start": -1}),
                    "StatefulSet default/s: spec.ordinals.start",
                    "-1",
                ),
            )
        ),
        *(
            (value, f"{where}: expected an object, found {found}")
            for value, where, found in (
                (
                    workload("DaemonSet", "d", template={"spec": "x"}),
                    "DaemonSet default/d: spec.template.spec",
                    "a string",
                ),
                (changed(workload("Deployment", "web"), spec=[]), "Deployment default/web: Deployment.spec", "a list"),
                (LIMITS_3, "Pod default/pod: container.resources.limits", "a number"),
                (changed(NODE, spec=[]), "Node node-a: node.spec", "a list"),
                (changed(NODE, status={"allocatable": 3}), "Node node-a: status.allocatable", "a number"),
                (UNHEALTHY_3, "ConfigMap unhealthy-gpu-a.data", "a number"),
            )
        ),
        (
            workload("Deployment", "web", replicas=10**12),
            "Deployment default/web: 1000000000000 pods; at most 100000 can be simulated together; ask for fewer",
        ),
        (cron_job(), "CronJob default/c: spec.jobTemplate.spec.template.spec.containers: missing"),
        (workload("Deployment", "web", template={}), "Deployment default/web: spec.template.spec.containers: missing"),
        (workload("DaemonSet", "d", template={}), "DaemonSet default/d: spec.template.spec.containers: missing"),
        (
            workload("Deployment", "web", template={"metadata": {"labels": {"v": 1}}, "spec": {"containers": [{}]}}),
            "Deployment default/web: spec.template.metadata.labels[v]: expected a string, found a number;"
            " put it in quotes",
        ),
        (
            manifest(make_pod({"resources": {"limits": {names.GPU_MEM: 3}}})),
            "Pod default/pod: spec.containers[0].name: expected a string, found nothing",
        ),
        (changed(NODE, spec={"taints": [{}]}), "Node node-a: spec.taints[0].key: expected a string, found nothing"),
    ],
)
def test_objects_that_cannot_be_used(value: Json, message: str) -> None:
    others = [] if value["kind"] == "Node" else [NODE]
    found = simulate(value, *others)
    where = "" if value["kind"] == "ConfigMap" else "1.yaml: "
    assert (found.code, found.out, found.err) == (1, "", f"error: {where}{message}\n")


@pytest.mark.parametrize("path", ["spec.affinity", "spec.affinity.podAffinity", "spec.volumes"])
def test_a_field_of_the_spec_that_is_odd_is_named(path: str) -> None:
    odd = manifest(make_pod())
    odd["spec"] |= {"affinity": {"podAffinity": 3}} if path.endswith("podAffinity") else {path.partition(".")[2]: 3}
    assert f"{path}: expected a" in simulate(NODE, odd).err


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([NODE, NODE], "2.yaml: Node node-a is there already (1.yaml); rename or remove one"),
        (
            [listed(NODE, make_node(name="b"), NODE)],
            "1.yaml, items[2]: Node node-a is there already (1.yaml, items[0]); rename or remove one",
        ),
        (
            [NODE, make_pod(), manifest(make_pod())],
            "3.yaml: Pod default/pod is there already (2.yaml); rename or remove one",
        ),
        (
            [NODE, workload("Job", "a"), workload("Job", "a")],
            "3.yaml: Job default/a is there already (2.yaml); rename or remove one",
        ),
        (
            [NODE, make_pod(), changed(make_pod(), metadata={"name": "other", "uid": "uid-pod"})],
            "3.yaml: Pod default/other: metadata.uid: that of Pod default/pod, too; remove it",
        ),
        ([make_pod()], "no node in the input; add what kubectl get nodes,pods -A -o yaml prints, or give --profile"),
        (
            [NODE, workload("Deployment", "a", replicas=99_999), workload("Deployment", "b", replicas=2)],
            "3.yaml: Deployment default/b: 2 pods; at most 100000 can be simulated together; ask for fewer",
        ),
    ],
)
def test_objects_that_do_not_go_together(objects: list[Json], message: str) -> None:
    found = simulate(*objects)
    assert (found.code, found.out, found.err) == (1, "", f"error: {message}\n")


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("3", "expected an object, found a number"),
        ("{}", "gpus: expected a list, found nothing"),
        ("{gpus: []}", "gpus: 0 GPUs; a node has 1 to 64"),
        ("{gpus: [{model: T4, memoryMiB: 1, count: 65}]}", "gpus: 65 GPUs; a node has 1 to 64"),
        ("{gpus: [{memoryMiB: 1}]}", "gpus[0].model: expected a string, found nothing"),
        (
            "{gpus: [{model: T4, memoryMiB: 16GiB}]}",
            "gpus[0].memoryMiB: expected a whole number, 1 or more, found a string",
        ),
        (
            "{gpus: [{model: T4, memory: 1}]}",
            "gpus[0]: unknown field 'memory'; known are count, memoryMiB, mig, model, numa, reservedMiB, uuid",
        ),
        ("{nodes: [a]}", "nodes: expected an object, found a list"),
        ("kind: Pod", "unknown field 'kind'; known are faults, gpus, nodes, seed"),
        ("a: [", "not YAML at line 2, column 1; check indentation and brackets"),
        ("kind: ConfigMap", "unknown field 'kind'; known are faults, gpus, nodes, seed"),
        (
            json.dumps({"kind": "ConfigMap", "data": {"profile.yaml": "gpus: 3"}}),
            "gpus: expected a list, found a number",
        ),
    ],
)
def test_profiles_that_cannot_be_used(profile: str, message: str) -> None:
    found = simulate(profile=profile)
    assert (found.code, found.out, found.err) == (1, "", f"error: profile.yaml: {message}\n")


@pytest.mark.parametrize(
    ("objects", "options", "message"),
    [
        ([], {}, "nothing to simulate: give files with -f, or a cluster with --profile"),
        ([], {"nodes": 3}, "nothing to simulate: give files with -f, or a cluster with --profile"),
        (["-", "-"], {}, "- stands for the standard input, which can be read only once"),
        (
            [],
            {"profile": T4S, "replay": True, "order": Order.SHUFFLED},
            "--replay --order shuffled: replayed pods come when they were created; leave out --order",
        ),
        ([NODE], {"nodes": 2}, "--nodes 2: needs --profile, which says what GPUs they have"),
        ([], {"profile": T4S, "nodes": 0}, "--nodes 0: write at least 1"),
        ([], {"profile": T4S, "nodes": 5001}, "--nodes 5001: at most 5000 nodes can be made up"),
        (
            [],
            {
                "profile": "nodes: {a: {gpus: [{model: T, memoryMiB: 1}]}, b: {gpus: [{model: T, memoryMiB: 1}]}}",
                "nodes": 1,
            },
            "--nodes 1: the profile names 2 nodes: a, b",
        ),
        ([NODE], {"weight": 0}, "--weight 0: write a whole number from 1 to 10000"),
        ([NODE], {"others_weight": -3}, "--rank-others -3: write a whole number from 1 to 10000"),
    ],
)
def test_arguments_that_do_not_go_together_or_mean_nothing(
    objects: list[Json | str], options: Json, message: str
) -> None:
    found = simulate(*objects, **options)
    assert (found.code, found.out, found.err) == (2, "", f"error: {message}\n")


def test_nodes_in_different_units_need_the_clusters() -> None:
    nodes = listed(NODE, make_node(make_inventory(15, node="node-b", unit=MemoryUnit(1))))
    message = "--memory-unit: needed, because nodes count in different ones: node-a in GiB and node-b in MiB"
    assert simulate(nodes).err == f"error: {message}\n"
    found = simulate(nodes, manifest(make_pod(make_container(gpu_mem=20))), memory_unit=MemoryUnit(1024))
    assert "node-b counts aliyun.com/gpu-mem in MiB, the controller in GiB; give both the same memory unit" in found.out


def test_files_that_cannot_be_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    (tmp_path / "folder").mkdir()
    for name, problem in [
        ("latin.yaml", "no text (byte 3 is not UTF-8)"),
        ("folder", "Is a directory"),
        ("nothing", "No such file or directory"),
    ]:
        path = str(tmp_path / name)

        assert cli.main(["simulate", "-f", path]) == 1
        assert capsys.readouterr() == ("", f"error: {path}: {problem}\n")


@pytest.mark.parametrize("inventory", ["", "{}", "[1]", '{"version":1,"unitMiB":0,"gpus":[]}', "x"])
def test_an_unreadable_inventory_takes_no_pods_and_is_noted(inventory: str) -> None:
    node = make_node(name="node-x")
    node["metadata"]["annotations"] = {names.ANNOTATION_INVENTORY: inventory}
    found = simulate(node, manifest(make_pod()))
    assert found.code == 3
    assert found.err.startswith(
        "note: node node-x: takes no new pods: annotation gpushare.dev/inventory of node node-x: "
    )
    assert "waits: node-x has an inventory that cannot be read: " in found.out


def test_an_unreadable_allocation_keeps_new_pods_away() -> None:
    holder = bound("holder")
    holder["metadata"]["annotations"] = {names.ANNOTATION_ALLOCATION: "{}"}
    holder["spec"]["containers"] = [make_container(gpu_mem=3)]
    found = simulate(NODE, holder, manifest(make_pod(namespace="ml")))
    assert found.code == 3
    assert "counted by" not in found.err
    assert "node-a takes no new pods, because what default/holder holds there cannot be read: annotation" in found.out
