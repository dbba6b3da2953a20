"""Pods that run while installations come, change and go, and what is left of an installation."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from gpushare import names
from localcluster import installation
from localcluster.installation import Tree
from tests.e2e import checks, former, former_version, seen
from tests.e2e.seen import Grants, Seen
from tests.e2e.system import Json, Share, System, is_ready, replica_set

NODES: Final = ("node-1", "node-2")
GATE: Final = "gpushare.test/gate"
"""A label of nodes for which a pod waits."""
MEANWHILE: Final = 4
RUNTIME_CLASS: Final = f"runtimeclass.node.k8s.io/{names.RUNTIME_CLASS}"


def named(age: str) -> list[str]:
    return [f"{age}-{node}" for node in NODES]


def start(system: System, namespace: str, age: str) -> None:
    """On each node a pod with a container that has a share and one that has none."""
    pods = [Share(name=f"{age}-{node}", gib=(2, None)).document() for node in NODES]
    for pod, node in zip(pods, NODES, strict=True):
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    system.create(namespace, *pods)
    system.running(namespace, *named(age))


def start_waiting(system: System, namespace: str, age: str) -> None:
    """A pod that is created by one version and placed by the other."""
    pod = Share(name=f"{age}-waits", gib=(2,)).document()
    pod["spec"]["nodeSelector"] = {GATE: age}
    system.create(namespace, pod)


def created_meanwhile(system: System, namespace: str, what: str) -> None:
    """Pods of an owner, which come while parts of this project are replaced."""
    system.create(namespace, replica_set(Share(name=f"during-{what}").document(), MEANWHILE))


def run_meanwhile(system: System, namespace: str, what: str) -> None:
    """The kubelet rejects a pod that comes while no plugin is registered; its owner makes another (operate.md)."""

    def running() -> bool:
        pods = [pod for pod in system.pods(namespace) if pod["metadata"]["name"].startswith(f"during-{what}-")]
        failed = [pod["status"].get("reason") for pod in pods if pod["status"].get("phase") == "Failed"]
        assert {*failed} <= {"UnexpectedAdmissionError"}, failed
        return sum(map(is_ready, pods)) == MEANWHILE

    system.eventually(f"{MEANWHILE} pods that came during {what} run", running)


def restart_containers(system: System, namespace: str, pods: Sequence[str]) -> None:
    """End each container's first process, and wait for the next one."""

    def counts() -> dict[tuple[str, str], int]:
        return {
            (name, status["name"]): status["restartCount"] if status["ready"] else -1
            for name in pods
            for status in system.pod(namespace, name)["status"]["containerStatuses"]
        }

    before = counts()
    for pod in pods:
        # A kubelet that has just started knows no pod before it has listed them.
        system.eventually(f"commands run in {pod}", partial(_runs, system, namespace, pod, "true"))
    for pod, container in before:
        # The container may take the command along before that has reported its end.
        _runs(system, namespace, pod, "kill", "1", container=container)
    system.eventually("all containers run again", lambda: all(now > before[key] for key, now in counts().items()))


def _runs(system: System, namespace: str, pod: str, *command: str, container: str = "c0") -> bool:
    argv = ["exec", "-n", namespace, pod, "-c", container, "--", *command]
    return system.cluster.kubectl(*argv, check=False).returncode == 0


def sees_its_gpus(system: System, namespace: str, pods: Sequence[str], grants: Grants | None = None) -> None:
    """By the variable alone if the former version has answered the kubelet, else as their node does."""
    known = grants or Grants.of(system)

    def printed(pod: Json, container: str) -> Seen | None:
        variables = system.environment(pod, container)
        return None if variables is None else seen.by(variables)

    for name in pods:
        pod = system.pod(namespace, name)
        for container in (each["name"] for each in pod["spec"]["containers"]):
            wanted = known.to(pod, container)
            found = system.eventually(f"{name} has printed", partial(printed, pod, container))
            assert found == (wanted if grants else Seen(told=wanted.told)), f"{name}/{container}"


def never_stopped(system: System, namespace: str, pods: Sequence[str]) -> None:
    for name in pods:
        statuses = system.pod(namespace, name)["status"]["containerStatuses"]
        assert [status["restartCount"] for status in statuses] == [0] * len(statuses), name


def containers(system: System, namespace: str, pods: Sequence[str]) -> Mapping[str, list[str]]:
    """Of each pod the IDs, which differ once a container was made again."""
    found = [system.pod(namespace, name) for name in pods]
    assert all(map(is_ready, found))
    return {
        pod["metadata"]["name"]: sorted(status["containerID"] for status in pod["status"]["containerStatuses"])
        for pod in found
    }


def ledger_is_right(system: System) -> None:
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_ledger_equals_the_pods(system)


def all_replaced(system: System, of: Tree) -> None:
    """Until every pod that stays has this version and its workload's settings, and all parts serve."""
    found = json.loads(
        system.cluster.kubectl("get", former_version.WORKLOADS, "-n", names.NAMESPACE, "-o", "json").stdout
    )
    wanted = {each["metadata"]["name"]: _version_and_settings(each["spec"]["template"]) for each in found["items"]}
    assert wanted[names.WEBHOOK][0].rpartition(":")[2] == of.image.rpartition(":")[2]

    def done() -> bool:
        pods = [pod for pod in system.pods(names.NAMESPACE) if "deletionTimestamp" not in pod["metadata"]]
        workloads = [pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods]
        # A kubelet refuses pods that come to its node while the plugin is away.
        plugins = [
            pod for pod, workload in zip(pods, workloads, strict=True) if workload == names.PLUGIN and is_ready(pod)
        ]
        return len(plugins) == len(system.cluster.nodes) and all(
            _version_and_settings(pod) == wanted[workload] for pod, workload in zip(pods, workloads, strict=True)
        )

    system.eventually("every pod that stays is as its workload says, and a plugin is ready on every node", done)
    installation.wait_ready(system.cluster)
    former.webhooks_work(system)


def _version_and_settings(pod: Json) -> tuple[str, str]:
    annotations = pod["metadata"].get("annotations") or {}
    return pod["spec"]["containers"][0]["image"], annotations.get("checksum/config", "")


def left(system: System) -> list[str]:
    """Whatever has the project's name, or its annotations on nodes; the RuntimeClass too."""
    kubectl = system.cluster.kubectl
    kinds = kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    asked = ",".join(kind for kind in kinds if not kind.startswith(("events", "pods")))
    # Some kinds cannot be listed, which is an error of the whole command.
    found = kubectl("get", asked, "--all-namespaces", "-o", "name", check=False, timeout_s=120).stdout.split()
    assert {"namespace/kube-system", "clusterrole.rbac.authorization.k8s.io/edit"} <= {*found}
    nodes = json.loads(kubectl("get", "nodes", "-o", "json").stdout)["items"]
    marked = [
        node["metadata"]["name"]
        for node in nodes
        if "gpushare" in json.dumps([node["metadata"].get(key) for key in ("annotations", "labels")])
    ]
    return [name for name in found if "gpushare" in name or name == RUNTIME_CLASS] + marked
