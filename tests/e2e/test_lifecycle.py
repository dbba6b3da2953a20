"""An installation from its removal over all its changes to its removal, with pods that run through them.

Every command is that of the pages: docs/operate.md (Remove, Real GPUs, Go back) and docs/install.md (Helm).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpushare import names
from gpushare.wire import hand_over
from localcluster import installation
from localcluster.installation import LOCAL, ROOT, Tree
from tests.e2e import checks, disturb, lifecycle
from tests.e2e.administrator import Administrator, give_helm
from tests.e2e.checks import Grants
from tests.e2e.conftest import GPU_GIB, PROFILE
from tests.e2e.lifecycle import named
from tests.e2e.system import Json, System, make_pod

pytestmark = pytest.mark.timeout(3600)
PAGE: Final = "operate.md"
NEXT: Final = Tree(ROOT, f"{installation.IMAGE.rpartition(':')[0]}:next")
"""The same under another tag, so that every pod of this project is replaced."""
WITH_RESERVED: Final = PROFILE.replace("}]", ", reservedMiB: 600}]")
SHAPES: Final = {
    "memory": make_pod("memory", 5, None),
    "per-gpu": make_pod("per-gpu", 7, annotations={names.ANNOTATION_GPUS: "3"}),
    "both": make_pod("both", 3, 4),
}
STAYING: Final = [*SHAPES]


@pytest.fixture
def old(system: System, tmp_path: Path) -> Iterator[Tree]:
    """Images of the former version and of the next; whatever the test leaves, the usual installation follows."""
    (tmp_path / "former").mkdir()
    tree = lifecycle.former_tree(tmp_path / "former")
    lifecycle.give_image(system, tree)
    lifecycle.give_image(system, NEXT)
    yield tree
    kubectl, within = system.cluster.kubectl, ("-n", names.NAMESPACE)
    kubectl("label", "nodes", "--all", f"{lifecycle.GATE}-")
    installation.label_nodes(system.cluster)
    # Apply alone would leave the variables that only the chart sets.
    kubectl("delete", lifecycle.WORKLOADS, "--all", *within, "--wait=false", check=False)
    lifecycle.apply(system, LOCAL)
    kubectl("delete", "secrets", *within, "-l", "owner=helm")
    lifecycle.all_replaced(system, LOCAL)


def test_pods_run_on_while_installations_come_change_go_back_and_go(
    system: System, namespace: str, old: Tree, tmp_path: Path
) -> None:
    it_is_removed(system, namespace, tmp_path)
    simulated_gpus_give_way_to_real_ones(system, tmp_path)

    the_former_version_comes(system, namespace, old)
    it_is_upgraded(system, namespace)
    what_was_started_before_starts_again(system, namespace)
    lifecycle.start(system, namespace, "new")
    lifecycle.start(system, namespace, "kept")
    grants = Grants.of(system)
    lifecycle.sees_its_gpus(system, namespace, [*named("new"), *named("kept")], grants)
    it_goes_back(system, namespace, old, tmp_path)
    lifecycle.never_stopped(system, namespace, [*named("new"), *named("kept")])
    disturb.start_again(system, namespace, *named("new"))
    lifecycle.sees_its_gpus(system, namespace, named("new"), grants)
    lifecycle.start(system, namespace, "old")
    lifecycle.sees_its_gpus(system, namespace, named("old"))
    checks.the_ledger_is_right(system)

    lifecycle.apply(system, LOCAL)
    lifecycle.wait_rolled(system, LOCAL)
    disturb.start_again(system, namespace, *named("kept"), *named("old"))
    lifecycle.sees_its_gpus(system, namespace, named("kept"), grants)
    lifecycle.sees_its_gpus(system, namespace, named("old"))
    checks.the_ledger_is_right(system)

    checks.run_and_see_their_gpus(system, namespace, *SHAPES.values())
    before = lifecycle.containers(system, namespace, STAYING)
    helm = with_helm(system, tmp_path)
    a_release_takes_over_is_upgraded_and_goes_back(system, namespace, helm)
    lifecycle.start(system, namespace, "last")
    checks.the_ledger_is_right(system)
    the_release_goes_and_comes_back(system, namespace, helm)
    assert lifecycle.containers(system, namespace, STAYING) == before, "no container was ended or started again"
    lifecycle.never_stopped(system, namespace, [*STAYING, *named("last")])
    a_gpu_that_has_a_share_is_not_taken_for_a_free_one(system, namespace)


def it_is_removed(system: System, namespace: str, files: Path) -> None:
    """What kubectl has applied, by the page, while a pod runs; nothing is left but the RuntimeClass."""
    system.run(namespace, make_pod("uses"))
    before = lifecycle.containers(system, namespace, ["uses"])
    administrator = Administrator(system.cluster, PAGE, "Remove", files)
    assert "uses" in administrator.follows("see what still uses it")
    administrator.follows("the webhooks")
    administrator.follows("everything else")
    administrator.follows("what is left on nodes")
    assert administrator.followed_everything()
    assert lifecycle.left(system) == [lifecycle.RUNTIME_CLASS]
    assert lifecycle.containers(system, namespace, ["uses"]) == before, "running pods keep their GPUs"


def simulated_gpus_give_way_to_real_ones(system: System, files: Path) -> None:
    """The objects of the overlays, for which no node needs to share: nodes without a driver run no plugin for long."""
    lifecycle.apply(system, LOCAL)
    administrator = Administrator(system.cluster, PAGE, "Real GPUs", files)
    administrator.follows("delete what only simulated GPUs have")
    administrator.follows("apply the other overlay")
    assert administrator.followed_everything()
    runtime_class = system.api.get(f"/apis/node.k8s.io/v1/runtimeclasses/{names.RUNTIME_CLASS}")
    assert runtime_class["handler"] == "nvidia"
    plugin = system.api.get(disturb.PLUGINS)["spec"]["template"]["spec"]
    assert plugin["runtimeClassName"] == names.RUNTIME_CLASS
    assert "simulated" not in json.dumps(plugin)
    lifecycle.remove_all(system)
    assert lifecycle.left(system) == []


def the_former_version_comes(system: System, namespace: str, old: Tree) -> None:
    """To a cluster that has nothing of this one."""
    installation.label_nodes(system.cluster)
    lifecycle.apply(system, old)
    lifecycle.wait_rolled(system, old)
    lifecycle.start(system, namespace, "old")
    lifecycle.start_waiting(system, namespace, "old")
    system.create(namespace, make_pod("full", GPU_GIB))
    system.running(namespace, "full")
    lifecycle.sees_its_gpus(system, namespace, [*named("old"), "full"])


def it_is_upgraded(system: System, namespace: str) -> None:
    """With pods that run, one on all of a GPU of which the driver keeps a part, and pods that are created meanwhile."""
    lifecycle.apply(system, LOCAL, {"GPUSHARE_GPU_MEMORY": "total"}, WITH_RESERVED)
    lifecycle.created_meanwhile(system, namespace, "upgrade")
    lifecycle.wait_rolled(system, LOCAL)
    lifecycle.never_stopped(system, namespace, [*named("old"), "full"])
    lifecycle.run_meanwhile(system, namespace, "upgrade")
    checks.the_ledger_is_right(system)


def what_was_started_before_starts_again(system: System, namespace: str) -> None:
    """Containers of running pods, also after their kubelet; and a pod that had no node yet gets one."""
    disturb.start_again(system, namespace, *named("old"), "full")
    lifecycle.sees_its_gpus(system, namespace, [*named("old"), "full"])
    for node in system.cluster.nodes:
        disturb.restart_kubelet(system, node)
    disturb.start_again(system, namespace, *named("old"))
    lifecycle.sees_its_gpus(system, namespace, named("old"))

    system.label(lifecycle.NODES[0], lifecycle.GATE, "old")
    system.running(namespace, "old-waits")
    lifecycle.sees_its_gpus(system, namespace, ["old-waits"], Grants.of(system))
    system.label(lifecycle.NODES[0], lifecycle.GATE, None)
    system.cluster.kubectl("delete", "pods", "-n", namespace, *named("old"), "full", "--wait")
    checks.the_ledger_is_right(system)


def it_goes_back(system: System, namespace: str, old: Tree, files: Path) -> None:
    lifecycle.start_waiting(system, namespace, "new")
    only_cdi = names.ANNOTATION_HAND_OVER in system.pod(namespace, "new-waits")["metadata"].get("annotations", {})
    administrator = Administrator(system.cluster, PAGE, "Go back", files)
    administrator.follows("what the former version does not know")
    lifecycle.overlay(system, old)
    administrator.follows("apply the former overlay")
    lifecycle.wait_rolled(system, old)
    administrator.follows("create pods that wait again")
    assert administrator.followed_everything()
    assert not system.exists(hand_over.path(names.NAMESPACE))
    assert system.exists(f"/api/v1/namespaces/{namespace}/pods/new-waits") == (not only_cdi)
    checks.the_ledger_is_right(system)


def values(**changed: object) -> Json:
    """What the tests' own kustomization says."""
    lease = {"leaseSeconds": 6, "renewSeconds": 3, "retrySeconds": 0.5, "bindSeconds": 1}
    certificates = {"certCheckS": 2, "certPropagationS": 5, "certRetireS": 10, "gracefulTimeoutS": 1}
    written = {"wholeGpus": True, "gpus": "simulated", "simulatedGpus": yaml.safe_load(PROFILE)}
    written |= {"controller": {"settings": lease}, "webhook": {"settings": certificates}}
    written |= {"devicePlugin": {"settings": {"publishInterval": 2}}}
    return {**written, "runtimeClass": {"refuse": "nothing"}, **changed}


