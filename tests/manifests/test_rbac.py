"""Each component and its pods may do what they need, and nothing else."""

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from certs.manager import CertificateManager
from certs.settings import CertSettings
from controller import cluster_table, watches
from controller.reconcile.claim_templates import UNUSED_S, ClaimingPod, ClaimTemplates
from controller.reconcile.writer import Writer
from controller.settings import Settings
from controller.state import ClusterState
from gpushare import names
from gpushare.identity import PodRef, PodUid
from gpushare.kube.lease import Elector
from gpushare.runtime.clock import SystemClock
from gpushare.units import ResourceConfig
from gpushare.wire import claim_templates
from gpushare_cli.dashboard import command
from gpushare_cli.dashboard.command import Options
from testing import clusters
from testing.clock import ending
from testing.fakes.kube import Call, FakeKube
from testing.manifests import helm, tree
from testing.manifests.tree import Json
from webhook.runtimeclass import Mode, RuntimeClass

COMPONENTS = ("placeholders", "watchdog-evict", "dashboard")
PLAIN, TRANSLATING = (
    helm.objects(kubeVersion="1.36.0", dra={"enabled": True, "translate": value}) for value in (False, True)
)
OBJECTS = [each for name in ("base", *COMPONENTS) for each in tree.objects(name)]
OBJECTS += [each for each in TRANSLATING if each["metadata"]["name"] not in {one["metadata"]["name"] for one in PLAIN}]
DASHBOARD = "gpushare-dashboard"
Right = tuple[str, str, str, str]
"""Scope (a namespace, or empty for the cluster), API group/resource, verb (`USED`: verbs), name (empty for all)."""

OWN = names.NAMESPACE
WEBHOOKS, LEASES = "admissionregistration.k8s.io/{}webhookconfigurations", "coordination.k8s.io/leases"
# What the code does. A verb that is added here is added to the manifests, and the other way round.
USED: dict[str, list[Right]] = {
    "gpushare-webhook": [
        ("", "node.k8s.io/runtimeclasses", "get", names.RUNTIME_CLASS),
        ("", WEBHOOKS.format("mutating"), "get update", names.MUTATING_WEBHOOK),
        ("", WEBHOOKS.format("validating"), "get update", names.VALIDATING_WEBHOOK),
        (OWN, "/configmaps", "get", names.HAND_OVER),  # whether GPU pods need a RuntimeClass
        (OWN, "/configmaps", "get", names.RUNTIME_CLASS_POLICY),  # whether they may have it
        (OWN, "/secrets", "create", ""),
        (OWN, "/secrets", "get update", names.WEBHOOK_SECRET),
    ],
    "gpushare-controller": [
        ("", "/nodes", "list watch", ""),
        ("", "/pods", "list watch", ""),
        ("", "/pods", "get", ""),  # a Binding whose reply was lost
        ("", "/pods", "patch", ""),  # the label that makes the scheduler look again; GPUs that are chosen late
        ("", "/pods", "delete", ""),  # pods that only their owners can fix
        ("", "/pods/binding", "create", ""),
        ("", "/events", "create", ""),
        ("", "policy/poddisruptionbudgets", "list watch", ""),  # whom to evict last
        ("", "/namespaces", "list watch", ""),  # the policy of their pods
        (names.UNHEALTHY_NAMESPACE, "/configmaps", "list watch", ""),  # GPUs that must not be used
        (OWN, LEASES, "create", ""),
        (OWN, LEASES, "get update", names.LEASE),
        (OWN, "/configmaps", "patch", names.HAND_OVER),  # how nodes hand over GPUs
        (names.PLACEHOLDERS, "/pods", "create", ""),  # as a component
        # With the chart's value dra.translate:
        ("", "resource.k8s.io/resourceclaimtemplates", "get list create delete", ""),
        ("", "/namespaces", "get", ""),  # whether its pods claim
    ],
    "gpushare-device-plugin": [
        ("", "/pods", "list watch", ""),
        ("", "/pods", "get", ""),  # a pod that the watch has yet to bring
        ("", "/nodes", "get patch", ""),
        ("", "/nodes/status", "patch", ""),
        ("", "/events", "create", ""),
        ("", "/pods/eviction", "create", ""),  # as a component, the watchdog
        ("", "/namespaces", "get", ""),  # the same: their label
    ],
    DASHBOARD: [
        *(("", f"/{resource}", "list watch", "") for resource in ("nodes", "pods", "events")),
        (names.UNHEALTHY_NAMESPACE, "/configmaps", "list watch", ""),
        (OWN, "/configmaps", "get", names.CONFIG),
        (OWN, "/pods/proxy", "get", ""),  # what containers use
        ("", "resource.k8s.io/resourceclaims", "list watch", ""),
    ],
    names.SCHEDULER: [(OWN, LEASES, "create", ""), (OWN, LEASES, "get update", names.SCHEDULER)],
}
BUILT_IN = {"system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader"}


