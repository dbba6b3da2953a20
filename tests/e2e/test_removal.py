"""`docs/operate.md`, followed literally where it removes an installation or changes its kind of GPUs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import names
from tests.e2e import checks, former
from tests.e2e.administrator import Administrator
from tests.e2e.system import Share, System, is_ready

pytestmark = pytest.mark.e2e
PAGE = "operate.md"
RUNTIME_CLASS = f"runtimeclass.node.k8s.io/{names.RUNTIME_CLASS}"


@pytest.fixture
def put_back(system: System) -> Iterator[None]:
    yield
    former.install_again(system)


@pytest.mark.usefixtures("put_back")
def test_nothing_is_left_but_the_runtime_class_and_it_can_be_installed_again(
    system: System, namespace: str, tmp_path: Path
) -> None:
    kubectl, overlay = system.cluster.kubectl, str(system.cluster.workdir / "kustomization")
    system.create(namespace, Share(name="uses").document())
    system.all_running(namespace, 1, timeout_s=60)
    administrator = Administrator(system, PAGE, "Remove", tmp_path)

    assert "uses" in administrator.follows("see what still uses it")
    administrator.follows("the webhooks")
    administrator.follows("everything else")
    administrator.follows("what is left on nodes")

    assert administrator.followed_everything()
    assert kubectl("get", "--ignore-not-found", "-k", overlay, "-o", "name").stdout.split() == [RUNTIME_CLASS]
    nodes = json.loads(kubectl("get", "nodes", "-o", "json").stdout)["items"]
    assert "gpushare" not in json.dumps(
        [[node["metadata"].get(key) for key in ("annotations", "labels")] for node in nodes]
    )
    assert is_ready(system.pod(namespace, "uses")), "running pods keep their GPUs"

    former.install_again(system)
    system.create(namespace, Share(name="next").document())
    pods = system.all_running(namespace, 2, timeout_s=60)
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)


@pytest.mark.usefixtures("put_back")
def test_a_cluster_changes_from_simulated_to_real_gpus(system: System, tmp_path: Path) -> None:
    administrator = Administrator(system, PAGE, "Real GPUs", tmp_path)

    administrator.follows("delete what only simulated GPUs have")
    administrator.follows("apply the other overlay")

    assert administrator.followed_everything()
    found = json.loads(system.cluster.kubectl("get", "runtimeclass", names.RUNTIME_CLASS, "-o", "json").stdout)
    assert found["handler"] == "nvidia"
    plugin = json.loads(
        system.cluster.kubectl("get", "daemonset", "-n", names.NAMESPACE, names.PLUGIN, "-o", "json").stdout
    )["spec"]["template"]["spec"]
    assert plugin["runtimeClassName"] == names.RUNTIME_CLASS
    assert "simulated" not in json.dumps(plugin)
    system.cluster.kubectl("delete", "runtimeclass", names.RUNTIME_CLASS)
