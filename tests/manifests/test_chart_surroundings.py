"""What the chart makes around the components: RuntimeClass, exemptions, networks, certificates, monitoring."""

import helm_python
import pytest

from gpushare import names
from gpushare_cli import __main__ as cli
from gpushare_cli.dashboard import command
from testing.manifests import helm, tree
from testing.manifests.helm import objects, pod, variables
from testing.manifests.tree import Json


@pytest.mark.parametrize(
    ("given", "made"),
    [({}, "nvidia"), ({"handler": "nvidia-cdi"}, "nvidia-cdi"), ({"create": False}, None), ({"enabled": False}, None)],
)
def test_the_runtime_class_is_made_as_asked_for_and_stays(given: Json, made: str | None) -> None:
    found = objects(runtimeClass=given, limits={"mps": True})
    classes = [each for each in found if each["kind"] == "RuntimeClass"]
    assert [each["handler"] for each in classes] == ([made] if made else [])
    assert all(each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for each in classes)
    used = {pod(found, name).get("runtimeClassName") for name in (names.PLUGIN, "gpushare-mps")}
    assert used == ({None} if given == {"enabled": False} else {"nvidia"})
    config = tree.one(found, "ConfigMap", "gpushare-config")["data"]
    assert config.get("GPUSHARE_RUNTIME_CLASS_MODE") == ("never" if given == {"enabled": False} else None)


def test_who_may_use_which_runtime_class() -> None:
    found = objects(runtimeClass={"mode": "always", "refuse": "nothing", "names": ["nvidia", "mine"]})
    assert tree.one(found, "ConfigMap", "gpushare-config")["data"]["GPUSHARE_RUNTIME_CLASS_MODE"] == "always"
    policy = tree.one(found, "ConfigMap", names.RUNTIME_CLASS_POLICY)["data"]
    assert policy == {"refuse": "nothing", "names": "nvidia,mine"}


@pytest.mark.parametrize("server", tree.SERVERS)
def test_exempt_namespaces_are_exempt_everywhere(server: str) -> None:
    def exempt(found: list[Json]) -> list[list[str]]:
        selectors = [each["namespaceSelector"] for found_one in found for each in found_one.get("webhooks", ())]
        selectors += [
            each["spec"]["matchResources"]["namespaceSelector"]
            for each in found
            if each["kind"] == "ValidatingAdmissionPolicyBinding" and "matchResources" in each["spec"]
        ]
        expressions = [found_one for each in selectors for found_one in each["matchExpressions"]]
        return [each["values"] for each in expressions if each["key"] == "kubernetes.io/metadata.name"]

    before = exempt(objects(kubeVersion=f"{server}.0"))
    after = exempt(objects(kubeVersion=f"{server}.0", exemptNamespaces=["mine"]))
    core = ["kube-system", names.NAMESPACE]
    assert after == [core if each == core else [*core, "mine"] for each in before]
    assert [*core, "mine"] in after


