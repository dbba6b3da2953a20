"""What the manifests name and bring is what the programs expect."""

import dataclasses
import socket
import subprocess
import sys
from pathlib import Path

import helm_python
import pytest
import yaml

from certs.settings import CertSettings
from controller.reconcile import placeholders
from controller.settings import Settings as ControllerSettings
from deviceplugin import mps
from deviceplugin.settings import Settings as PluginSettings
from deviceplugin.usage.join import WatchdogPolicy
from gpushare import names
from gpushare.identity import NodeName
from gpushare.runtime import options
from gpushare.wire.profile import parse
from gpushare_cli import __main__ as cli, scheduler_config
from gpushare_cli.dashboard import command
from gpushare_cli.scheduler_config import Options, ServerVersion
from testing import skips
from testing.builders import make_container, make_pod
from testing.manifests import tree
from testing.manifests.helm import objects, pod, variables
from testing.manifests.tree import ROOT, SERVERS, Json
from tests.manifests.conftest import COMPONENTS_SINCE, Kubectl
from webhook.settings import Settings as WebhookSettings

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
    capabilities = {"drop": ["ALL"]} | ({"add": list(capability)} if capability else {})
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": capabilities}


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
    assert str(mps.Settings().mps_dir) == directory
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
    assert "](../manifests/README.md)" in (tree.ROOT / "docs/limits.md").read_text(encoding="utf-8")
    newest = max(kubectls, key=lambda kubectl: kubectl.version)
    skips.older(newest.version, COMPONENTS_SINCE, "its kustomize knows no components")
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


BASE = tree.installed()
SIMULATED = tree.objects("gpus/simulated")
SPECS = dict(tree.workloads(BASE))
SETTINGS: dict[str, type[WebhookSettings | ControllerSettings | PluginSettings]] = {
    names.WEBHOOK: WebhookSettings,
    names.CONTROLLER: ControllerSettings,
    names.PLUGIN: PluginSettings,
}


def container(workload: str) -> Json:
    [found] = SPECS[workload]["containers"]
    assert isinstance(found, dict)
    return found


def mounts(workload: str) -> list[str]:
    return [each["mountPath"] for each in container(workload).get("volumeMounts", ())]


def test_all_objects_are_in_the_namespace_of_the_code() -> None:
    namespaces = {each["metadata"].get("namespace", names.NAMESPACE) for each in BASE}
    assert namespaces == {names.NAMESPACE, "kube-system"}
    assert tree.one(BASE, "Namespace", names.NAMESPACE)
    elsewhere = [each for each in BASE if each["metadata"].get("namespace") == "kube-system"]
    roles = {(each["kind"], (each.get("roleRef") or each["metadata"])["name"]) for each in elsewhere}
    assert roles == {
        ("RoleBinding", "extension-apiserver-authentication-reader"),
        ("Role", "gpushare-controller-unhealthy-gpus"),
        ("RoleBinding", "gpushare-controller-unhealthy-gpus"),
    }


def test_services_lead_to_the_ports_that_are_listened_on() -> None:
    ports = {names.WEBHOOK_SERVICE: WebhookSettings().port, names.CONTROLLER_SERVICE: ControllerSettings().port}
    for name, port in ports.items():
        service = tree.one(BASE, "Service", name)["spec"]
        declared, *_ = container(name)["ports"]
        assert declared["containerPort"] == port
        assert service["ports"][0]["targetPort"] == declared["name"]
        deployment = tree.one(BASE, "Deployment", name)["spec"]
        leads = {names.LABEL_LEADER: "true"} if name == names.CONTROLLER_SERVICE else {}
        assert service["selector"] == {**deployment["selector"]["matchLabels"], **leads}
        assert not leads.keys() & deployment["template"]["metadata"]["labels"].keys()


