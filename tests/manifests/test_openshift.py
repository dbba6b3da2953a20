"""What OpenShift's SecurityContextConstraints let in: each pod of this project, by what its account may use."""

from collections.abc import Iterator

import pytest

from gpushare import names
from testing.manifests import helm, tree
from testing.manifests.tree import Json

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
