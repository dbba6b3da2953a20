"""Installations of this version and of the one before, from the history, and pods that run through them."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from gpushare import names
from localcluster import installation
from localcluster.installation import Tree
from tests.e2e import former
from tests.e2e.checks import Grants, Seen, seen_by
from tests.e2e.conftest import CONFIG, PROFILE
from tests.e2e.system import Json, System, is_ready, make_pod, replica_set, restarts

NODES: Final = ("node-1", "node-2")
GATE: Final = "gpushare.test/gate"
"""A label of nodes for which a pod waits."""
MEANWHILE: Final = 4
RUNTIME_CLASS: Final = f"runtimeclass.node.k8s.io/{names.RUNTIME_CLASS}"
COMMIT: Final = os.environ.get("UPGRADE_FROM", "1e2162766c65adda28ddfd84ff66ad204b803236")
"""By default the last one that knew neither CDI nor limits that hold."""
WORKLOADS: Final = "deployments,daemonsets"


def former_tree(directory: Path) -> Tree:
    """Its sources. Without the repository's history there is no test here; CI has it."""
    argv = ["git", "-C", str(installation.ROOT), "archive", COMMIT]
    archived = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    if archived.returncode != 0:
        problem = f"no commit {COMMIT} here (git fetch --unshallow brings it): {archived.stderr.decode().strip()}"
        if "UPGRADE_FROM" in os.environ:
            pytest.fail(problem)
        pytest.skip(problem)
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archived.stdout, timeout=60, check=True)
    return Tree(directory, f"{installation.IMAGE.rpartition(':')[0]}:former")


def give_image(system: System, of: Tree) -> None:
    archive = installation.build_image(system.cluster, of)
    system.cluster.import_image(archive)
    archive.unlink()


def remove_all(system: System) -> None:
    """This project, so that the former version is installed on a cluster that has never seen this one."""
    kubectl = system.cluster.kubectl
    kubectl("delete", former.WEBHOOKS, "gpushare-webhook")
    kubectl("delete", "-k", str(system.cluster.workdir / "kustomization"), "--ignore-not-found", timeout_s=300)
    nodes = [node.name for node in system.cluster.nodes]
    kubectl("annotate", "nodes", *nodes, f"{names.ANNOTATION_INVENTORY}-")


def overlay(system: System, of: Tree, config: Mapping[str, str] | None = None, profile: str = PROFILE) -> str:
    return str(installation.kustomization(system.cluster, {**CONFIG, **(config or {})}, profile, of))


def apply(system: System, of: Tree, config: Mapping[str, str] | None = None, profile: str = PROFILE) -> None:
    system.cluster.kubectl("apply", "-k", overlay(system, of, config, profile), timeout_s=300)


def wait_rolled(system: System, of: Tree) -> None:
    """Until every part runs in this version and in no other, and answers."""
    tag = of.image.rpartition(":")[2]

    def others() -> list[str]:
        containers = (each for pod in system.pods(names.NAMESPACE) for each in pod["spec"]["containers"])
        images = [each["image"].rpartition("/")[2] for each in containers]
        return [image for image in images if image.startswith("gpushare:") and image != f"gpushare:{tag}"]

    system.eventually("no pod of another version", lambda: not others())
    installation.wait_ready(system.cluster)
    former.webhooks_work(system)


def named(age: str) -> list[str]:
    return [f"{age}-{node}" for node in NODES]


def start(system: System, namespace: str, age: str) -> None:
    """On each node a pod with a container that has a share and one that has none."""
    pods = [make_pod(f"{age}-{node}", 2, None, node=node) for node in NODES]
    system.create(namespace, *pods)
    system.running(namespace, *named(age))


def start_waiting(system: System, namespace: str, age: str) -> None:
    """A pod that is created by one version and placed by the other."""
    system.create(namespace, make_pod(f"{age}-waits", 2, nodeSelector={GATE: age}))


def created_meanwhile(system: System, namespace: str, what: str) -> None:
    """Pods of an owner, which come while parts of this project are replaced."""
    system.create(namespace, replica_set(make_pod(f"during-{what}"), MEANWHILE))


def run_meanwhile(system: System, namespace: str, what: str) -> None:
    """The kubelet rejects a pod that comes while no plugin is registered; its owner makes another (operate.md)."""

    def running() -> bool:
        pods = [pod for pod in system.pods(namespace) if pod["metadata"]["name"].startswith(f"during-{what}-")]
        failed = [pod["status"].get("reason") for pod in pods if pod["status"].get("phase") == "Failed"]
        assert {*failed} <= {"UnexpectedAdmissionError"}, failed
        return sum(map(is_ready, pods)) == MEANWHILE

    system.eventually(f"{MEANWHILE} pods that came during {what} run", running)


def sees_its_gpus(system: System, namespace: str, pods: Sequence[str], grants: Grants | None = None) -> None:
    """By the variable alone if the former version has answered the kubelet, else as their node does."""
    known = grants or Grants.of(system)

    def printed(pod: Json, container: str) -> Seen | None:
        variables = system.environment(pod, container)
        return None if variables is None else seen_by(variables)

    for name in pods:
        pod = system.pod(namespace, name)
        for container in (each["name"] for each in pod["spec"]["containers"]):
            wanted = known.to(pod, container)
            found = system.eventually(f"{name} has printed", partial(printed, pod, container))
            assert found == (wanted if grants else Seen(told=wanted.told)), f"{name}/{container}"


def never_stopped(system: System, namespace: str, pods: Sequence[str]) -> None:
    for name in pods:
        assert {*restarts(system.pod(namespace, name)).values()} == {0}, name


def containers(system: System, namespace: str, pods: Sequence[str]) -> Mapping[str, list[str]]:
    """Of each pod the IDs, which differ once a container was made again."""
    found = [system.pod(namespace, name) for name in pods]
    assert all(map(is_ready, found))
    return {
        pod["metadata"]["name"]: sorted(status["containerID"] for status in pod["status"]["containerStatuses"])
        for pod in found
    }


def all_replaced(system: System, of: Tree) -> None:
    """Until every pod that stays has this version and its workload's settings, and all parts serve."""
    found = json.loads(system.cluster.kubectl("get", WORKLOADS, "-n", names.NAMESPACE, "-o", "json").stdout)
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
    marked = [
        node["metadata"]["name"]
        for node in system.nodes()
        if "gpushare" in json.dumps([node["metadata"].get(key) for key in ("annotations", "labels")])
    ]
    return [name for name in found if "gpushare" in name or name == RUNTIME_CLASS] + marked