def test_the_certificates_directory_is_writable_memory() -> None:
    assert CertSettings().cert_dir in mounts(names.WEBHOOK)
    [volume] = SPECS[names.WEBHOOK]["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"


def test_the_plugin_sees_the_directories_of_the_kubelet_and_of_cdi_alone() -> None:
    wanted = {PLUGIN.device_plugins_dir, PLUGIN.pod_resources_socket.parent, PLUGIN.cdi_dir, Path("/etc/cdi")}
    assert {Path(path) for path in mounts(names.PLUGIN)} == wanted
    paths = [each["hostPath"]["path"] for each in SPECS[names.PLUGIN]["volumes"] if "hostPath" in each]
    assert {Path(path) for path in paths} == wanted


def test_every_setting_in_the_manifests_exists_and_is_accepted() -> None:
    shared = tree.one(BASE, "ConfigMap", names.CONFIG)["data"]
    profile = tree.settings_of(dict(tree.workloads(SIMULATED))[names.PLUGIN]["containers"][0])
    of_nvidia = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    for workload, cls in SETTINGS.items():
        own = {**tree.settings_of(container(workload)), **(profile if "plugin" in workload else {})}
        own = {key: value or "node-a" for key, value in own.items() if key not in of_nvidia}
        known = {options.flag_names(field.name)[1] for field in dataclasses.fields(cls)}
        assert {*shared, *own} <= known
        options.load(cls, [], prog=workload, environ={**shared, **own})
        assert container(workload)["envFrom"] == [{"configMapRef": {"name": names.CONFIG}}]


def test_labels_and_accounts_are_those_of_the_code_and_the_cluster_adds_no_variables() -> None:
    assert SPECS[names.PLUGIN]["nodeSelector"] == {names.LABEL_SHARES: "true"}
    assert SPECS[names.CONTROLLER]["serviceAccountName"] == names.SERVICE_ACCOUNT_CONTROLLER
    # Services of the namespace would appear as GPUSHARE_WEBHOOK_PORT and so on.
    assert all(spec["enableServiceLinks"] is False for spec in SPECS.values())


@pytest.mark.parametrize("whole", [False, True], ids=["shared", "whole"])
@pytest.mark.parametrize("server", SERVERS)
def test_the_second_scheduler_is_configured_as_the_command_line_prints_it(server: str, whole: bool) -> None:
    directory = f"whole-gpus/{server}" if whole else f"servers/{server}"
    found = tree.one(tree.objects(directory), "ConfigMap", names.SCHEDULER)
    configuration = yaml.safe_load(found["data"]["scheduler.yaml"])
    given = Options(server=ServerVersion.parse(server), whole_gpus=whole)
    assert configuration == yaml.safe_load(scheduler_config.configuration(given))
    assert configuration["percentageOfNodesToScore"] == 100
    [extender] = configuration["extenders"]
    host = f"{names.CONTROLLER_SERVICE}.{names.NAMESPACE}.svc:{ControllerSettings().port}"
    assert extender["urlPrefix"] == f"http://{host}{names.EXTENDER_PREFIX}"
    managed = [each["name"] for each in extender["managedResources"]]
    assert managed == [*names.SHARED_RESOURCES, *([names.GPU] if whole else [])]
    assert f"--config={mounts(names.SCHEDULER)[0]}/scheduler.yaml" in container(names.SCHEDULER)["command"]
    [volume] = SPECS[names.SCHEDULER]["volumes"]
    assert volume["configMap"]["name"] == names.SCHEDULER


def test_commands_are_packages_that_can_be_run_and_are_in_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text()
    for workload in SETTINGS:
        python, flag, package = container(workload)["command"]
        assert (python, flag) == ("python3", "-m")
        assert (ROOT / package / "__main__.py").is_file()
    for package in ("gpushare", "certs", "webhook", "controller", "deviceplugin", "gpushare_cli"):
        assert f"COPY {package} {package}\n" in dockerfile
        assert f"!{package}\n" in ignored


def test_simulated_gpus_are_a_profile_that_the_plugin_reads() -> None:
    profile = tree.one(SIMULATED, "ConfigMap", "gpushare-simulated-gpus")
    assert len(parse(yaml.safe_load(profile["data"]["profile.yaml"]), NodeName("node-a")).gpus) == 4
    spec = dict(tree.workloads(SIMULATED))[names.PLUGIN]
    [mount] = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "profile"]
    source = tree.settings_of(spec["containers"][0])["GPUSHARE_GPU_SOURCE"]
    assert source == f"simulated:{mount['mountPath']}/profile.yaml"
    [volume] = [each for each in spec["volumes"] if each["name"] == "profile"]
    assert volume["configMap"]["name"] == profile["metadata"]["name"]


def test_every_overlay_has_the_runtime_class_that_the_webhook_writes() -> None:
    for kind in ("nvidia", "simulated"):
        [found] = tree.documents(tree.MANIFESTS / f"gpus/{kind}/runtimeclass.yaml")
        assert found["metadata"]["name"] == WebhookSettings().runtime_class == names.RUNTIME_CLASS
