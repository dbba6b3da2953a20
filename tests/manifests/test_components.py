"""The optional components bring what the programs expect, and no more; test_chart.py has what kubectl makes of them."""

import socket
import subprocess
import sys

import helm_python
import pytest

from controller.reconcile import placeholders
from controller.settings import Settings as ControllerSettings
from deviceplugin.mps import __main__
from deviceplugin.settings import Settings as PluginSettings
from deviceplugin.usage.join import WatchdogPolicy
from gpushare import names
from gpushare.runtime import options
from gpushare_cli import __main__ as cli
from gpushare_cli.dashboard import command
from testing import skips
from testing.builders import make_container, make_pod
from testing.manifests import tree
from testing.manifests.helm import objects, pod, variables
from testing.manifests.tree import Json
from tests.manifests import kustomize
from tests.manifests.kustomize import Kubectl

PLUGIN = PluginSettings(node_name="x")
DASHBOARD = "gpushare-dashboard"
WATCHDOG = {"report": [], "evict": [], "kill": ["KILL"]}
"""Policy -> capabilities that are added."""


def host_paths(spec: Json) -> dict[str, str]:
    """Paths of the host by those in the only container."""
    [container] = spec["containers"]
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}


def capabilities(found: list[Json]) -> Json:
    context: Json = pod(found, names.PLUGIN)["containers"][0]["securityContext"]
    return context


def adding(*capability: str) -> Json:
    added = {"add": list(capability)} if capability else {}
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **added},
    }


def test_no_overlay_has_a_component_and_no_program_does_what_one_is_for() -> None:
    for overlay in tree.OVERLAYS:
        listed = tree.listed(f"overlays/{overlay}")
        assert not {names.PLACEHOLDERS, names.MPS, DASHBOARD} & {each["metadata"]["name"] for each in listed}
        assert "hostPID" not in pod(listed, names.PLUGIN)
        assert capabilities(listed) == adding()
    assert (PLUGIN.usage, PLUGIN.watchdog, ControllerSettings().placeholders) == (False, WatchdogPolicy.OFF, 0)


