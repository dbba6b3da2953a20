"""What OpenShift's SecurityContextConstraints let in: each pod of this project, by what its account may use."""

from collections.abc import Iterator

import pytest

from gpushare import names
from testing.manifests import helm, tree
from testing.manifests.tree import Json

# OpenShift's own, as of 4.22, in the fields that matter here. `restricted-v2` is what every account may use.
RESTRICTED: Json = {
    "volumes": ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "projected", "secret"],
    "allowedCapabilities": ["NET_BIND_SERVICE"],
    "requiredDropCapabilities": ["ALL"],
    "allowPrivilegeEscalation": False,
    "seccompProfiles": ["runtime/default"],
    "runAsUser": {"type": "MustRunAsRange", "uidRangeMin": 1_000_650_000, "uidRangeMax": 1_000_659_999},
}
NONROOT: Json = {**RESTRICTED, "runAsUser": {"type": "MustRunAsNonRoot"}}
DEFAULT: Json = {"type": "RuntimeDefault"}
FLAGS = {"privileged": "allowPrivilegedContainer", "allowPrivilegeEscalation": "allowPrivilegeEscalation"}
VALUES: list[Json] = [
    {},
    *({"watchdog": policy} for policy in ("report", "evict", "kill")),
    {"watchdog": "kill", "limits": {"cgroup": True}},
    {"dashboard": {"enabled": True}},
]


def problems(constraints: Json, spec: Json) -> Iterator[str]:
    """Why a pod is refused."""
    for host in ("hostPID", "hostNetwork", "hostIPC"):
        if spec.get(host) and not constraints.get(host.replace("host", "allowHost")):
            yield host
    kinds = {kind for volume in spec.get("volumes", ()) for kind in volume if kind != "name"}
    kinds |= {"projected"} if spec["automountServiceAccountToken"] else set()
    yield from sorted(kinds - set(constraints["volumes"]))
    if "hostPath" in kinds and not constraints.get("allowHostDirVolumePlugin"):
        yield "hostPath"
    if not may_run_as(constraints["runAsUser"], spec["securityContext"]["runAsUser"]):
        yield "runAsUser"
    if (spec["securityContext"]["seccompProfile"], constraints["seccompProfiles"]) != (DEFAULT, ["runtime/default"]):
        yield "seccompProfile"
    for container in spec["containers"]:
        yield from of_container(constraints, container["securityContext"])


def of_container(constraints: Json, context: Json) -> Iterator[str]:
    for flag in ("privileged", "allowPrivilegeEscalation"):
        if context.get(flag) and not constraints.get(FLAGS[flag]):
            yield flag
    yield from sorted(set(context["capabilities"].get("add", ())) - set(constraints["allowedCapabilities"]))
    if not set(constraints.get("requiredDropCapabilities") or ()) <= set(context["capabilities"]["drop"]):
        yield "capabilities.drop"
    if constraints.get("readOnlyRootFilesystem") and not context["readOnlyRootFilesystem"]:
        yield "readOnlyRootFilesystem"


def may_run_as(strategy: Json, uid: int) -> bool:
    kinds: dict[str, bool] = {
        "MustRunAs": uid == strategy.get("uid"),
        "MustRunAsNonRoot": uid != 0,
        "MustRunAsRange": uid in range(strategy.get("uidRangeMin", 0), strategy.get("uidRangeMax", -1) + 1),
    }
    return kinds[strategy["type"]]


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
    own = {each["metadata"]["name"]: each for each in found if each["kind"] == "SecurityContextConstraints"}
    known = {**own, "nonroot-v2": NONROOT}
    accounts = dict(granted(found))

    for name, spec in tree.workloads(found):
        account = spec["serviceAccountName"]
        assert not list(problems(known[accounts[account]], spec)), name
        assert "runAsUser" in list(problems(RESTRICTED, spec)), f"{name} needs nothing of this"
    of_no_pod = {"gpushare-dashboard"} - {name for name, _ in tree.workloads(found)}
    assert set(accounts) - of_no_pod == {spec["serviceAccountName"] for _, spec in tree.workloads(found)}
    assert [account for account, constraints in accounts.items() if constraints in own] == [names.PLUGIN]


def test_the_device_plugin_gets_its_own_constraints_and_the_selinux_type_that_reaches_the_kubelet() -> None:
    found = helm.render({"kubeVersion": "1.30.0", "openshift": {"enabled": True}})
    plugin = tree.one(found, "DaemonSet", names.PLUGIN)["spec"]["template"]
    own = tree.one(found, "SecurityContextConstraints", names.PLUGIN)

    assert plugin["metadata"]["annotations"]["openshift.io/required-scc"] == own["metadata"]["name"]
    assert own["seLinuxContext"] == {"type": "MustRunAs", "seLinuxOptions": {"type": "spc_t"}}
    assert "seLinuxOptions" not in plugin["spec"]["securityContext"]  # the constraints add the namespace's level
    assert not [key for key in ("allowPrivilegedContainer", "allowHostNetwork", "allowHostIPC") if own[key]]
    assert (own["users"], own["groups"]) == ([], [])
