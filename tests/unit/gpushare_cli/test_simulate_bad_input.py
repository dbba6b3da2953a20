"""What `gpushare simulate` says about input that it cannot read, to the letter."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare import names
from gpushare.units import MemoryUnit
from gpushare_cli import __main__ as cli
from gpushare_cli.simulate.command import Order
from testing.builders import Json, make_container, make_inventory, make_node, make_pod
from testing.cli.podding import bound
from testing.cli.simulating import T4S, Result, listed, manifest, simulate, workload
from tests.unit.gpushare_cli.findings import golden

NODE = make_node(make_inventory(15))


def changed(value: Json, **fields: Any) -> Json:
    return {**value, **fields}


def cron_job(**spec: Any) -> Json:
    return {"kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": {"spec": spec}}}


def numbers() -> list[Result]:
    """Where a whole number is expected."""
    values = [
        workload("Deployment", "web", replicas=-1),
        workload("ReplicaSet", "web", replicas="3"),
        workload("StatefulSet", "s", replicas=True),
        workload("StatefulSet", "s", ordinals={"start": -1}),
        workload("Job", "j", parallelism=1.5),
        workload("Job", "j", completions=-2),
        cron_job(completions="all"),
        workload("Deployment", "web", replicas=10**12),
        workload("Deployment", "web", replicas=10**12, template={}),  # none is made
    ]
    return [simulate(value, NODE) for value in values]


def objects() -> list[Result]:
    """Where an object, or a part of it, is expected."""
    limits = manifest(make_pod(make_container(resources={"limits": 3})))
    metadata = {"name": "unhealthy-gpu-a", "namespace": "kube-system"}
    labelled = {"metadata": {"labels": {"v": 1}}, "spec": {"containers": [{}]}}
    values = [
        workload("DaemonSet", "d", template={"spec": "x"}),
        changed(workload("Deployment", "web"), spec=[]),
        limits,
        {"kind": "ConfigMap", "metadata": metadata, "data": 3},
        cron_job(),
        *(workload(kind, "d", template={}) for kind in ("Deployment", "DaemonSet")),
        workload("Deployment", "web", template=labelled),
        manifest(make_pod({"resources": {"limits": {names.GPU_MEM: 3}}})),
    ]
    nodes: list[Json] = [{"spec": []}, {"status": {"allocatable": 3}}, {"spec": {"taints": [{}]}}]
    return [*(simulate(value, NODE) for value in values), *(simulate(changed(NODE, **odd)) for odd in nodes)]


def together() -> list[Result]:
    """Objects that do not go together."""
    job, same_uid = workload("Job", "a"), changed(make_pod(), metadata={"name": "other", "uid": "uid-pod"})
    many = workload("Deployment", "a", replicas=99_999), workload("Deployment", "b", replicas=2)
    return [
        simulate(NODE, NODE),
        simulate(listed(NODE, make_node(name="b"), NODE)),
        simulate(NODE, make_pod(), manifest(make_pod())),
        simulate(NODE, job, job),
        simulate(NODE, make_pod(), same_uid),
        simulate(make_pod()),
        simulate(NODE, *many),
    ]


def arguments() -> list[Result]:
    """Arguments that do not go together or mean nothing."""
    two = "nodes: {a: {gpus: [{model: T, memoryMiB: 1}]}, b: {gpus: [{model: T, memoryMiB: 1}]}}"
    return [
        simulate(),
        simulate(nodes=3),
        simulate("-", "-"),
        simulate(profile=T4S, replay=True, order=Order.SHUFFLED),
        simulate(NODE, nodes=2),
        simulate(profile=T4S, nodes=0),
        simulate(profile=T4S, nodes=5001),
        simulate(profile=two, nodes=1),
        simulate(NODE, weight=0),
        simulate(NODE, others_weight=-3),
    ]


@pytest.mark.parametrize("runs", [numbers, objects, together, arguments])
def test_what_cannot_be_used_is_named_and_nothing_is_printed(runs: Callable[[], list[Result]]) -> None:
    assert [line for run in runs() for line in run.lines] == golden("simulate", runs.__name__)


@pytest.mark.parametrize("case", golden("simulate", "texts"))
def test_texts_that_are_no_objects(case: str) -> None:
    text, _, message = case.partition(" => ")
    assert simulate(json.loads(text), NODE).lines == ["exit code 1", f"error: 1.yaml{message}"]


@pytest.mark.parametrize("case", golden("simulate", "profiles"))
def test_profiles_that_cannot_be_used(case: str) -> None:
    text, _, message = case.partition(" => ")
    assert simulate(profile=json.loads(text)).lines == ["exit code 1", f"error: profile.yaml: {message}"]


@pytest.mark.parametrize("path", ["spec.affinity", "spec.affinity.podAffinity", "spec.volumes"])
def test_a_field_of_the_spec_that_is_odd_is_named(path: str) -> None:
    odd = manifest(make_pod())
    odd["spec"] |= {"affinity": {"podAffinity": 3}} if path.endswith("podAffinity") else {path.partition(".")[2]: 3}
    assert f"{path}: expected a" in simulate(NODE, odd).err


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