def granted(account: str) -> Iterator[Right]:
    """What our own roles grant."""
    roles = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in OBJECTS}
    for binding in OBJECTS:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        subject = {"kind": "ServiceAccount", "name": account, "namespace": OWN}
        if binding["subjects"] != [subject] or binding["roleRef"]["name"] in BUILT_IN:
            continue
        scope = binding["metadata"].get("namespace", "")
        for rule in roles[binding["roleRef"]["kind"], scope, binding["roleRef"]["name"]]["rules"]:
            [group] = rule["apiGroups"]
            each = itertools.product(rule["resources"], rule["verbs"], rule.get("resourceNames", [""]))
            yield from ((scope, f"{group}/{resource}", verb, name) for resource, verb, name in each)


@pytest.mark.parametrize("account", sorted(USED))
def test_rights_are_exactly_the_verbs_used(account: str) -> None:
    rights = list(granted(account))
    assert len(rights) == len(set(rights))
    used = USED[account]
    assert set(rights) == {(scope, kind, verb, name) for scope, kind, verbs, name in used for verb in verbs.split()}


def test_no_role_is_left_over_and_every_account_is_bound() -> None:
    roles = {each["metadata"]["name"] for each in OBJECTS if each["kind"] in {"Role", "ClusterRole"}}
    bound = {each["roleRef"]["name"] for each in OBJECTS if each["kind"].endswith("RoleBinding")}
    assert bound - roles == BUILT_IN
    assert roles <= bound
    assert {each["metadata"]["name"] for each in OBJECTS if each["kind"] == "ServiceAccount"} == set(USED)
    given = [each for each in OBJECTS if each.get("roleRef", {}).get("name") in BUILT_IN]
    assert {subject["name"] for each in given for subject in each["subjects"]} == {names.SCHEDULER}


def allows(right: Right, call: Call) -> bool:
    """Whether RBAC lets this request through."""
    parts = call.path.strip("/").split("/")
    group = "" if parts[0] == "api" else parts[1]
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    scope = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        scope, rest = rest[1], rest[2:]
    resource, name = rest[0], rest[1] if len(rest) > 1 else ""
    kind = f"{group}/{resource}" + (f"/{rest[2]}" if len(rest) > 2 else "")
    return right[0] in {scope, ""} and right[1:3] == (kind, call.verb) and right[3] in {name, ""}


def allowed(account: str, call: Call) -> bool:
    return any(allows(right, call) for right in granted(account))


def needs_no_more(account: str, api: FakeKube, *verbs: str) -> None:
    assert {call.verb for call in api.calls} == {*verbs}
    assert [str(call) for call in api.calls if not allowed(account, call)] == []


def test_the_manager_of_certificates_needs_no_more(tmp_path: Path) -> None:
    api = FakeKube()
    group = "/apis/admissionregistration.k8s.io/v1"
    for kind in ("mutating", "validating"):
        api.seed(
            f"{group}/{kind}webhookconfigurations",
            {"metadata": {"name": names.MUTATING_WEBHOOK}, "webhooks": [{"name": "x.y.z", "clientConfig": {}}]},
        )
    manager = CertificateManager(api=api, clock=SystemClock(), settings=CertSettings(cert_dir=str(tmp_path)))
    manager.ensure_once()
    api.edit(f"/api/v1/namespaces/{OWN}/secrets/{names.WEBHOOK_SECRET}", lambda secret: secret["data"].pop("ca.key"))
    manager.ensure_once()
    needs_no_more("gpushare-webhook", api, "get", "create", "update")


def test_the_look_for_the_runtime_class_needs_no_more() -> None:
    api = FakeKube()
    RuntimeClass(api=api, clock=SystemClock(), name=names.RUNTIME_CLASS, mode=Mode.WHERE_NEEDED).current()
    assert len(api.calls) == 3
    needs_no_more("gpushare-webhook", api, "get")


