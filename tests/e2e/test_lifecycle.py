"""An installation from its removal over all its changes to its removal, with pods that run through them.

Every command is that of the pages: docs/upgrade.md (Remove, Real GPUs, Go back) and docs/install.md (Helm).
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpushare import names
from gpushare.wire import hand_over
from localcluster import installation
from localcluster.installation import LOCAL, ROOT, Tree
from testing.manifests.helm import NO_REGISTRY, merged
from tests.e2e import checks, disturb, former
from tests.e2e.administrator import Administrator, give_helm
from tests.e2e.checks import Grants, Seen, seen_by
from tests.e2e.conftest import CONFIG, GPU_GIB, PROFILE, components_of
from tests.e2e.system import Json, System, is_ready, make_pod, replica_set, restarts

pytestmark = pytest.mark.timeout(3600)
PAGE: Final = "upgrade.md"
NEXT: Final = Tree(ROOT, f"{installation.IMAGE.rpartition(':')[0]}:next")
"""The same under another tag, so that every pod of this project is replaced."""
WITH_RESERVED: Final = PROFILE.replace("}]", ", reservedMiB: 600}]")
SHAPES: Final = {
    "memory": make_pod("memory", 5, None),
    "per-gpu": make_pod("per-gpu", 7, annotations={names.ANNOTATION_GPUS: "3"}),
    "both": make_pod("both", 3, 4),
}
STAYING: Final = [*SHAPES]
NODES: Final = ("node-1", "node-2")
GATE: Final = "gpushare.test/gate"
"""A label of nodes for which pods wait that are created by one version and placed by the other."""
MEANWHILE: Final = 4
"""Pods of an owner that come while parts of this project are replaced."""
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


def overlay(system: System, of: Tree, config: Mapping[str, str] | None = None, profile: str = PROFILE) -> str:
    added = components_of(system.cluster) if of == installation.LOCAL else ()
    return str(installation.kustomization(system.cluster, {**CONFIG, **(config or {})}, profile, of, added))


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


def all_replaced(system: System, of: Tree) -> None:
    """Until every pod that stays has this version and its workload's settings, and all parts serve."""
    found = json.loads(system.cluster.kubectl("get", WORKLOADS, "-n", names.NAMESPACE, "-o", "json").stdout)
    wanted = {each["metadata"]["name"]: _version_and_settings(each["spec"]["template"]) for each in found["items"]}
    assert wanted[names.WEBHOOK][0].rpartition(":")[2] == of.image.rpartition(":")[2]

    def done() -> bool:
        pods = [pod for pod in system.pods(names.NAMESPACE) if "deletionTimestamp" not in pod["metadata"]]
        workloads = ((pod["metadata"]["labels"]["app.kubernetes.io/name"], pod) for pod in pods)
        is_replaced = all(_version_and_settings(pod) == wanted[workload] for workload, pod in workloads)
        # A kubelet refuses pods that come to its node while the plugin is away.
        return is_replaced and disturb.plugins_ready(system)

    system.eventually("every pod that stays is as its workload says, and a plugin is ready on every node", done)
    installation.wait_ready(system.cluster)
    former.webhooks_work(system)


def _version_and_settings(pod: Json) -> tuple[str, str]:
    annotations = pod["metadata"].get("annotations") or {}
    return pod["spec"]["containers"][0]["image"], annotations.get("checksum/config", "")


def named(age: str) -> list[str]:
    return [f"{age}-{node}" for node in NODES]


def start(system: System, namespace: str, age: str) -> None:
    """On each node a pod with a container that has a share and one that has none."""
    pods = [make_pod(f"{age}-{node}", 2, None, node=node) for node in NODES]
    system.create(namespace, *pods)
    system.running(namespace, *named(age))


def run_meanwhile(system: System, namespace: str, what: str) -> None:
    """The kubelet rejects a pod that comes while no plugin is registered; its owner makes another (operate.md)."""

    def running() -> bool:
        pods = [pod for pod in system.pods(namespace) if pod["metadata"]["name"].startswith(f"during-{what}-")]
        failed = [pod["status"].get("reason") for pod in pods if pod["status"].get("phase") == "Failed"]
        assert {*failed} <= {"UnexpectedAdmissionError"}, failed
        return sum(map(is_ready, pods)) == MEANWHILE

    system.eventually(f"{MEANWHILE} pods that came during {what} run", running)