def test_the_clusters_own_scheduler_in_the_place_of_a_second_one() -> None:
    found = objects(scheduler={"enabled": False}, networkPolicy={"controlPlane": ["10.0.0.0/24", "fd00::/64"]})
    assert not [each for each in found if each["metadata"]["name"].startswith(names.SCHEDULER)]
    assert tree.one(found, "ConfigMap", "gpushare-config")["data"]["GPUSHARE_SCHEDULER_NAME"] == ""
    [second, own] = tree.one(found, "NetworkPolicy", names.CONTROLLER)["spec"]["ingress"]
    assert second["from"], "an empty list admits every peer"
    assert own["from"] == [{"ipBlock": {"cidr": "10.0.0.0/24"}}, {"ipBlock": {"cidr": "fd00::/64"}}]
    assert own["ports"] == [{"port": "http", "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("policy", "is_warned"), [({}, True), ({"controlPlane": ["10.0.0.0/24"]}, False), ({"enabled": False}, False)]
)
def test_the_notes_warn_of_a_policy_that_there_is_and_that_admits_no_scheduler(policy: Json, is_warned: bool) -> None:
    assert ("admits no kube-scheduler" in helm.notes(scheduler={"enabled": False}, networkPolicy=policy)) == is_warned


def test_the_notes_say_whether_limits_are_held_and_that_alerts_need_scraping() -> None:
    rules: Json = {"rules": {"enabled": True}}
    assert "so only MIG holds" in helm.notes()
    assert "r615 or newer, or where nodes have" in helm.notes(limits={"cgroup": True, "mps": True})
    assert "never stop firing" in helm.notes(monitoring=rules)
    on = {"enabled": True}
    assert "never stop firing" not in helm.notes(monitoring=rules | {"podMonitor": on, "serviceMonitor": on})


def test_dynamic_resource_allocation_is_off_until_it_is_asked_for() -> None:
    before, found = [each["metadata"] for each in objects()], objects(dra={"enabled": True, "claimsPerPod": 2})
    made = {(each["kind"], each["metadata"]["name"]): each for each in found if each["metadata"] not in before}
    policies = {names.CLAIMS_POLICY, names.CLAIM_PODS_POLICY, names.SLICES_POLICY}
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    whose = (f"{names.PLUGIN}-dra", "gpushare-controller-dra")
    rights = {(kind, name) for kind in ("ClusterRole", "ClusterRoleBinding") for name in whose}
    bound = {(kind, name) for kind in kinds for name in policies}
    assert made.keys() == {("DeviceClass", names.DEVICE_CLASS), *rights, *bound}
    limit, _, named, apart = made[kinds[0], names.CLAIM_PODS_POLICY]["spec"]["validations"]
    assert limit["expression"].endswith(" <= 2")
    other = objects(dra={"enabled": True, "sharedClaims": True}, scheduler={"enabled": False})
    left = tree.one(other, kinds[0], names.CLAIM_PODS_POLICY)["spec"]["validations"]
    assert len(left) == 2
    assert not {named["message"], apart["message"]} & {each.get("message") for each in left}
    with pytest.raises(helm_python.HelmError, match=r"dra\.enabled: Kubernetes 1\.35\.4 .* leave it false until"):
        objects(kubeVersion="1.35.4", dra={"enabled": True})
    with pytest.raises(helm_python.HelmError, match=r"dra\.translate: without dra\.enabled nothing can be claimed"):
        objects(dra={"translate": True})
    variable, translating = "GPUSHARE_CLAIM_TEMPLATES", objects(dra={"enabled": True, "translate": True})
    assert variable not in helm.variables(found, names.CONTROLLER)
    assert helm.variables(translating, names.CONTROLLER)[variable] == "true"


def test_prometheus_is_let_to_the_metrics_and_not_to_the_extender() -> None:
    found = objects(networkPolicy={"prometheusNamespaces": ["monitoring"]})
    ports = {names.CONTROLLER: "probes", names.PLUGIN: "metrics"}
    for name, port in ports.items():
        [rule] = tree.one(found, "NetworkPolicy", f"{name}-metrics")["spec"]["ingress"]
        [peer] = rule["from"]
        expression = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["monitoring"]}
        assert peer == {"namespaceSelector": {"matchExpressions": [expression]}}
        assert rule["ports"] == [{"port": port, "protocol": "TCP"}]
    assert not [each for each in objects(networkPolicy={"enabled": False}) if each["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("source", ["cert-manager", "files"])
def test_certificates_of_others_take_the_webhooks_right_to_write_any(source: str) -> None:
    found = objects(certificates={"source": source, "caBundle": "QUJD"})
    rules = [rule for kind in ("ClusterRole", "Role") for rule in tree.one(found, kind, names.WEBHOOK)["rules"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get"}
    assert not [rule for rule in rules if "secrets" in rule["resources"]]
    spec = pod(found, names.WEBHOOK)
    assert spec["volumes"] == [{"name": "certs", "secret": {"secretName": "gpushare-webhook-cert"}}]
    [mount] = spec["containers"][0]["volumeMounts"]
    assert mount["readOnly"]
    assert variables(found, names.WEBHOOK)["GPUSHARE_CERT_SOURCE"] == "files"
    for each in found:
        if "webhooks" in each:
            injected = each["metadata"].get("annotations") == {
                "cert-manager.io/inject-ca-from": "gpushare-system/gpushare-webhook"
            }
            assert injected == (source == "cert-manager")
            bundles = {webhook["clientConfig"].get("caBundle") for webhook in each["webhooks"]}
            assert bundles == ({None} if injected else {"QUJD"})


def test_cert_manager_makes_the_certificate_that_the_webhook_mounts() -> None:
    own = objects(certificates={"source": "cert-manager"})
    leaf = tree.one(own, "Certificate", "gpushare-webhook")["spec"]
    assert leaf["secretName"] == "gpushare-webhook-cert"
    assert "gpushare-webhook.gpushare-system.svc" in leaf["dnsNames"]
    assert tree.one(own, "Issuer", leaf["issuerRef"]["name"])["spec"]["ca"] == {
        "secretName": tree.one(own, "Certificate", "gpushare-webhook-ca")["spec"]["secretName"]
    }
    issuer = {"name": "company", "kind": "ClusterIssuer"}
    theirs = objects(certificates={"source": "cert-manager", "issuerRef": issuer})
    assert tree.one(theirs, "Certificate", "gpushare-webhook")["spec"]["issuerRef"] == issuer
    assert [each["metadata"]["name"] for each in theirs if each["apiVersion"] == "cert-manager.io/v1"] == [
        names.WEBHOOK
    ]


def test_monitors_have_the_labels_and_the_interval_of_the_values() -> None:
    on = {"enabled": True, "labels": {"release": "prometheus"}}
    common = {"release": "common"}
    found = objects(monitoring={"podMonitor": on, "serviceMonitor": on, "interval": "30s"}, commonLabels=common)
    monitors = [each for each in found if each["kind"] in {"PodMonitor", "ServiceMonitor"}]
    assert len(monitors) == 3
    for monitor in monitors:
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        [endpoint] = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
        assert endpoint["interval"] == "30s"


def test_rules_and_dashboards_are_found_by_the_labels_of_the_values() -> None:
    on = {"enabled": True, "labels": {"team": "ml"}}
    found = objects(monitoring={"rules": on, "dashboards": on, "namespace": "grafana"})
    board = tree.one(found, "ConfigMap", "gpushare-dashboard-overview")["metadata"]
    for metadata in (board, tree.one(found, "PrometheusRule", "gpushare")["metadata"]):
        assert (metadata["namespace"], metadata["labels"]["team"]) == ("grafana", "ml")
    assert board["labels"]["grafana_dashboard"] == "1"


def test_a_dashboard_where_users_sign_in_has_a_service_a_certificate_and_no_further_right() -> None:
    plain, found = (
        objects(dashboard={"enabled": True, **more}) for more in ({}, {"signIn": True, "hosts": ["g.test"]})
    )
    name = "gpushare-dashboard"
    rights, before = ([each for each in some if each["kind"].endswith("Role")] for some in (found, plain))
    assert rights == before
    spec = pod(found, name)
    [container] = spec["containers"]
    options = cli.command_line().parse_args(container["command"][3:])
    assert (options.sign_in, options.no_key) == (True, False)
    assert options.host == [f"{name}.{names.NAMESPACE}.svc", "g.test"]
    assert [(options.cert_dir, {"secretName": f"{name}-tls"})] == [
        (mount["mountPath"], volume["secret"]) for mount in container["volumeMounts"] for volume in spec["volumes"]
    ]
    [port] = container["ports"]
    assert port["containerPort"] == options.port
    assert container["readinessProbe"]["httpGet"] == {"path": command.HEALTH, "port": port["name"], "scheme": "HTTPS"}
    assert "livenessProbe" not in container, "anyone could use it"
    assert {each["targetPort"] for each in tree.one(found, "Service", name)["spec"]["ports"]} == {port["name"]}
    policy = tree.one(found, "NetworkPolicy", name)["spec"]
    assert policy["ingress"] == [{"ports": [{"port": port["name"], "protocol": "TCP"}]}]