def test_the_election_needs_no_more() -> None:
    api = FakeKube()
    elector = Elector(api=api, clock=SystemClock(), namespace=OWN, name=names.LEASE, identity="a")
    assert elector.attempt()
    assert elector.attempt()
    elector.release()
    needs_no_more("gpushare-controller", api, "get", "create", "update")


def test_the_watches_that_the_controller_can_do_without_need_no_more() -> None:
    api, stop = FakeKube(), threading.Event()
    state = ClusterState(resource_config=ResourceConfig())
    api.close()
    for watch in (
        watches.disruption_budgets(api=api, clock=ending(stop)),
        watches.unhealthy_gpus(api=api, clock=ending(stop), index=state.index),
        watches.namespace_policies(api=api, clock=ending(stop), index=state.index),
    ):
        stop.clear()
        watch.run(stop)
    needs_no_more("gpushare-controller", api, "list", "watch")


def test_the_templates_of_claims_need_no_more_and_no_less() -> None:
    api, clock = FakeKube(), SystemClock()
    api.seed("/api/v1/namespaces", {"metadata": {"name": "team", "labels": {names.LABEL_SHARE_BY: names.CLAIMS}}})
    templates = ClaimTemplates(writer=Writer(api=api, clock=clock, leading=lambda: True))
    template, ref = claim_templates.Template("{}"), PodRef(namespace="team", name="p", uid=PodUid("u"))
    templates.watch.upsert(("p", ClaimingPod(ref, (), template)))
    templates._tick(0)
    templates.watch.replace([])
    templates._tick(UNUSED_S)
    api.seed(claim_templates.PATH.format("team"), {"metadata": {"name": template.name}, "spec": "another"})
    templates.watch.upsert(("p", ClaimingPod(ref, (), template)))
    templates._tick(UNUSED_S + 1)
    needs_no_more("gpushare-controller", api, "get", "list", "create", "delete")
    of_claims = [right for right in granted("gpushare-controller") if "claim" in right[1]]
    assert [right for right in of_claims if not any(allows(right, call) for call in api.calls)] == []


def test_the_dashboard_needs_no_more_and_no_less() -> None:
    api = clusters.small()
    live = command.of_cluster(api, Options(), lambda: OWN, SystemClock())
    for reflector in live.watched.reflectors.values():
        assert reflector._list()
        reflector._stream()
    live.tick()
    live.ask_use()
    api.close()
    assert api.asked
    needs_no_more(DASHBOARD, api, "get", "list", "watch")
    unused = [right for right in granted(DASHBOARD) if not any(allows(right, call) for call in api.calls)]
    assert unused == [(OWN, "/pods/proxy", "get", "")]  # which has been asked


def test_a_call_without_a_right_would_be_seen() -> None:
    assert not allowed("gpushare-controller", Call("delete", f"/api/v1/namespaces/{OWN}/secrets/x"))
    assert not allowed("gpushare-webhook", Call("get", f"/api/v1/namespaces/{OWN}/secrets/other"))
    assert allowed("gpushare-controller", Call("create", "/api/v1/namespaces/default/pods/x/binding"))


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
    assert f"The controller's request, {request} MiB, is enough for the leader of a cluster of 5,000 nodes" in page


def test_the_controller_knows_its_pod_by_its_name() -> None:
    """The name of the host is another one with hostNetwork."""
    [container] = SPECS["gpushare-controller"]["containers"]
    assert {"name": "GPUSHARE_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in container["env"]


def test_roll_outs_and_drains_lose_no_replica() -> None:
    controller, webhook = (
        tree.one(BASE, "Deployment", name)["spec"] for name in ("gpushare-controller", "gpushare-webhook")
    )
    assert controller["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": "100%"}
    assert webhook["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert webhook["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]
    guarded = {each["metadata"]["name"] for each in tree.objects("servers") if each["kind"] == "PodDisruptionBudget"}
    assert guarded == {"gpushare-webhook", "gpushare-scheduler", "gpushare-controller"}


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
    paths = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert {kind: (get["path"], get["port"]) for kind, get in gets.items()} == {
        kind: (path, "probes") for kind, path in paths.items()
    }


VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "projected", "secret"}
"""Those of `restricted-v2`, which every account may use, and `nonroot-v2`, which is the same for any user but root."""
VALUES: list[Json] = [
    {},
    *({"watchdog": policy} for policy in ("report", "evict", "kill")),
    {"watchdog": "kill", "limits": {"cgroup": True}},
    {"dashboard": {"enabled": True}},
]


def constraints(found: list[Json]) -> Iterator[tuple[str, str]]:
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
    accounts = dict(constraints(found))
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
