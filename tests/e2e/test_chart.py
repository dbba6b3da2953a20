"""The Helm chart, as docs/install.md has it, from kubectl's installation to its own, with pods that run through all."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpushare import names
from localcluster import installation
from localcluster.installation import LOCAL, ROOT, Tree
from testing.manifests import helm_cli
from tests.e2e import former, former_version
from tests.e2e.administrator import Administrator
from tests.e2e.conftest import PROFILE
from tests.e2e.seen import Grants
from tests.e2e.system import Json, Share, System, is_ready
from tests.e2e.test_upgrade import ledger_is_right, named, never_stopped, sees_its_gpus, start

pytestmark = pytest.mark.e2e
NEXT = Tree(ROOT, f"{installation.IMAGE.rpartition(':')[0]}:next")
"""The same under another tag, so that every pod of this project is replaced."""
RUNTIME_CLASS = f"runtimeclass.node.k8s.io/{names.RUNTIME_CLASS}"


@pytest.fixture
def applied(system: System) -> Iterator[None]:
    """An installation made with kubectl, and another version's image; the same installation afterwards."""
    former_version.give_image(system, NEXT)
    yield
    kubectl, within = system.cluster.kubectl, ("-n", names.NAMESPACE)
    installation.label_nodes(system.cluster)
    # Apply alone would leave the variables that only the chart sets.
    kubectl("delete", former_version.WORKLOADS, "--all", *within, "--wait=false", check=False)
    former_version.apply(system, LOCAL)
    kubectl("delete", "secrets", *within, "-l", "owner=helm")
    all_replaced(system, LOCAL)


def values(**changed: object) -> Json:
    """What the tests' own kustomization says."""
    lease = {"leaseSeconds": 6, "renewSeconds": 3, "retrySeconds": 0.5, "bindSeconds": 1}
    certificates = {"certCheckS": 2, "certPropagationS": 5, "certRetireS": 10, "gracefulTimeoutS": 1}
    written = {"wholeGpus": True, "gpus": "simulated", "simulatedGpus": yaml.safe_load(PROFILE)}
    written |= {"controller": {"settings": lease}, "webhook": {"settings": certificates}}
    return {**written, "runtimeClass": {"refuse": "nothing"}, **changed}


def with_helm(system: System, directory: Path) -> Administrator:
    """An administrator who has the program, and a file of values."""
    program = directory / "bin" / "helm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, helm_cli.__file__])} "$@"\n')
    program.chmod(0o755)
    variables = {"CHART": str(ROOT / "manifests" / "chart"), "VALUES": str(directory / "values.yaml")}
    return Administrator(system, "install.md", "Helm", directory, variables)


def test_pods_run_on_while_a_release_comes_changes_goes_back_and_goes(
    system: System, namespace: str, applied: None, tmp_path: Path
) -> None:
    start(system, namespace, "first")
    grants = Grants.of(system)
    sees_its_gpus(system, namespace, named("first"), grants)
    before = containers(system, namespace, named("first"))

    administrator = with_helm(system, tmp_path)
    write(tmp_path, values())
    administrator.follows("take over what kubectl has installed")
    deployed(system, revision=1)  # that it serves is seen when it is back

    write(tmp_path, values(image={"tag": "next"}, settings={"logLevel": "debug"}))
    administrator.follows("upgrade")
    during = [Share(name=f"during-{i}").document() for i in range(4)]
    system.create(namespace, *during)
    deployed(system, revision=2)
    all_replaced(system, NEXT)
    system.running(namespace, *[pod["metadata"]["name"] for pod in during])
    assert log_level(system) == "debug"

    administrator.follows("go back")
    deployed(system, revision=3)
    all_replaced(system, LOCAL)
    assert log_level(system) == "info"
    start(system, namespace, "last")
    ledger_is_right(system)

    administrator.follows("remove", leaving_out="kubectl")
    # A namespace in which pods are ending goes later than the last of them.
    system.eventually("no pod is left", lambda: not system.pods(names.NAMESPACE))
    administrator.follows("remove", leaving_out="helm")
    Administrator(system, "operate.md", "Remove", tmp_path).follows("what is left on nodes")
    assert left(system) == [RUNTIME_CLASS]

    write(tmp_path, values())
    administrator.follows("install", "--all")
    deployed(system, revision=1)
    all_replaced(system, LOCAL)
    start(system, namespace, "new")
    ledger_is_right(system)
    assert administrator.followed_everything()
    never_stopped(system, namespace, [*named("first"), *named("last")])
    assert containers(system, namespace, named("first")) == before
    assert all(is_ready(system.pod(namespace, name)) for name in named("first"))


def write(directory: Path, document: Json) -> None:
    (directory / "values.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


def deployed(system: System, revision: int) -> None:
    """Whether Helm has made it the current revision of the release."""
    path = f"/api/v1/namespaces/{names.NAMESPACE}/secrets/sh.helm.release.v1.gpushare.v{revision}"
    assert system.api.get(path)["metadata"]["labels"]["status"] == "deployed"


def all_replaced(system: System, of: Tree) -> None:
    """Until every pod that stays has this version and its workload's settings, and all parts serve."""
    found = json.loads(
        system.cluster.kubectl("get", former_version.WORKLOADS, "-n", names.NAMESPACE, "-o", "json").stdout
    )
    wanted = {each["metadata"]["name"]: version_and_settings(each["spec"]["template"]) for each in found["items"]}
    assert wanted[names.WEBHOOK][0].rpartition(":")[2] == of.image.rpartition(":")[2]

    def done() -> bool:
        pods = [pod for pod in system.pods(names.NAMESPACE) if "deletionTimestamp" not in pod["metadata"]]
        workloads = [pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods]
        # A kubelet refuses pods that come to its node while the plugin is away.
        plugins = [
            pod for pod, workload in zip(pods, workloads, strict=True) if workload == names.PLUGIN and is_ready(pod)
        ]
        return len(plugins) == len(system.cluster.nodes) and all(
            version_and_settings(pod) == wanted[workload] for pod, workload in zip(pods, workloads, strict=True)
        )

    system.eventually("every pod that stays is as its workload says, and a plugin is ready on every node", done)
    installation.wait_ready(system.cluster)
    former.webhooks_work(system)


def version_and_settings(pod: Json) -> tuple[str, str]:
    annotations = pod["metadata"].get("annotations") or {}
    return pod["spec"]["containers"][0]["image"], annotations.get("checksum/config", "")


def containers(system: System, namespace: str, pods: list[str]) -> list[str]:
    """Their IDs: a container that was made again has another."""
    statuses = [system.pod(namespace, name)["status"]["containerStatuses"] for name in pods]
    return [each["containerID"] for status in statuses for each in status]


def log_level(system: System) -> str:
    path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/gpushare-config"
    level: str = system.api.get(path)["data"]["GPUSHARE_LOG_LEVEL"]
    return level


def left(system: System) -> list[str]:
    """Whatever has the project's name, or its annotations on nodes; the RuntimeClass too."""
    kubectl = system.cluster.kubectl
    kinds = kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    asked = ",".join(kind for kind in kinds if not kind.startswith(("events", "pods")))
    found = kubectl("get", asked, "--all-namespaces", "-o", "name", check=False, timeout_s=120).stdout.split()
    nodes = json.loads(kubectl("get", "nodes", "-o", "json").stdout)["items"]
    marked = [
        node["metadata"]["name"]
        for node in nodes
        if "gpushare" in json.dumps([node["metadata"].get(key) for key in ("annotations", "labels")])
    ]
    return [name for name in found if "gpushare" in name or name == RUNTIME_CLASS] + marked
