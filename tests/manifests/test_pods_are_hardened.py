"""Pods have no more rights than they need, also under OpenShift's SecurityContextConstraints."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import cluster_table
from controller.settings import Settings
from gpushare import names
from testing.manifests import helm, tree
from testing.manifests.tree import Json

BASE = [*tree.installed(), *tree.objects("dashboard")]
SPECS = dict(tree.workloads(BASE))
PLUGIN = "gpushare-device-plugin"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("workload", "spec"), SPECS.items(), ids=SPECS)
def test_a_pod_is_hardened(workload: str, spec: Json) -> None:
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert set(container["resources"]["limits"]) == {"memory"}
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (spec["securityContext"]["runAsUser"] == 0) == (workload == PLUGIN)
    assert spec["securityContext"].get("runAsNonRoot", False) == (workload != PLUGIN)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert any("hostPath" in each for each in spec.get("volumes", ())) == (workload == PLUGIN)
    # Tokens are mounted only where a pod says so.
    account = tree.one(BASE, "ServiceAccount", workload)
    assert spec["serviceAccountName"] == workload
    assert (account["automountServiceAccountToken"], spec["automountServiceAccountToken"]) == (False, True)
    if workload != "gpushare-dashboard":  # they outlive pressure and taints
        kind = "system-node-critical" if workload == PLUGIN else "system-cluster-critical"
        assert spec["priorityClassName"] == kind
        assert spec["tolerations"]


def test_the_controller_asks_for_the_memory_that_the_leader_of_a_large_cluster_was_measured_to_need() -> None:
    [container] = SPECS["gpushare-controller"]["containers"]
    request = int(container["resources"]["requests"]["memory"].removesuffix("Mi"))
    rows = json.loads((DOCS / "benchmarks" / "server.json").read_text(encoding="utf-8"))["rows"]
    peak = max(row["peak MiB"] for row in rows if row["key"] == "start" and row["nodes"] == 5_000)
    answers = 5 * cluster_table.MAX_BYTES // 4 // 2**20

    assert peak + answers <= request
    page = (DOCS / "operate.md").read_text(encoding="utf-8")
    assert f"The controller's request, {request} MiB, is what its leader needs" in page
    assert f"no more than {request - answers} MiB when it has started" in page
    assert f"and the {answers} MiB above that it keeps of its answers" in page


def test_a_roll_out_of_the_controller_does_not_wait_for_a_second_ready_replica() -> None:
    spec = tree.one(BASE, "Deployment", "gpushare-controller")["spec"]
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == "100%"
    assert spec["replicas"] == 2
    guarded = {each["metadata"]["name"] for each in tree.objects("servers") if each["kind"] == "PodDisruptionBudget"}
    assert guarded == {"gpushare-webhook", "gpushare-scheduler"}


def test_a_roll_out_of_the_webhook_loses_no_replica() -> None:
    spec = tree.one(BASE, "Deployment", "gpushare-webhook")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert spec["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]


def probes(component: str) -> dict[str, Json]:
    [container] = SPECS[component]["containers"]
    return {kind: found for kind, found in container.items() if kind.endswith("Probe")}


@pytest.mark.parametrize("component", ["gpushare-controller", "gpushare-webhook"])
def test_a_busy_node_ends_no_server_and_takes_none_out_of_its_service(component: str) -> None:
    """Answers of several seconds were seen, and with limits of one second both webhooks were unready at once."""
    found = probes(component)
    assert found["livenessProbe"]["timeoutSeconds"] >= 10
    assert found["livenessProbe"]["failureThreshold"] >= 6
    assert found["readinessProbe"]["timeoutSeconds"] >= 5
    assert found["readinessProbe"]["failureThreshold"] >= 3


def test_the_controllers_probes_have_the_port_that_nothing_else_has() -> None:
    [container] = SPECS["gpushare-controller"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": Settings().port, "probes": Settings().probe_port}
    gets = {kind: found["httpGet"] for kind, found in probes("gpushare-controller").items()}
    targets = {kind: (get["path"], get["port"]) for kind, get in gets.items()}
    assert targets == {
        "startupProbe": ("/livez", "probes"),
        "livenessProbe": ("/livez", "probes"),
        "readinessProbe": ("/readyz", "probes"),
    }
    [service] = tree.one(BASE, "Service", "gpushare-controller")["spec"]["ports"]
    assert service["targetPort"] == "http"


VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "projected", "secret"}
"""Those of `restricted-v2`, which every account may use, and `nonroot-v2`, which is the same for any user but root."""
VALUES: list[Json] = [
    {},
    *({"watchdog": policy} for policy in ("report", "evict", "kill")),
    {"watchdog": "kill", "limits": {"cgroup": True}},
    {"dashboard": {"enabled": True}},
]


def granted(found: list[Json]) -> Iterator[tuple[str, str]]:
    """Account -> name of the constraints that a RoleBinding gives it."""
    roles = {each["metadata"]["name"]: each for each in found if each["kind"] == "Role"}
    for binding in (each for each in found if each["kind"] == "RoleBinding"):
        name = binding["roleRef"]["name"]
        rules = roles[name]["rules"] if name in roles else ()
        used = [entry for rule in rules if rule["verbs"] == ["use"] for entry in rule["resourceNames"]]
        used += [name.removeprefix("system:openshift:scc:")] if name.startswith("system:openshift:scc:") else []
        for subject in binding["subjects"]:
            yield from ((subject["name"], constraints) for constraints in used)


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_each_pod_may_run_under_exactly_the_constraints_of_its_account(values: Json) -> None:
    found = helm.objects(openshift={"enabled": True}, **values)
    [own] = [each for each in found if each["kind"] == "SecurityContextConstraints"]
    accounts = dict(granted(found))
    pods = dict(tree.workloads(found))
    of_no_pod = {"gpushare-dashboard"} - set(pods)
    assert {spec["serviceAccountName"] for spec in pods.values()} == set(accounts) - of_no_pod
    for name, spec in pods.items():
        is_own = name == names.PLUGIN
        assert accounts[spec["serviceAccountName"]] == (own["metadata"]["name"] if is_own else "nonroot-v2")
        [container] = spec["containers"]
        pod, context = spec["securityContext"], container["securityContext"]
        kinds = {kind for volume in spec.get("volumes", ()) for kind in volume if kind != "name"} | {"projected"}
        assert kinds <= ({*own["volumes"]} if is_own else VOLUMES)
        added = {*context["capabilities"].get("add", ())}
        assert added <= ({*own["allowedCapabilities"]} if is_own else set())
        assert (pod["runAsUser"] == 0) == is_own
        assert is_own or not {"hostPID", "hostNetwork", "hostIPC"} & set(spec)
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (context["allowPrivilegeEscalation"], context["capabilities"]["drop"]) == (False, ["ALL"])
        assert context["readOnlyRootFilesystem"]
        assert "privileged" not in context


def test_the_device_plugin_gets_its_own_constraints_and_the_selinux_type_that_reaches_the_kubelet() -> None:
    found = helm.render({"kubeVersion": "1.30.0", "openshift": {"enabled": True}})
    plugin = tree.one(found, "DaemonSet", names.PLUGIN)["spec"]["template"]
    own = tree.one(found, "SecurityContextConstraints", names.PLUGIN)

    assert plugin["metadata"]["annotations"]["openshift.io/required-scc"] == own["metadata"]["name"]
    assert own["seLinuxContext"] == {"type": "MustRunAs", "seLinuxOptions": {"type": "spc_t"}}
    assert "seLinuxOptions" not in plugin["spec"]["securityContext"]  # the constraints add the namespace's level
    assert (own["runAsUser"], own["seccompProfiles"]) == ({"type": "MustRunAs", "uid": 0}, ["runtime/default"])
    assert [own[f"allow{what}"] for what in ("HostPID", "HostDirVolumePlugin")] == [True, True]
    assert not [key for key in ("allowPrivilegedContainer", "allowHostNetwork", "allowHostIPC") if own[key]]
    assert (own["users"], own["groups"]) == ([], [])
