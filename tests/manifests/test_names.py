"""Names, ports and paths of the manifests are those of the code."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from certs.settings import CertSettings
from controller.settings import Settings as ControllerSettings
from deviceplugin.settings import Settings as PluginSettings
from gpushare import names
from gpushare.identity import NodeName
from gpushare.runtime import options
from gpushare.wire.profile import parse
from gpushare_cli import scheduler_config
from gpushare_cli.scheduler_config import Options, ServerVersion
from testing.manifests import tree
from testing.manifests.tree import ROOT, SERVERS, Json
from webhook.settings import Settings as WebhookSettings

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
    for name, port in (
        (names.WEBHOOK_SERVICE, WebhookSettings().port),
        (names.CONTROLLER_SERVICE, ControllerSettings().port),
    ):
        service = tree.one(BASE, "Service", name)["spec"]
        declared, *_ = container(name)["ports"]
        assert declared["containerPort"] == port
        assert service["ports"][0]["targetPort"] == declared["name"]
        deployment = tree.one(BASE, "Deployment", name)["spec"]
        assert service["selector"] == deployment["selector"]["matchLabels"]
        assert service["selector"].items() <= deployment["template"]["metadata"]["labels"].items()


def test_the_certificates_directory_is_writable_memory() -> None:
    assert CertSettings().cert_dir in mounts(names.WEBHOOK)
    [volume] = SPECS[names.WEBHOOK]["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"


def test_the_plugin_sees_the_directories_of_the_kubelet_and_of_cdi_alone() -> None:
    settings = PluginSettings(node_name="x")
    wanted = {settings.device_plugins_dir, settings.pod_resources_socket.parent, settings.cdi_dir, Path("/etc/cdi")}
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