def sees_its_gpus(system: System, namespace: str, pods: Sequence[str], grants: Grants | None = None) -> None:
    """As their node hands them over, or by the variable alone if a former version has answered the kubelet."""
    known = grants or Grants.of(system)

    def printed(pod: Json, container: str) -> Seen | None:
        variables = system.environment(pod, container)
        return None if variables is None else seen_by(variables)

    for name in pods:
        pod = system.pod(namespace, name)
        for container in (each["name"] for each in pod["spec"]["containers"]):
            wanted = known.to(pod, container)
            found = system.eventually(f"{name} has printed", partial(printed, pod, container))
            assert found in ((wanted,) if grants else (wanted, Seen(told=wanted.told))), f"{name}/{container}"


def never_stopped(system: System, namespace: str, pods: Sequence[str]) -> None:
    for name in pods:
        assert {*restarts(system.pod(namespace, name)).values()} == {0}, name


def containers(system: System, namespace: str, pods: Sequence[str]) -> Mapping[str, list[str]]:
    """Of each pod the IDs, which differ once a container was made again."""
    found = {name: system.pod(namespace, name) for name in pods}
    assert all(map(is_ready, found.values()))
    reports = {name: pod["status"]["containerStatuses"] for name, pod in found.items()}
    return {name: sorted(each["containerID"] for each in listed) for name, listed in reports.items()}


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


@pytest.fixture
def old(system: System, tmp_path: Path) -> Iterator[Tree]:
    """Images of the former version and of the next; whatever the test leaves, the usual installation follows."""
    (tmp_path / "former").mkdir()
    tree = former_tree(tmp_path / "former")
    for each in (tree, NEXT):
        archive = installation.build_image(system.cluster, each)
        system.cluster.import_image(archive)
        archive.unlink()
    yield tree
    kubectl, within = system.cluster.kubectl, ("-n", names.NAMESPACE)
    kubectl("label", "nodes", "--all", f"{GATE}-")
    installation.label_nodes(system.cluster)
    # Apply alone would leave the variables that only the chart sets.
    kubectl("delete", WORKLOADS, "--all", *within, "--wait=false", check=False)
    apply(system, LOCAL)
    kubectl("delete", "secrets", *within, "-l", "owner=helm")
    all_replaced(system, LOCAL)


def test_pods_run_on_while_installations_come_change_go_back_and_go(
    system: System, namespace: str, old: Tree, tmp_path: Path
) -> None:
    it_is_removed(system, namespace, tmp_path)
    simulated_gpus_give_way_to_real_ones(system, tmp_path)

    the_former_version_comes(system, namespace, old)
    it_is_upgraded(system, namespace)
    what_was_started_before_starts_again(system, namespace)
    start(system, namespace, "new")
    start(system, namespace, "kept")
    grants = Grants.of(system)
    sees_its_gpus(system, namespace, [*named("new"), *named("kept")], grants)
    it_goes_back(system, namespace, old, tmp_path)
    never_stopped(system, namespace, [*named("new"), *named("kept")])
    disturb.start_again(system, namespace, *named("new"))
    sees_its_gpus(system, namespace, named("new"), grants)
    start(system, namespace, "old")
    sees_its_gpus(system, namespace, named("old"))
    checks.the_ledger_is_right(system)

    apply(system, LOCAL)
    wait_rolled(system, LOCAL)
    disturb.start_again(system, namespace, *named("kept"), *named("old"))
    sees_its_gpus(system, namespace, named("kept"), grants)
    sees_its_gpus(system, namespace, named("old"))
    checks.the_ledger_is_right(system)

    checks.run_and_see_their_gpus(system, namespace, *SHAPES.values())
    before = containers(system, namespace, STAYING)
    helm = with_helm(system, tmp_path)
    a_release_takes_over_is_upgraded_and_goes_back(system, namespace, helm)
    start(system, namespace, "last")
    checks.the_ledger_is_right(system)
    the_release_goes_and_comes_back(system, namespace, helm)
    assert containers(system, namespace, STAYING) == before, "no container was ended or started again"
    never_stopped(system, namespace, [*STAYING, *named("last")])
    a_gpu_that_has_a_share_is_not_taken_for_a_free_one(system, namespace)


def it_is_removed(system: System, namespace: str, files: Path) -> None:
    """What kubectl has applied, by the page, while a pod runs; nothing is left but the RuntimeClass."""
    system.run(namespace, make_pod("uses"))
    before = containers(system, namespace, ["uses"])
    administrator = Administrator(system.cluster, PAGE, "Remove", files)
    assert "uses" in administrator.follows("see what still uses it")
    administrator.follows("the webhooks")
    administrator.follows("everything else")
    administrator.follows("what is left on nodes")
    assert administrator.followed_everything()
    assert left(system) == [RUNTIME_CLASS]
    assert containers(system, namespace, ["uses"]) == before, "running pods keep their GPUs"


