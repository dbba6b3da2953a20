"""What `gpushare simulate` makes of pods that are on a node and were given no GPUs."""

from pathlib import Path

import pytest

from gpushare import names
from testing.builders import make_container, make_inventory, make_node, make_pod
from testing.cli.podding import mutated
from testing.cli.simulating import listed, simulate, where

NODES = listed(make_node(make_inventory(15, 15)), make_node(make_inventory(15, node="node-b")))


def test_a_pod_on_a_node_without_gpus_gets_them_there_before_all_others(tmp_path: Path) -> None:
    bypassed = mutated(make_pod(make_container(gpu_mem=10), name="late", node="node-b"))
    foreign = make_pod(make_container(gpu_mem=1), name="foreign", node="node-b", namespace="ml")
    found = simulate(
        tmp_path, NODES, make_pod(make_container(gpu_mem=10), name="first"), bypassed, foreign, as_json=True
    )
    assert where(found) == [("late", "node-b", [[0]]), ("foreign", None, []), ("first", "node-a", [[0]])]
    assert found.value["pods"][1]["message"] == (
        "the webhook did not change it, so its containers would not see GPUs that they are given; delete it and create"
        " it again"
    )


def test_a_controllers_pod_that_the_webhook_did_not_change_is_recreated_by_the_controller(tmp_path: Path) -> None:
    pod = make_pod(make_container(gpu_mem=1), node="node-b")
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}]
    (row,) = simulate(tmp_path, NODES, pod, as_json=True).value["pods"]
    assert row["message"] == (
        "the webhook did not change it, so its containers would not see GPUs that they are given; the controller"
        " deletes it, so that its owner recreates it"
    )


@pytest.mark.parametrize(("container", "placed"), [("main", None), ("log", "node-b")])
def test_a_pod_whose_gpu_container_has_started_without_gpus_gets_none(
    tmp_path: Path, container: str, placed: str | None
) -> None:
    bypassed = mutated(make_pod(make_container(gpu_mem=10), name="late", node="node-b"))
    bypassed["status"] = {"phase": "Running", "containerStatuses": [{"name": container, "state": {"running": {}}}]}
    (row,) = simulate(tmp_path, NODES, bypassed, as_json=True).value["pods"]
    assert row["node"] == placed
    if placed is None:
        assert row["message"] == (
            "its containers have started without GPUs from gpushare, and cannot be given any more; delete it and create"
            " it again without spec.nodeName and with the scheduler gpushare-scheduler"
        )


def test_a_pod_of_another_plugin_on_a_node_of_its_own_is_left_out(tmp_path: Path) -> None:
    whole = make_container(resources={"limits": {names.GPU: 1}})
    theirs = make_pod(whole, name="theirs", node="plain", phase="Running")
    ours = mutated(make_pod(make_container(gpu_mem=1), name="ours", node="plain"))
    found = simulate(tmp_path, NODES, make_node(name="plain"), theirs, ours, whole_gpus=True, as_json=True)
    assert [row["name"] for row in found.value["pods"]] == ["ours"]
