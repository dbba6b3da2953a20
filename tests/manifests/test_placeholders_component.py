"""The component by which the controller asks an autoscaler for nodes: no right more than it needs, and bounded."""

import helm_python
import pytest

from controller.reconcile import placeholder
from controller.settings import Settings
from gpushare import names
from gpushare.runtime import options
from testing.builders import make_container, make_pod
from testing.manifests import helm, tree
from tests.manifests.kustomize import Kubectl

OBJECTS = tree.objects("placeholders")
EXPENDABLE = -10
"""Below it, Cluster Autoscaler adds no node for a pod: the default of --expendable-pods-priority-cutoff."""


def test_without_the_component_no_node_is_asked_for() -> None:
    assert Settings().placeholders == 0
    for overlay in tree.OVERLAYS:
        assert names.PLACEHOLDERS not in str(tree.listed(f"overlays/{overlay}"))


def test_the_controller_may_create_pods_in_their_namespace_and_nowhere_else() -> None:
    [binding] = [each for each in OBJECTS if each["kind"].endswith("RoleBinding")]
    role = tree.one(OBJECTS, "Role", names.CONTROLLER)
    assert {binding["kind"], *(each["kind"] for each in OBJECTS)}.isdisjoint({"ClusterRole", "ClusterRoleBinding"})
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": names.SERVICE_ACCOUNT_CONTROLLER, "namespace": names.NAMESPACE}
    ]
    assert binding["metadata"]["namespace"] == role["metadata"]["namespace"] == names.PLACEHOLDERS
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]


def test_the_servers_own_bound_is_the_controllers() -> None:
    [container] = tree.one(OBJECTS, "Deployment", names.CONTROLLER)["spec"]["template"]["spec"]["containers"]
    loaded = options.load(Settings, [], prog=names.CONTROLLER, environ=tree.settings_of(container))
    quota = tree.one(OBJECTS, "ResourceQuota", names.PLACEHOLDERS)
    assert quota["metadata"]["namespace"] == names.PLACEHOLDERS
    assert quota["spec"]["hard"] == {"pods": str(loaded.placeholders)}
    assert loaded.placeholders > 0


def test_placeholders_come_last_evict_no_one_and_still_count_for_an_autoscaler() -> None:
    found = tree.one(OBJECTS, "PriorityClass", names.PRIORITY_PLACEHOLDER)
    assert EXPENDABLE <= found["value"] < 0
    assert found["preemptionPolicy"] == "Never"
    assert not found.get("globalDefault")


def test_the_namespace_admits_only_pods_that_could_do_no_harm_and_a_placeholder_is_one() -> None:
    namespace = tree.one(OBJECTS, "Namespace", names.PLACEHOLDERS)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    spec = placeholder.wanted(make_pod(make_container("c", 3), init=[make_container("i")])).spec
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_kubectl_adds_it_to_an_overlay(kubectls: list[Kubectl]) -> None:
    for kubectl in kubectls:
        found = kubectl.with_components("placeholders")
        [container] = tree.one(found, "Deployment", names.CONTROLLER)["spec"]["template"]["spec"]["containers"]
        assert "GPUSHARE_PLACEHOLDERS" in tree.settings_of(container)
        assert tree.one(found, "Namespace", names.PLACEHOLDERS)


def test_the_charts_value_sets_both_bounds() -> None:
    found = helm.objects(placeholders=3, namespace={"quota": False})
    assert tree.one(found, "ResourceQuota", names.PLACEHOLDERS)["spec"]["hard"] == {"pods": "3"}
    assert helm.variables(found, names.CONTROLLER)["GPUSHARE_PLACEHOLDERS"] == "3"
    assert names.PLACEHOLDERS not in str(helm.objects())
    with pytest.raises(helm_python.HelmError, match="placeholders"):
        helm.objects(placeholders=101)
