"""What kube-linter's rules find in the chart with all of its parts: exactly what docs/contributing/linters.md declines.

The rules are those of kube-linter at 35de568 (August 2026), told again here, since the program is written in Go. Those
about kinds of objects that the chart has not (Ingress, Job, HorizontalPodAutoscaler) find nothing by nature.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from testing.manifests.helm import objects
from testing.manifests.tree import ROOT, Json

PAGE: Final = ROOT / "docs" / "contributing" / "linters.md"
PARTS: Final[Json] = {
    "networkPolicy": {"enabled": True, "prometheusNamespaces": ["monitoring"]},
    "monitoring": {each: {"enabled": True} for each in ("podMonitor", "serviceMonitor", "rules", "dashboards")},
    "dashboard": {"enabled": True},
    "limits": {"cgroup": True, "mps": True},
    "watchdog": "kill",
    "placeholders": 1,
    "dra": {"enabled": True},
    "kubeVersion": "1.36.0",
}
FINE: Final = "ClusterIP"
WORKLOADS: Final = "deployments|statefulsets|replicasets|cronjobs?|jobs|daemonsets"
SENSITIVE: Final = {"/", "/boot", "/dev", "/etc", "/lib", "/proc", "/sys", "/usr"}
Rule = Callable[[Json], bool]  # whether it finds something in an object, or in a pod's spec, or in a container


def selected(selector: Mapping[str, str], template: Json) -> bool:
    labels: dict[str, str] = template["metadata"]["labels"]
    return selector.items() <= labels.items()


def ports(container: Json) -> list[Json]:
    return container.get("ports") or []


def env(container: Json) -> list[Json]:
    return container.get("env") or []


def security(container: Json) -> Json:
    return {**container["pod"].get("securityContext", {}), **container.get("securityContext", {})}


def host_paths(pod: Json) -> dict[str, str]:
    return {each["name"]: each["hostPath"]["path"] for each in pod.get("volumes", []) if "hostPath" in each}


def asks(resource: str) -> Rule:
    def lacks(container: Json) -> bool:
        given = container.get("resources", {})
        return any(resource not in given.get(part, {}) for part in ("requests", "limits"))

    return lacks


def probe_port(probe: str) -> Rule:
    def odd(container: Json) -> bool:
        port = container.get(probe, {}).get("httpGet", {}).get("port")
        return port is not None and port not in {each["name"] for each in ports(container)}

    return odd


@dataclass(frozen=True, slots=True)
class Chart:
    objects: list[Json]

    def workloads(self) -> Iterator[Json]:
        return (each for each in self.objects if "template" in each.get("spec", {}))

    def of_workload(self, rule: Rule) -> set[str]:
        return {each["metadata"]["name"] for each in self.workloads() if rule(each)}

    def of_pod(self, rule: Rule) -> set[str]:
        return self.of_workload(lambda each: rule(each["spec"]["template"]["spec"]))

    def of_container(self, rule: Rule) -> set[str]:
        return self.of_pod(
            lambda pod: any(rule({"pod": pod, **each}) for each in pod["containers"] + pod.get("initContainers", []))
        )

    def of_any(self, rule: Rule) -> set[str]:
        return {each["metadata"]["name"] for each in self.objects if rule(each)}

    def of_kind(self, kind: str, rule: Rule) -> set[str]:
        return self.of_any(lambda each: each["kind"] == kind and rule(each))

    def rights(self, resources: str, verbs: str) -> set[str]:
        def has(role: Json) -> bool:
            return any(
                any(re.fullmatch(resources, each) for each in rule.get("resources", ()))
                and any(re.fullmatch(verbs, each) for each in rule["verbs"])
                for rule in role["rules"] or ()
            )

        return self.of_kind("ClusterRole", has) | self.of_kind("Role", has)

    def without_service_account(self, pod: Json) -> bool:
        return pod.get("serviceAccountName", "default") not in {
            each["metadata"]["name"] for each in self.objects if each["kind"] == "ServiceAccount"
        }

    def selects_nothing(self, selector: Mapping[str, str]) -> bool:
        return not any(selected(selector, each["spec"]["template"]) for each in self.workloads())

    def target_missing(self, service: Json) -> bool:
        declared = {
            port["name"]
            for each in self.workloads()
            if each["metadata"]["name"] == service["metadata"]["name"]
            for container in each["spec"]["template"]["spec"]["containers"]
            for port in ports(container)
        }
        return not {port["targetPort"] for port in service["spec"]["ports"]} <= declared

    def not_isolated(self, workload: Json) -> bool:
        policies = [each["spec"]["podSelector"] for each in self.objects if each["kind"] == "NetworkPolicy"]
        return not any(selected(each.get("matchLabels", {}), workload["spec"]["template"]) for each in policies)

    def findings(self) -> dict[str, set[str]]:
        """By rule, the names of what it finds fault with."""
        return {
            "access-to-create-pods": self.rights(
                "pods|deployments|statefulsets|replicasets|cronjobs?|jobs|daemonsets", "create"
            ),
            "access-to-secrets": self.rights("secrets", r"get|list|delete|create|watch|\*"),
            "cluster-admin-role-binding": self.of_kind(
                "ClusterRoleBinding", lambda each: each["roleRef"]["name"] == "cluster-admin"
            ),
            "dangling-networkpolicy": self.of_kind(
                "NetworkPolicy", lambda each: self.selects_nothing(each["spec"]["podSelector"].get("matchLabels", {}))
            ),
            "dangling-service": self.of_kind("Service", lambda each: self.selects_nothing(each["spec"]["selector"])),
            "default-service-account": self.of_pod(lambda pod: pod.get("serviceAccountName", "default") == "default"),
            "deprecated-service-account-field": self.of_pod(lambda pod: "serviceAccount" in pod),
            "docker-sock": self.of_pod(
                lambda pod: any(path.endswith("docker.sock") for path in host_paths(pod).values())
            ),
            "drop-net-raw-capability": self.of_container(
                lambda each: not {"ALL", "NET_RAW"} & {*security(each).get("capabilities", {}).get("drop", ())}
            ),
            "duplicate-env-var": self.of_container(
                lambda each: len({one["name"] for one in env(each)}) != len(env(each))
            ),
            "env-var-secret": self.of_container(
                lambda each: any("secret" in one["name"].lower() and one.get("value") for one in env(each))
            ),
            "exposed-services": self.of_kind(
                "Service", lambda each: each["spec"].get("type", "ClusterIP") != "ClusterIP"
            ),
            "host-ipc": self.of_pod(lambda pod: pod.get("hostIPC", False)),
            "host-network": self.of_pod(lambda pod: pod.get("hostNetwork", False)),
            "host-pid": self.of_pod(lambda pod: pod.get("hostPID", False)),
            "invalid-target-ports": self.of_kind("Service", self.target_missing),
            "latest-tag": self.of_container(lambda each: ":" not in each["image"] or each["image"].endswith(":latest")),
            "liveness-port": self.of_container(probe_port("livenessProbe")),
            "minimum-three-replicas": self.of_kind("Deployment", lambda each: each["spec"]["replicas"] < 3),
            "mismatching-selector": self.of_workload(
                lambda each: not selected(each["spec"]["selector"]["matchLabels"], each["spec"]["template"])
            ),
            "no-anti-affinity": self.of_kind(
                "Deployment",
                lambda each: (
                    each["spec"]["replicas"] > 1
                    and "podAntiAffinity" not in each["spec"]["template"]["spec"].get("affinity", {})
                ),
            ),
            "no-liveness-probe": self.of_container(lambda each: "livenessProbe" not in each),
            "no-node-affinity": self.of_pod(lambda pod: "nodeAffinity" not in pod.get("affinity", {})),
            "no-read-only-root-fs": self.of_container(lambda each: not security(each).get("readOnlyRootFilesystem")),
            "no-readiness-probe": self.of_container(lambda each: "readinessProbe" not in each),
            "no-rolling-update-strategy": self.of_kind(
                "Deployment",
                lambda each: each["spec"].get("strategy", {}).get("type", "RollingUpdate") != "RollingUpdate",
            ),
            "non-existent-service-account": self.of_pod(self.without_service_account),
            "non-isolated-pod": self.of_workload(self.not_isolated),
            "pdb-min-available": self.of_kind("PodDisruptionBudget", lambda each: each["spec"]["minAvailable"] > 1),
            "pdb-unhealthy-pod-eviction-policy": self.of_kind(
                "PodDisruptionBudget", lambda each: each["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow"
            ),
            "priority-class-name": self.of_pod(lambda pod: not pod.get("priorityClassName")),
            "privilege-escalation-container": self.of_container(
                lambda each: security(each).get("allowPrivilegeEscalation", True) is not False
            ),
            "privileged-container": self.of_container(lambda each: security(each).get("privileged", False)),
            "privileged-ports": self.of_container(lambda each: any(one["containerPort"] < 1024 for one in ports(each))),
            "read-secret-from-env-var": self.of_container(
                lambda each: any("secretKeyRef" in one.get("valueFrom", {}) for one in env(each))
            ),
            "readiness-port": self.of_container(probe_port("readinessProbe")),
            "required-annotation-email": {
                each["metadata"]["name"] for each in self.objects if not each["metadata"].get("email")
            },
            "required-label-owner": {
                each["metadata"]["name"] for each in self.objects if "owner" not in each["metadata"].get("labels", {})
            },
            "run-as-non-root": self.of_container(lambda each: not security(each).get("runAsNonRoot")),
            "sensitive-host-mounts": self.of_pod(lambda pod: bool(SENSITIVE & {*host_paths(pod).values()})),
            "ssh-port": self.of_container(lambda each: any(one["containerPort"] == 22 for one in ports(each))),
            "startup-port": self.of_container(probe_port("startupProbe")),
            "unsafe-proc-mount": self.of_container(
                lambda each: security(each).get("procMount", "Default") != "Default"
            ),
            "unsafe-sysctls": self.of_pod(lambda pod: "sysctls" in pod.get("securityContext", {})),
            "unset-cpu-requirements": self.of_container(asks("cpu")),
            "unset-memory-requirements": self.of_container(asks("memory")),
            "use-namespace": {
                each["metadata"]["name"] for each in self.objects if each["metadata"].get("namespace") == "default"
            },
            "wildcard-in-rules": self.rights(r"\*", ".*") | self.rights(".*", r"\*"),
            "writable-host-mount": self.of_container(
                lambda each: any(
                    not mount.get("readOnly") and mount["name"] in host_paths(each["pod"])
                    for mount in each.get("volumeMounts", ())
                )
            ),
        }


def test_what_the_rules_find_is_what_the_page_declines() -> None:
    charts = [Chart(objects(**{**PARTS, "dashboard": {"enabled": True, "signIn": on}})) for on in (False, True)]
    both: dict[str, set[str]] = {}
    for chart in charts:
        for rule, where in chart.findings().items():
            both.setdefault(rule, set()).update(where)
    found = {rule: where for rule, where in both.items() if where}
    of_all = [Chart.of_workload, Chart.of_any]  # by a rule about pods, or about any object
    every = [{name for chart in charts for name in of(chart, lambda _: True)} for of in of_all]
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    declined = dict(rows)
    assert list(declined) == sorted(found)
    for rule, where in declined.items():
        if where == "all":
            assert found[rule] == every[rule.startswith("required-")], rule
        else:
            named = {*re.findall(r"`([a-z-]+)`", where)}
            assert named == {name.removeprefix("gpushare-") for name in found[rule]}, rule


def test_no_rule_is_blind() -> None:
    """Each finds something in objects that break all of them."""
    port = {"name": "p", "containerPort": 22}
    probes = {f"{kind}Probe": {"httpGet": {"port": 1}} for kind in ("startup", "liveness", "readiness")}
    secret = {"name": "SECRET", "value": "x", "valueFrom": {"secretKeyRef": {}}}
    bare: Json = {"name": "a", "image": "i", "env": [secret, secret], "ports": [port], "volumeMounts": [{"name": "v"}]}
    loose: Json = {"privileged": True, "procMount": "Unmasked"}
    volumes = [{"name": "v", "hostPath": {"path": "/etc"}}, {"name": "w", "hostPath": {"path": "/run/docker.sock"}}]
    hosts = {"hostIPC": True, "hostPID": True, "hostNetwork": True, "serviceAccount": "x", "volumes": volumes}
    pods: list[Json] = [
        {**hosts, "securityContext": {"sysctls": []}, "containers": [{**bare, **probes, "securityContext": loose}]},
        {"containers": [bare]},
    ]
    made: list[Json] = [
        {
            "kind": "Deployment",
            "metadata": {"name": f"d{number}", "namespace": "default"},
            "spec": {
                "replicas": 2,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": {"app": "other"}},
                "template": {"metadata": {"labels": {"app": "a"}}, "spec": pod},
            },
        }
        for number, pod in enumerate(pods)
    ]
    service = {"type": "NodePort", "selector": {"app": "b"}, "ports": [{"targetPort": "q"}]}
    rule = {"resources": ["*", "secrets", "pods"], "verbs": ["*", "create"]}
    made += [
        {"kind": "Service", "spec": service},
        {"kind": "NetworkPolicy", "spec": {"podSelector": {"matchLabels": {"app": "b"}}}},
        {"kind": "PodDisruptionBudget", "spec": {"minAvailable": 2}},
        {"kind": "ClusterRole", "rules": [rule]},
        {"kind": "ClusterRoleBinding", "roleRef": {"name": "cluster-admin"}},
    ]
    given = [{"metadata": {"name": "x"}, **each} for each in made]
    assert [rule for rule, found in Chart(given).findings().items() if not found] == []