@pytest.mark.parametrize("policy", WATCHDOG)
def test_the_plugin_sees_processes_and_its_watchdog_has_the_policy_that_is_asked_for(policy: str) -> None:
    found, before = objects(watchdog=policy), objects()
    given = variables(found, names.PLUGIN)
    assert given["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert "GPUSHARE_NODE_NAME" in given
    loaded = options.load(PluginSettings, [], prog="plugin", environ={**given, "GPUSHARE_NODE_NAME": "node-a"})
    assert (loaded.usage, loaded.watchdog) == (True, WatchdogPolicy.parse(policy))
    assert pod(found, names.PLUGIN)["hostPID"] is True
    assert capabilities(found) == adding(*WATCHDOG[policy])
    more = {each["kind"] for each in found if each["metadata"]["name"] not in {it["metadata"]["name"] for it in before}}
    assert more == ({"ClusterRole", "ClusterRoleBinding"} if policy == "evict" else set())
    own = {"GPUSHARE_USAGE", "GPUSHARE_WATCHDOG"}
    assert {key: value for key, value in given.items() if key not in own} == variables(before, names.PLUGIN)


@pytest.mark.parametrize("others", [{}, {"watchdog": "kill"}], ids=["alone", "with the watchdog"])
def test_plugin_daemon_and_containers_agree_on_the_directories_of_limits(others: Json) -> None:
    found = objects(limits={"cgroup": True, "mps": True}, **others)
    plugin, daemon, directory = pod(found, names.PLUGIN), pod(found, names.MPS), str(PLUGIN.mps_dir)
    assert str(__main__.Settings().mps_dir) == directory
    assert capabilities(found) == adding("SYS_ADMIN", "KILL")
    seen = host_paths(plugin)
    assert (seen[directory], seen["/host/cgroup"]) == (directory, "/sys/fs/cgroup")
    assert variables(found, names.PLUGIN)["GPUSHARE_CGROUP_MOUNT"] == "/host/cgroup"
    [mount] = [each for each in plugin["containers"][0]["volumeMounts"] if each["mountPath"] == directory]
    assert mount["readOnly"] is True
    assert host_paths(daemon) == {directory: directory, "/dev/shm": str(PLUGIN.mps_shared_memory)}
    assert daemon["containers"][0]["image"] == plugin["containers"][0]["image"]


def test_the_daemon_runs_where_its_label_says_so_and_no_update_ends_it() -> None:
    [daemon] = tree.objects("limits/mps")
    assert daemon["spec"]["updateStrategy"] == {"type": "OnDelete"}
    spec = daemon["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {names.LABEL_SHARES: "true", names.LABEL_LIMITS: "mps"}
    assert spec["containers"][0]["command"][1:] == ["-m", "deviceplugin.mps"]
    assert (spec["automountServiceAccountToken"], spec["hostPID"]) == (False, True)


def test_in_another_order_than_the_pages_tell_no_limit_can_be_set(kubectls: list[Kubectl]) -> None:
    assert "Write `limits/cgroup` after `watchdog-kill`" in (tree.MANIFESTS / "README.md").read_text(encoding="utf-8")
    for page in ("limits", "operate"):
        assert "](../manifests/README.md)" in (tree.ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    newest = max(kubectls, key=lambda kubectl: kubectl.version)
    skips.older(newest.version, kustomize.COMPONENTS_SINCE, "its kustomize knows no components")
    assert capabilities(newest.with_components("limits/cgroup", "watchdog-kill")) == adding("KILL")


def test_the_servers_own_bound_of_placeholders_is_the_controllers() -> None:
    shipped = [*tree.objects("placeholders"), *tree.patches("placeholders")]
    for given, bound in ((objects(placeholders=3, namespace={"quota": False}), 3), (shipped, 10)):
        quota = tree.one(given, "ResourceQuota", names.PLACEHOLDERS)
        assert quota["metadata"]["namespace"] == names.PLACEHOLDERS
        assert quota["spec"]["hard"] == {"pods": str(bound)}
        environ = variables(given, names.CONTROLLER)
        assert options.load(ControllerSettings, [], prog="controller", environ=environ).placeholders == bound
    with pytest.raises(helm_python.HelmError, match="placeholders"):
        objects(placeholders=101)


def test_placeholders_come_last_evict_no_one_and_still_count_for_an_autoscaler() -> None:
    """Below -10, Cluster Autoscaler adds no node: the default of --expendable-pods-priority-cutoff."""
    found = tree.one(tree.objects("placeholders"), "PriorityClass", names.PRIORITY_PLACEHOLDER)
    assert -10 <= found["value"] < 0
    assert found["preemptionPolicy"] == "Never"
    assert not found.get("globalDefault")


def test_the_namespace_admits_only_pods_that_could_do_no_harm_and_a_placeholder_is_one() -> None:
    namespace = tree.one(tree.objects("placeholders"), "Namespace", names.PLACEHOLDERS)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    spec = placeholders.spec_for(make_pod(make_container("c", 3), init=[make_container("i")])) or {}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_no_address_but_its_pods_own_loopback_leads_to_the_dashboard() -> None:
    found = tree.objects("dashboard")
    assert {each["kind"] for each in found}.isdisjoint({"Service", "Ingress"})
    [container] = pod(found, DASHBOARD)["containers"]
    assert "ports" not in container
    assert command.LOOPBACK == "127.0.0.1"
    assert container["command"][:3] == ["python3", "-m", "gpushare_cli"]
    arguments = cli.command_line().parse_args(container["command"][3:])
    assert (arguments.no_key, arguments.port) == (True, command.PORT)


def test_the_dashboard_is_not_ready_before_it_listens() -> None:
    [container] = pod(tree.objects("dashboard"), DASHBOARD)["containers"]
    program, option, text = container["startupProbe"]["exec"]["command"]
    assert (program, option) == ("python3", "-c")

    def ends(script: str) -> int:
        return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode

    with socket.create_server((command.LOOPBACK, 0)) as listening:
        script = text.replace(str(command.PORT), str(listening.getsockname()[1]))
        assert script != text
        assert ends(script) == 0
    assert ends(script) == 1
