"""The directories of `manifests/limits` bring what the device plugin expects, and no more."""

import pytest

from deviceplugin.mps import settings as mps_settings
from deviceplugin.settings import Settings
from gpushare import names
from testing import skips
from testing.manifests import tree
from testing.manifests.tree import Json
from tests.manifests import kustomize
from tests.manifests.kustomize import Kubectl

PLUGIN = Settings(node_name="x")


def spec(objects: list[Json], name: str) -> Json:
    found: Json = tree.one(objects, "DaemonSet", name)["spec"]["template"]["spec"]
    return found


def host_paths(pod: Json) -> dict[str, str]:
    """Paths of the host by those in the only container."""
    [container] = pod["containers"]
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}


def test_the_plugin_sees_the_nodes_cgroups_where_it_is_told_to_look() -> None:
    pod = spec(tree.documents(tree.MANIFESTS / "limits/cgroup/device-plugin.yaml"), names.PLUGIN)
    assert tree.settings_of(pod["containers"][0]) == {"GPUSHARE_CGROUP_MOUNT": "/host/cgroup"}
    assert host_paths(pod) == {"/host/cgroup": "/sys/fs/cgroup"}


def test_plugin_daemon_and_containers_agree_on_the_directories_of_mps() -> None:
    plugin = spec(tree.documents(tree.MANIFESTS / "limits/mps/device-plugin.yaml"), names.PLUGIN)
    daemon = spec(tree.documents(tree.MANIFESTS / "limits/mps/mps.yaml"), names.MPS)
    directory = str(PLUGIN.mps_dir)
    assert str(mps_settings.Settings().mps_dir) == directory
    assert host_paths(plugin) == {directory: directory}
    assert host_paths(daemon) == {directory: directory, "/dev/shm": str(PLUGIN.mps_shared_memory)}
    assert plugin["containers"][0]["volumeMounts"][0]["readOnly"] is True


def test_the_daemon_runs_where_its_label_says_so_and_no_update_ends_it() -> None:
    [daemon] = tree.documents(tree.MANIFESTS / "limits/mps/mps.yaml")
    assert daemon["spec"]["updateStrategy"] == {"type": "OnDelete"}
    pod = daemon["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {names.LABEL_SHARES: "true", names.LABEL_LIMITS: "mps"}
    assert pod["containers"][0]["command"][1:] == ["-m", "deviceplugin.mps"]
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("others", [[], ["watchdog-kill"]], ids=["alone", "with the watchdog"])
def test_kubectl_adds_both_to_an_overlay(others: list[str], kubectls: list[Kubectl]) -> None:
    for kubectl in kubectls:
        built = kubectl.with_components(*others, "limits/cgroup", "limits/mps")
        [container] = spec(built, names.PLUGIN)["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN", "KILL"]},
        }
        assert {"cgroup", "mps", "cdi"} <= {mount["name"] for mount in container["volumeMounts"]}
        assert tree.settings_of(container)["NVIDIA_VISIBLE_DEVICES"] == "all"
        assert spec(built, names.MPS)["hostPID"] is True
        assert spec(built, names.MPS)["containers"][0]["image"] == container["image"]


def test_in_the_other_order_no_limit_can_be_set(kubectls: list[Kubectl]) -> None:
    newest = max(kubectls, key=lambda kubectl: kubectl.version)
    skips.older(newest.version, kustomize.COMPONENTS_SINCE, "its kustomize knows no components")
    built = newest.with_components("limits/cgroup", "watchdog-kill")
    [container] = spec(built, names.PLUGIN)["containers"]
    assert container["securityContext"]["capabilities"]["add"] == ["KILL"]


def test_the_pages_tell_the_order_without_which_no_limit_can_be_set() -> None:
    assert "Write `limits/cgroup` after `watchdog-kill`" in (tree.MANIFESTS / "README.md").read_text(encoding="utf-8")
    for page in ("limits", "operate"):
        assert "](../manifests/README.md)" in (tree.ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
