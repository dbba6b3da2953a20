"""What the API server refuses by itself: a device plugin that writes more than the GPUs of its own node."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gpushare import names
from testing.manifests import tree
from testing.manifests.tree import Json
from tests.manifests import cel

NEW = tree.objects("servers/1.30")
POLICY = tree.one(NEW, "ValidatingAdmissionPolicy", names.NODES_POLICY)["spec"]
OTHERS = "a device plugin may change only the Node that its own pod runs on, with the token that its pod was given"
MORE = (
    f"a device plugin may change nothing of a Node but the annotation {names.ANNOTATION_INVENTORY} and the amounts of"
    f" {names.GPU_COUNT} and {names.GPU_CORE}"
)
PLUGIN = f"system:serviceaccount:{names.NAMESPACE}:{names.PLUGIN}"
NODE_NAME = "authentication.kubernetes.io/node-name"
Change = Callable[[Json], object]


def node() -> Json:
    return {
        "metadata": {"name": "node-a", "annotations": {"x": "y"}, "labels": {"zone": "1"}},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": {"cpu": "4", names.GPU_MEM: "60"},
            "allocatable": {"cpu": "4"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.36.2"},
        },
    }


def refusals(change: Change, *, user: str = PLUGIN, extra: Any = None) -> list[str]:
    old = node()
    new = copy.deepcopy(old)
    change(new)
    info = {"username": user, "extra": {NODE_NAME: ["node-a"]} if extra is None else extra}
    if extra == {}:
        del info["extra"]
    return cel.refusals(POLICY, {"object": new, "oldObject": old, "request": {"userInfo": info, "operation": "UPDATE"}})


def notes(**values: str) -> Change:
    return lambda new: new["metadata"]["annotations"].update(values)


def status(field: str, value: Any) -> Change:
    return lambda new: new["status"].update({field: value})


INVENTORY = notes(**{names.ANNOTATION_INVENTORY: "{}"})
AMOUNTS = {names.GPU_COUNT: "4", names.GPU_CORE: "400"}


def publish(new: Json) -> None:
    for field in ("capacity", "allocatable"):
        new["status"][field] = {**new["status"][field], **AMOUNTS}


def test_every_change_of_a_node_by_a_plugin_is_looked_at() -> None:
    [rule] = POLICY["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["UPDATE"], ["nodes", "nodes/status"])
    assert POLICY["failurePolicy"] == "Fail"
    assert {each.get("reason") for each in POLICY["validations"]} == {"Forbidden"}
    binding = tree.one(NEW, "ValidatingAdmissionPolicyBinding", names.NODES_POLICY)["spec"]
    assert binding == {"policyName": names.NODES_POLICY, "validationActions": ["Deny"]}


@pytest.mark.parametrize("change", [INVENTORY, publish, notes()])
def test_a_plugin_publishes_the_gpus_of_its_own_node(change: Change) -> None:
    assert refusals(change) == []


@pytest.mark.parametrize("extra", [{NODE_NAME: ["node-b"]}, {NODE_NAME: []}, {}, {"x": ["node-a"]}])
def test_of_no_other_node_and_with_no_token_that_names_none(extra: Any) -> None:
    for change in (INVENTORY, publish):
        assert refusals(change, extra=extra) == [OTHERS]


def drop(*path: str) -> Change:
    def change(new: Json) -> None:
        for key in path[:-1]:
            new = new[key]
        del new[path[-1]]

    return change


@pytest.mark.parametrize(
    "change",
    [
        notes(x="z"),
        notes(**{names.ANNOTATION_CORDON: "0"}),
        drop("metadata", "annotations", "x"),
        lambda new: new["metadata"].update(labels={"zone": "2"}),
        drop("metadata", "labels"),
        lambda new: new["metadata"].update(finalizers=["a/b"]),
        lambda new: new["metadata"].update(ownerReferences=[{"uid": "1"}]),
        lambda new: new["spec"].update(taints=[{"key": "x", "effect": "NoSchedule"}]),
        lambda new: new["spec"].update(unschedulable=True),
        status("capacity", {"cpu": "400", names.GPU_MEM: "60"}),
        status("capacity", {"cpu": "4"}),
        status("allocatable", {"cpu": "4", names.GPU: "8"}),
        status("allocatable", {}),
        *(
            status(field, ["x"])
            for field in (
                *("addresses", "conditions", "config", "daemonEndpoints", "declaredFeatures", "features", "images"),
                *("nodeInfo", "phase", "runtimeHandlers", "volumesAttached", "volumesInUse"),
            )
        ),
    ],
)
def test_nothing_else_of_it(change: Change) -> None:
    assert refusals(change) == [MORE]


def test_everybody_else_is_a_matter_of_rights() -> None:
    for user in ("system:node:node-b", "admin", f"system:serviceaccount:other:{names.PLUGIN}"):
        assert refusals(notes(x="z"), user=user, extra={NODE_NAME: ["node-b"]}) == []