def with_helm(system: System, directory: Path) -> Administrator:
    """An administrator who has the program, and a file of values."""
    give_helm(directory)
    variables = {"CHART": str(ROOT / "manifests" / "chart"), "VALUES": str(directory / "values.yaml")}
    return Administrator(system.cluster, "install.md", "Helm", directory, variables)


def write(helm: Administrator, document: Json) -> None:
    (helm.directory / "values.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


def a_release_takes_over_is_upgraded_and_goes_back(system: System, namespace: str, helm: Administrator) -> None:
    write(helm, values())
    helm.follows("take over what kubectl has installed")
    deployed(system, revision=1)  # that it serves is seen when it is back

    write(helm, values(image={"tag": "next"}, settings={"logLevel": "debug"}))
    helm.follows("upgrade")
    lifecycle.created_meanwhile(system, namespace, "release")
    deployed(system, revision=2)
    lifecycle.all_replaced(system, NEXT)
    lifecycle.run_meanwhile(system, namespace, "release")
    assert log_level(system) == "debug"

    helm.follows("go back")
    deployed(system, revision=3)
    lifecycle.all_replaced(system, LOCAL)
    assert log_level(system) == "info"


def the_release_goes_and_comes_back(system: System, namespace: str, helm: Administrator) -> None:
    """There is nothing to back up: pods and nodes alone bring back what the system knew."""
    ledger = checks.ledger_of_the_controller(system)
    running = [*STAYING, *named("last")]
    before = lifecycle.containers(system, namespace, running)
    helm.follows("remove", leaving_out="kubectl")
    # A namespace in which pods are ending goes later than the last of them.
    system.eventually("no pod is left", lambda: not system.pods(names.NAMESPACE))
    helm.follows("remove", leaving_out="helm")
    Administrator(system.cluster, PAGE, "Remove", helm.directory).follows("what is left on nodes")
    assert lifecycle.left(system) == [lifecycle.RUNTIME_CLASS]
    assert lifecycle.containers(system, namespace, running) == before, "no container was ended or started again"

    for node in system.cluster.nodes:
        if known := installation.hand_over_label(node.runtime):  # which the removal took from it
            system.cluster.kubectl("label", "node", node.name, *known)
    write(helm, values())
    helm.follows("install", "--all")
    deployed(system, revision=1)
    lifecycle.all_replaced(system, LOCAL)
    assert helm.followed_everything()
    system.eventually("the same ledger", lambda: checks.ledger_of_the_controller(system) == ledger)
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.running(namespace, *STAYING))
    lifecycle.start(system, namespace, "next")
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
