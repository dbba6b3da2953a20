"""What the API server refuses by itself: a device plugin that writes more than the GPUs of its own node."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.client import RestClient
from tests.apiserver.policies import MINE, OTHER, Plugins
from tests.apiserver.server import Json, Server, refusal, refused_by

POLICY: Final = names.NODES_POLICY
OTHERS = "a device plugin may change only the Node that its own pod runs on, with the token that its pod was given"
MORE = (
    f"a device plugin may change nothing of a Node but the annotation {names.ANNOTATION_INVENTORY} and the amounts of"
    f" {names.GPU_COUNT} and {names.GPU_CORE}"
)
INVENTORY: Final[Json] = {"metadata": {"annotations": {names.ANNOTATION_INVENTORY: "{}"}}}
AMOUNTS: Final = {names.GPU_COUNT: "4", names.GPU_CORE: "400"}
PUBLISH: Final[Json] = {"status": {"capacity": AMOUNTS, "allocatable": AMOUNTS}}


def patch(client: RestClient, node: str, body: Json) -> object:
    path = kube.node_path(node, "status" if "status" in body else "")
    return client.patch(path, body, params={"dryRun": "All"})


@pytest.mark.parametrize("body", [INVENTORY, PUBLISH, {}], ids=["inventory", "amounts", "nothing"])
def test_a_plugin_publishes_the_gpus_of_its_own_node(plugins: Plugins, body: Json) -> None:
    patch(plugins.of_its_pod, MINE, body)


@pytest.mark.parametrize("body", [INVENTORY, PUBLISH], ids=["inventory", "amounts"])
def test_of_no_other_node_and_with_no_token_that_names_none(plugins: Plugins, body: Json) -> None:
    assert OTHERS in refused_by(POLICY, lambda: patch(plugins.of_its_pod, OTHER, body))
    assert OTHERS in refused_by(POLICY, lambda: patch(plugins.of_no_pod, MINE, body))


def metadata(**fields: Any) -> Json:
    return {"metadata": fields}


OWNER = {"apiVersion": "v1", "kind": "Node", "name": OTHER, "uid": "1"}
CHANGES: Final[Mapping[str, Json]] = {
    "annotation": metadata(annotations={"x": "z"}),
    "cordon": metadata(annotations={names.ANNOTATION_CORDON: "0"}),
    "no-annotation": metadata(annotations={"x": None}),
    "label": metadata(labels={"zone": "2"}),
    "no-label": metadata(labels={"zone": None}),
    "finalizer": metadata(finalizers=["a.b/c"]),
    "owner": metadata(ownerReferences=[OWNER]),
    "taint": {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}},
    "unschedulable": {"spec": {"unschedulable": True}},
    "label-by-status": {**metadata(labels={"zone": "2"}), "status": {}},
    "cpu": {"status": {"capacity": {"cpu": "400"}}},
    "less-capacity": {"status": {"capacity": {names.GPU_MEM: None}}},
    "other-gpus": {"status": {"allocatable": {names.GPU: "8"}}},
    "less-allocatable": {"status": {"allocatable": {names.GPU_MEM: None}}},
    "addresses": {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}},
    "conditions": {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    "daemonEndpoints": {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}},
    "declaredFeatures": {"status": {"declaredFeatures": ["X"]}},
    "features": {"status": {"features": {"supplementalGroupsPolicy": True}}},
    "images": {"status": {"images": [{"names": ["x"]}]}},
    "nodeInfo": {"status": {"nodeInfo": {"kubeletVersion": "v9"}}},
    "phase": {"status": {"phase": "Terminated"}},
    "runtimeHandlers": {"status": {"runtimeHandlers": [{"name": "x"}]}},
    "volumesAttached": {"status": {"volumesAttached": [{"name": "x", "devicePath": "y"}]}},
    "volumesInUse": {"status": {"volumesInUse": ["x"]}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_else_of_it(policies: Server, plugins: Plugins, name: str) -> None:
    body = CHANGES[name]
    before = policies.api.get(kube.node_path(MINE))
    changed = patch(policies.api, MINE, body)
    assert isinstance(changed, dict)
    if changed["status"] == before["status"] and "status" in body and name != "label-by-status":
        pytest.fail(f"the API server drops {name}: the policy does not meet it")
    assert MORE in refused_by(POLICY, lambda: patch(plugins.of_its_pod, MINE, body))


def test_everybody_else_is_a_matter_of_rights(policies: Server, plugins: Plugins) -> None:
    """The administrator, and an account of the same name in another namespace, with the same rights."""
    user = f"system:serviceaccount:other:{names.PLUGIN}"
    binding = {
        "metadata": {"name": "other"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": names.PLUGIN},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    policies.api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    other = policies.user(user)
    policies.eventually("it has the rights", lambda: refusal(lambda: patch(other, MINE, {})) is None)
    for client in (policies.api, other):
        patch(client, MINE, CHANGES["annotation"])