def simulated_gpus_give_way_to_real_ones(system: System, files: Path) -> None:
    """The objects of the overlays, for which no node needs to share: nodes without a driver run no plugin for long."""
    apply(system, LOCAL)
    administrator = Administrator(system.cluster, PAGE, "Real GPUs", files)
    administrator.follows("delete what only simulated GPUs have")
    administrator.follows("apply the other overlay")
    assert administrator.followed_everything()
    runtime_class = system.api.get(f"/apis/node.k8s.io/v1/runtimeclasses/{names.RUNTIME_CLASS}")
    assert runtime_class["handler"] == "nvidia"
    plugin = system.api.get(disturb.PLUGINS)["spec"]["template"]["spec"]
    assert plugin["runtimeClassName"] == names.RUNTIME_CLASS
    assert "simulated" not in json.dumps(plugin)
    # The former version comes to a cluster that has never seen this one.
    kubectl, nodes = system.cluster.kubectl, [node.name for node in system.cluster.nodes]
    kubectl("delete", former.WEBHOOKS, "gpushare-webhook")
    kubectl("delete", "-k", str(system.cluster.workdir / "kustomization"), "--ignore-not-found", timeout_s=300)
    kubectl("annotate", "nodes", *nodes, f"{names.ANNOTATION_INVENTORY}-")
    assert left(system) == []


def the_former_version_comes(system: System, namespace: str, old: Tree) -> None:
    installation.label_nodes(system.cluster)
    apply(system, old)
    wait_rolled(system, old)
    start(system, namespace, "old")
    system.create(namespace, make_pod("old-waits", 2, nodeSelector={GATE: "old"}))
    system.create(namespace, make_pod("full", GPU_GIB))
    system.running(namespace, "full")
    sees_its_gpus(system, namespace, [*named("old"), "full"])


def it_is_upgraded(system: System, namespace: str) -> None:
    """With pods that run, one on all of a GPU of which the driver keeps a part, and pods that are created meanwhile."""
    apply(system, LOCAL, {"GPUSHARE_GPU_MEMORY": "total"}, WITH_RESERVED)
    system.create(namespace, replica_set(make_pod("during-upgrade"), MEANWHILE))
    wait_rolled(system, LOCAL)
    never_stopped(system, namespace, [*named("old"), "full"])
    run_meanwhile(system, namespace, "upgrade")
    checks.the_ledger_is_right(system)


def what_was_started_before_starts_again(system: System, namespace: str) -> None:
    """Containers of running pods, also after their kubelet; and a pod that had no node yet gets one."""
    disturb.start_again(system, namespace, *named("old"), "full")
    sees_its_gpus(system, namespace, [*named("old"), "full"])
    for node in system.cluster.nodes:
        disturb.restart_kubelet(system, node)
    disturb.start_again(system, namespace, *named("old"))
    sees_its_gpus(system, namespace, named("old"))

    system.label(NODES[0], GATE, "old")
    system.running(namespace, "old-waits")
    sees_its_gpus(system, namespace, ["old-waits"], Grants.of(system))
    system.label(NODES[0], GATE, None)
    system.cluster.kubectl("delete", "pods", "-n", namespace, *named("old"), "full", "--wait")
    checks.the_ledger_is_right(system)


def it_goes_back(system: System, namespace: str, old: Tree, files: Path) -> None:
    system.create(namespace, make_pod("new-waits", 2, nodeSelector={GATE: "new"}))
    only_cdi = names.ANNOTATION_HAND_OVER in system.pod(namespace, "new-waits")["metadata"].get("annotations", {})
    administrator = Administrator(system.cluster, PAGE, "Go back", files)
    administrator.follows("what the former version does not know")
    overlay(system, old)
    administrator.follows("apply the former overlay")
    wait_rolled(system, old)
    administrator.follows("create pods that wait again")
    assert administrator.followed_everything()
    knows_cdi = names.HAND_OVER in (old.root / "gpushare" / "names.py").read_text()
    assert system.exists(hand_over.path(names.NAMESPACE)) == knows_cdi
    assert system.exists(f"/api/v1/namespaces/{namespace}/pods/new-waits") == (not only_cdi)
    checks.the_ledger_is_right(system)


