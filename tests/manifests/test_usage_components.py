"""The optional components with which the device plugin sees processes and acts on them."""

from pathlib import Path

import pytest
import yaml

from deviceplugin.settings import Settings
from deviceplugin.usage.values import Policy
from gpushare import names
from gpushare.runtime import options
from tests.manifests import tree
from tests.manifests.tree import MANIFESTS, Json

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
    [container] = spec(tree.objects(component))["containers"]
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
    [container] = spec(tree.objects("watchdog-kill"))["containers"]
    assert container["securityContext"] == {"capabilities": {"drop": ["ALL"], "add": ["KILL"]}}


def has_components(kubectl: Path) -> bool:
    """Whether this kubectl is 1.21 or newer."""
    return "kubernetes-1.20" not in str(kubectl)


@pytest.mark.parametrize("component", POLICIES)
def test_kubectl_adds_a_component_to_an_overlay(component: str, tmp_path: Path) -> None:
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "bases": ["../../gpus/nvidia", "../../servers/1.30"],
        "components": [f"../../{component}"],
    }
    copy = tmp_path / "manifests"
    copy.mkdir()
    for path in MANIFESTS.iterdir():
        if path.is_dir() and path.name != "overlays":
            (copy / path.name).symlink_to(path)
    for kubectl in filter(has_components, tree.kubectls()):
        (copy / "overlays" / "mine").mkdir(parents=True, exist_ok=True)
        (copy / "overlays" / "mine" / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        pod = spec(tree.build("mine", kubectl, copy))
        assert pod["hostPID"] is True
        [container] = pod["containers"]
        assert tree.settings_of(container)["GPUSHARE_USAGE"] == "true"
        assert tree.settings_of(container)["GPUSHARE_WATCHDOG"] == POLICIES[component]
        assert tree.settings_of(container)["NVIDIA_VISIBLE_DEVICES"] == "all"
        added = container["securityContext"]["capabilities"].get("add", [])
        assert added == (["KILL"] if component == "watchdog-kill" else [])
