"""The page on JupyterHub on the real cluster: KubeSpawner spawns servers, and each sees its part of a GPU."""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from gpushare import names
from localcluster.cluster import BUSYBOX_IMAGE
from testing import notebooks
from testing.pages import fraction_of
from tests.e2e import checks
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import HOSTNAME, Json, System, make_pod

SERVERS: Final = {
    "ana": {"user": "ana", "profile": "gpu-2"},
    "ana's second": {"user": "ana", "profile": "gpu-2", "name": "second"},
    "ben": {"user": "ben", "profile": "gpu-4"},
    "cai": {"user": "cai", "profile": "gpu-8"},
    "dora": {"user": "dora", "profile": "cpu"},
    "eve": {"user": "eve", "profile": "t4"},
    "finn": {"user": "finn", "profile": "gpu-64"},
    "gwen": {"user": "gwen", "profile": f"gpu-{GPU_GIB}"},
}
GIB: Final = {"ana": 2, "ana's second": 2, "ben": 4, "cai": 8}
HOPELESS: Final = ("t4", "gpu-64")
HOPELESS_S: Final = 8
TRIES: Final = 3


def profile(gib: int) -> Json:
    """One more, as those of the page are."""
    override = {"scheduler_name": names.SCHEDULER, "extra_resource_limits": {names.GPU_MEM: str(gib)}}
    return {"display_name": f"GPU, {gib} GiB", "slug": f"gpu-{gib}", "kubespawner_override": override}


class Hub:
    """JupyterHub as far as servers notice it, with the profiles of the page."""

    def __init__(self, system: System, namespace: str, **settings: Any) -> None:
        self.system, self.namespace = system, namespace
        profiles = [*notebooks.profiles(), profile(64), profile(GPU_GIB)]
        for each in profiles:
            if each["slug"] in HOPELESS:
                each["kubespawner_override"] |= {"start_timeout": HOPELESS_S}
        self.settings: Json = {
            "namespace": namespace,
            "image": BUSYBOX_IMAGE,
            "profile_list": profiles,
            "delete_grace_period": 1,
            "start_timeout": 60,
            **settings,
        }
        self.answers: dict[str, Json] = {}

    def spawn(self, *which: str) -> None:
        """Start these servers, all at once, and keep what became of them.

        Users try again where an old API server has not asked the webhook, or a busy machine has told them nothing yet.
        """
        waiting = list(which)
        for _ in range(TRIES):
            asked = [SERVERS[name] for name in waiting]
            found = notebooks.spawned(self.settings, asked, self.system.cluster.kubeconfig)
            self.answers |= dict(zip(waiting, found, strict=True))
            waiting = [name for name in waiting if not is_answered(name, self.answers[name])]
            if not waiting:
                return

    def pod(self, name: str) -> Json:
        return self.system.pod(self.namespace, self.answers[name]["pod"])


def is_answered(name: str, answer: Json) -> bool:
    was_told = any("needs " in line for line in answer["seen"])
    return "url" in answer or (was_told and SERVERS[name]["profile"] in HOPELESS)


@pytest.fixture(scope="module")
def hub(system: System, shared_namespace: str) -> Hub:
    found = Hub(system, shared_namespace)
    found.spawn(*GIB, "dora", "eve", "finn")  # two of which find no GPU: this cluster has neither a T4 nor 64 GiB
    return found


def test_every_server_sees_its_part_of_a_gpu_and_can_compute_its_fraction(hub: Hub) -> None:
    pods = [hub.pod(name) for name in (*GIB, "dora")]
    checks.every_container_sees_exactly_its_gpus(hub.system, hub.namespace, pods)
    checks.the_controllers_ledger_equals_the_pods(hub.system)
    environments = hub.system.environments(hub.namespace, *(pod["metadata"]["name"] for pod in pods))
    for name, gib in GIB.items():
        variables = environments[hub.answers[name]["pod"], "notebook"]
        assert variables[names.ENV_MEMORY_MIB] == str(gib * 1024)
        total = GPU_GIB * 1024
        assert fraction_of(variables, total) == int(10_000 * (gib * 1024 - 512) / total) / 10_000
        assert hub.answers[name]["url"]
    assert names.ENV_MEMORY_MIB not in environments[hub.answers["dora"]["pod"], "notebook"]


def test_a_user_whose_server_finds_no_gpu_sees_why_and_it_is_deleted(hub: Hub) -> None:
    numbers = "needs 64 GiB on one GPU; free per GPU on node-[12]: " + ", ".join(GPUS_PER_NODE * ["[0-9]+"])
    assert re.search(numbers, "\n".join(hub.answers["finn"]["seen"])), hub.answers["finn"]
    assert "T4" in "\n".join(hub.answers["eve"]["seen"])
    assert "did not start in" in hub.answers["finn"]["failed"]
    gone = {hub.answers[name]["pod"] for name in ("eve", "finn")}

    def left() -> set[str]:
        return gone & {pod["metadata"]["name"] for pod in hub.system.pods(hub.namespace)}

    hub.system.eventually("they are gone", lambda: not left())


@pytest.fixture
def placeholder(system: System) -> Iterator[Json]:
    """The page's, as large as a GPU, with the chart's class."""
    name = "e2e-user-placeholder-priority"
    made = {"metadata": {"name": name}, "value": -10, "globalDefault": False}
    system.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", made)
    [scheduling] = [values["scheduling"] for values in notebooks.values() if "scheduling" in values]
    document = make_pod("placeholder", GPU_GIB, priorityClassName=name, terminationGracePeriodSeconds=0)
    [container] = document["spec"]["containers"]
    assert container["resources"]["limits"].keys() == scheduling["userPlaceholder"]["resources"]["limits"].keys()
    yield document
    system.api.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


def test_a_server_that_finds_no_room_evicts_one_placeholder(system: System, namespace: str, placeholder: Json) -> None:
    """The page's, each as large as a GPU; as many as there are GPUs on a node that no one uses."""

    ledgers = system.ledgers().items()
    count, node = max((sum(not of.used_mib.get(gpu.uuid) for gpu in of.inventory.gpus), node) for node, of in ledgers)
    assert count > 1
    selector = {HOSTNAME: node}
    placeholder["spec"]["nodeSelector"] = selector
    system.run(namespace, *[{**placeholder, "metadata": {"name": f"empty-{i}"}} for i in range(count)])
    hub = Hub(system, namespace, node_selector=selector)
    hub.spawn("gwen")
    assert "url" in hub.answers["gwen"], hub.answers["gwen"]
    checks.every_container_sees_exactly_its_gpus(system, namespace, [hub.pod("gwen")])
    staying = {pod["metadata"]["name"] for pod in system.pods(namespace) if "deletionTimestamp" not in pod["metadata"]}
    assert len(staying - {hub.answers["gwen"]["pod"]}) == count - 1
