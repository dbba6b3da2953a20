"""The optional components with which the device plugin sees processes and acts on them."""

import pytest

from deviceplugin.settings import Settings
from deviceplugin.usage.values import Policy
from gpushare import names
from gpushare.runtime import options
from testing.manifests import tree
from testing.manifests.tree import MANIFESTS, Json
from tests.manifests.kustomize import Kubectl

POLICIES = {"usage": "report", "watchdog-evict": "evict", "watchdog-kill": "kill"}


def spec(found: list[Json]) -> Json:
    pod: Json = tree.one(found, "DaemonSet", names.PLUGIN)["spec"]["template"]["spec"]
    return pod


def test_without_a_component_the_plugin_sees_no_process() -> None:
    for overlay in tree.OVERLAYS:
        for pod in (spec(found) for found in [tree.listed(f"overlays/{overlay}")]):
            assert "hostPID" not in pod
            [container] = pod["containers"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert Settings().watchdog is Policy.OFF
    assert not Settings().usage


@pytest.mark.parametrize(("component", "policy"), POLICIES.items())
def test_settings_are_those_of_the_code(component: str, policy: str) -> None:
    [container] = spec(tree.documents(MANIFESTS / component / "device-plugin.yaml"))["containers"]
    given = tree.settings_of(container)
    assert given["GPUSHARE_WATCHDOG"] == policy
    assert options.load(Settings, [], prog="plugin", environ=given).watchdog is Policy.parse(policy)


def test_only_what_is_needed_is_added() -> None:
    assert spec(tree.objects("usage"))["hostPID"] is True
    kinds = {component: {each["kind"] for each in tree.objects(component)} for component in POLICIES}
    roles = {"ClusterRole", "ClusterRoleBinding"}
    assert kinds == {"usage": {"DaemonSet"}, "watchdog-evict": {"DaemonSet"} | roles, "watchdog-kill": {"DaemonSet"}}
    role = tree.one(tree.objects("watchdog-evict"), "ClusterRole", f"{names.PLUGIN}-watchdog")
    rights = {(rule["resources"][0], *rule["verbs"]) for rule in role["rules"]}
    assert rights == {("pods/eviction", "create"), ("namespaces", "get")}
    [binding] = [each for each in tree.objects("watchdog-evict") if each["kind"] == "ClusterRoleBinding"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": names.PLUGIN, "namespace": names.NAMESPACE}]
    [patch] = tree.documents(MANIFESTS / "watchdog-kill" / "capability.yaml")
    [container] = spec([patch])["containers"]
    assert container["securityContext"] == {"capabilities": {"drop": ["ALL"], "add": ["KILL"]}}


@pytest.mark.parametrize("component", POLICIES)
def test_kubectl_adds_a_component_to_an_overlay(component: str, kubectls: list[Kubectl]) -> None:
    for kubectl in kubectls:
        found = kubectl.with_components(component)
        assert any(each["metadata"]["name"] == f"{names.PLUGIN}-watchdog" for each in found) == (
            component == "watchdog-evict"
        )
        pod = spec(found)
        assert pod["hostPID"] is True
        [container] = pod["containers"]
        assert tree.settings_of(container)["GPUSHARE_USAGE"] == "true"
        assert tree.settings_of(container)["GPUSHARE_WATCHDOG"] == POLICIES[component]
        assert tree.settings_of(container)["NVIDIA_VISIBLE_DEVICES"] == "all"
        added = container["securityContext"]["capabilities"].get("add", [])
        assert added == (["KILL"] if component == "watchdog-kill" else [])


def test_the_three_differ_in_their_policy_alone() -> None:
    files = {name: (MANIFESTS / name / "device-plugin.yaml").read_text() for name in POLICIES}
    words = {name: text.replace(f"value: {POLICIES[name]}", "value: POLICY") for name, text in files.items()}
    assert len({text.partition("value: POLICY")[0] for text in words.values()}) == 1