def values(system: System, **changed: object) -> Json:
    """What the tests' own kustomization says."""
    lease = {"leaseSeconds": 6, "renewSeconds": 3, "retrySeconds": 0.5, "bindSeconds": 1}
    certificates = {"certCheckS": 2, "certPropagationS": 5, "certRetireS": 10, "gracefulTimeoutS": 1}
    written = {"wholeGpus": True, "gpus": "simulated", "simulatedGpus": yaml.safe_load(PROFILE)}
    written |= {"controller": {"settings": lease}, "webhook": {"settings": certificates}}
    written |= {"devicePlugin": {"settings": {"publishInterval": 2}}}
    written |= {"image": {"registry": NO_REGISTRY}, "runtimeClass": {"refuse": "nothing"}}
    written |= {component: {"enabled": True} for component in components_of(system.cluster)}
    return merged(written, changed)


def with_helm(system: System, directory: Path) -> Administrator:
    """An administrator who has the program, and a file of values."""
    give_helm(directory)
    variables = {"CHART": str(ROOT / "manifests" / "chart"), "VALUES": str(directory / "values.yaml")}
    return Administrator(system.cluster, "install.md", "Helm", directory, variables)


def write(helm: Administrator, document: Json) -> None:
    (helm.directory / "values.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


def a_release_takes_over_is_upgraded_and_goes_back(system: System, namespace: str, helm: Administrator) -> None:
    write(helm, values(system))
    helm.follows("take over what kubectl has installed")
    deployed(system, revision=1)  # that it serves is seen when it is back

    write(helm, values(system, image={"tag": "next"}, settings={"logLevel": "debug"}))
    helm.follows("upgrade")
    system.create(namespace, replica_set(make_pod("during-release"), MEANWHILE))
    deployed(system, revision=2)
    all_replaced(system, NEXT)
    run_meanwhile(system, namespace, "release")
    assert log_level(system) == "debug"

    helm.follows("go back")
    deployed(system, revision=3)
    all_replaced(system, LOCAL)
    assert log_level(system) == "info"


def the_release_goes_and_comes_back(system: System, namespace: str, helm: Administrator) -> None:
    """There is nothing to back up: pods and nodes alone bring back what the system knew."""
    ledger = checks.ledger_of_the_controller(system)
    running = [*STAYING, *named("last")]
    before = containers(system, namespace, running)
    helm.follows("remove", leaving_out="kubectl")
    # A namespace in which pods are ending goes later than the last of them.
    system.eventually("no pod is left", lambda: not system.pods(names.NAMESPACE))
    helm.follows("remove", leaving_out="helm")
    Administrator(system.cluster, PAGE, "Remove", helm.directory).follows("what is left on nodes")
    assert left(system) == [RUNTIME_CLASS]
    assert containers(system, namespace, running) == before, "no container was ended or started again"

    for node in system.cluster.nodes:
        if known := installation.hand_over_label(node.runtime):  # which the removal took from it
            system.cluster.kubectl("label", "node", node.name, *known)
    write(helm, values(system))
    theirs = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"  # an administrator's own
    system.cluster.kubectl("annotate", "runtimeclass", "nvidia", "meta.helm.sh/release-name-")
    helm.follows("install", "--all")
    deployed(system, revision=1)
    assert "meta.helm.sh/release-name" not in system.api.get(theirs)["metadata"].get("annotations", {})
    all_replaced(system, LOCAL)
    assert helm.followed_everything()
    system.eventually("the same ledger", lambda: checks.ledger_of_the_controller(system) == ledger)
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.running(namespace, *STAYING))
    start(system, namespace, "next")
    checks.the_ledger_is_right(system)


def deployed(system: System, revision: int) -> None:
    """Helm has made it the current revision of the release."""
    path = f"/api/v1/namespaces/{names.NAMESPACE}/secrets/sh.helm.release.v1.gpushare.v{revision}"
    assert system.api.get(path)["metadata"]["labels"]["status"] == "deployed"


def log_level(system: System) -> str:
    path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/gpushare-config"
    level: str = system.api.get(path)["data"]["GPUSHARE_LOG_LEVEL"]
    return level


def a_gpu_that_has_a_share_is_not_taken_for_a_free_one(system: System, namespace: str) -> None:
    free = sum(used == 0 for used in checks.ledger_of_the_controller(system).values())
    wanted = {f"all-{i}" for i in range(free + 1)}
    system.create(namespace, *(make_pod(name, GPU_GIB) for name in wanted))

    def waiting() -> set[str]:
        return wanted - {pod["metadata"]["name"] for pod in system.ready_pods(namespace)}

    system.eventually("all but one run", lambda: len(waiting()) == 1)
    (last,) = waiting()
    system.eventually("it is told why it waits", lambda: system.events(namespace, last))
    checks.no_gpu_is_over_its_memory(system)
