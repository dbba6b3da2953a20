"""The driver's library in real containers: it is replaced under a running plugin, and tells of faults.

The library is the stub of testing/nvml, in the directory that the plugin's container has of its node.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from gpushare import names
from gpushare.kube import api as kube
from gpushare.model.gpu import HandOver, Limit
from gpushare.wire import inventory
from localcluster.python_image import UNUSED_LIBRARIES
from testing.manifests import tree
from testing.nvml import stub
from testing.nvml.stub import Stub
from tests.e2e import disturb, plugins
from tests.e2e.system import Json, Share, System, allocated, is_ready
from tests.e2e.test_usage import shown

pytestmark = pytest.mark.e2e

DRIVER = "driver"
INSIDE = Path("/var/lib/kubelet/device-plugins") / DRIVER
SETTINGS = {
    "GPUSHARE_GPU_SOURCE": "nvml",
    "LD_LIBRARY_PATH": f"{INSIDE}:{UNUSED_LIBRARIES}",  # the image has its Python there
    "NVML_STUB_CONTROL": str(INSIDE / "nvml.control"),
}
LIMITS = "nvml.control.limits"
"""What limits the stub knows: a line for each GPU and cgroup."""
READ = "that is all"
"""What a container prints after them."""
ALL, HALF = "28", "14"
"""GiB of two T4 and of one, without what the driver keeps."""


@pytest.fixture(scope="module")
def drivers(system: System) -> Iterator[Mapping[str, Stub]]:
    """By node: two T4 each."""
    made = {}
    for number, node in enumerate(system.cluster.nodes):
        directory = node.device_plugins_dir / DRIVER
        directory.mkdir()
        stub.build(directory)
        made[node.name] = Stub(directory=directory)
        for gpu in range(2):
            made[node.name].add_gpu(uuid=f"GPU-0000000{number}-0000-0000-0000-00000000000{gpu}")
    # The label counts more than the setting, and a new plugin reads it: there is no CDI spec of these GPUs.
    before = {
        name: system.api.get(kube.node_path(name))["metadata"]["labels"].get(names.LABEL_HAND_OVER) for name in made
    }
    label(system, dict.fromkeys(made, HandOver.ENVVAR.value))
    with plugins.patched(system, SETTINGS, *(yaml.safe_dump(each) for each in tree.patches("limits/cgroup"))):
        yield made
        label(system, before)
    for node in system.cluster.nodes:
        shutil.rmtree(node.device_plugins_dir / DRIVER)


def label(system: System, ways: Mapping[str, str | None]) -> None:
    for node, way in ways.items():
        system.api.patch(kube.node_path(node), {"metadata": {"labels": {names.LABEL_HAND_OVER: way}}})


def gib(system: System, node: str) -> str:
    found: str = system.api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get(names.GPU_MEM, "0")
    return found


def restarts(system: System, node: str) -> int:
    """Of the node's plugin; -1 while it is not ready."""
    found = system.api.get(
        f"/api/v1/namespaces/{names.NAMESPACE}/pods", {"labelSelector": f"app.kubernetes.io/name={names.PLUGIN}"}
    )
    [pod] = [each for each in found["items"] if each["spec"]["nodeName"] == node]
    return int(pod["status"]["containerStatuses"][0]["restartCount"]) if is_ready(pod) else -1


def test_a_driver_that_is_replaced_needs_no_one(system: System, drivers: Mapping[str, Stub]) -> None:
    node, driver = next(iter(drivers.items()))
    system.eventually("the GPUs are offered", lambda: all(gib(system, each) == ALL for each in drivers))
    before = restarts(system, node)
    began = time.monotonic()
    driver.set({"driver": "590.10", "library": "590.10"})
    system.eventually("the plugin has a new process", lambda: restarts(system, node) == before + 1)
    system.eventually("the GPUs are offered again", lambda: gib(system, node) == ALL)
    print(f"healed after {time.monotonic() - began:.0f} s")


def test_what_is_wrong_with_a_gpu_is_said_wherever_one_looks(system: System, drivers: Mapping[str, Stub]) -> None:
    node, driver = list(drivers.items())[1]
    system.eventually("the GPUs are offered", lambda: gib(system, node) == ALL)
    driver.happen(0, 79)
    system.eventually("the GPU is not offered", lambda: gib(system, node) == HALF)
    why = "Xid 79: GPU has fallen off the bus"
    system.eventually("inspect says so", lambda: why in shown(system, "inspect", "-o", "json"))
    checks = json.loads(shown(system, "doctor", "-o", "json"))["findings"]
    assert [each["problem"] for each in checks if each["check"] == "gpu-health" and why in each["problem"]]
    assert f'reason="{why}"' in metrics(system, node)
    driver.set({"0.fail.all": stub.GPU_IS_LOST})  # a reset takes it away
    system.eventually("it is away", lambda: "GPU is lost" in shown(system, "inspect", "-o", "json"))
    driver.set({"0.fail.all": None})
    system.eventually("it is well again", lambda: gib(system, node) == ALL)


def limited(node: str, name: str, gib: int, gpus: int) -> Json:
    """A pod whose container prints, before all else, which limits the driver knows at that moment."""
    pod = Share(name=name, gib=(gib,), annotations={names.ANNOTATION_GPUS: str(gpus)}).document()
    [container] = pod["spec"]["containers"]
    container["command"] = ["sh", "-c", f"cat /driver/{LIMITS}; echo {READ}; exec /wait"]
    container["volumeMounts"] = [{"name": "driver", "mountPath": "/driver", "readOnly": True}]
    pod["spec"]["volumes"] = [{"name": "driver", "hostPath": {"path": str(INSIDE)}}]
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return pod


def limits_at_start(system: System, pod: Json) -> Mapping[int, int]:
    """MiB by GPU, of the pod's cgroup, as its container has printed them."""
    printed = system.log(pod["metadata"]["namespace"], pod["metadata"]["name"], until=READ)
    lines, uid = [line.split() for line in printed], pod["metadata"]["uid"]
    return {stub.gpu_of(gpu): int(hard) // stub.MIB for gpu, _, hard, group in lines if group.endswith(uid)}


def test_the_driver_limits_a_pod_on_every_gpu_before_its_container_runs(
    system: System, drivers: Mapping[str, Stub], namespace: str
) -> None:
    """At its first start, when it starts again, and after the plugin has; and node and doctor say what holds."""
    node, driver = next(iter(drivers.items()))
    [own] = [each for each in system.cluster.nodes if each.name == node]
    driver.set({"limits": "misc"})
    system.eventually("the driver holds limits", lambda: held_by(system, node) == {Limit.CGROUP})
    system.create(namespace, limited(node, "one", 3, 1), limited(node, "two", 2, 2))
    disturbances: Sequence[Callable[[], None]] = (lambda: None, lambda: disturb.restart_plugins(system, own))
    for count, disturbance in enumerate(disturbances):
        one, two = system.running(namespace, "one", "two")
        [gpu] = allocated(one)["c0"]
        numbers = {uuid: number for number, uuid in enumerate(sorted(allocated(two)["c0"]))}
        assert limits_at_start(system, one) == {numbers[gpu]: 3 * 1024}
        assert limits_at_start(system, two) == {0: 2 * 1024, 1: 2 * 1024}
        disturbance()
        for pod in (one, two):
            disturb.kill_containers(pod)

        def again(least: int = count + 1) -> bool:
            pods = system.running(namespace, "one", "two")
            return all(pod["status"]["containerStatuses"][0]["restartCount"] >= least for pod in pods)

        system.eventually("both have started again", again)
    assert limits_at_start(system, system.pod(namespace, "two")) == {0: 2 * 1024, 1: 2 * 1024}

    driver.set({"limits": None})  # as after a downgrade
    system.eventually("nothing holds them any more", lambda: held_by(system, node) == {Limit.ADVISORY})
    assert f'limit="advisory",node="{node}",reason="cgroup: ' in metrics(system, node)
    demanding = limited(node, "demanding", 1, 1)
    demanding["metadata"]["annotations"][names.ANNOTATION_LIMIT] = names.ENFORCED
    system.create(namespace, demanding)
    refused = "needs a GPU with an enforced limit; GPUs of "
    system.eventually("none is placed there", lambda: refused in "".join(system.events(namespace, "demanding")))


def held_by(system: System, node: str) -> set[Limit]:
    found = inventory.of_node(system.api.get(f"/api/v1/nodes/{node}"))
    return {gpu.limit for gpu in found.gpus} if found else set()


def metrics(system: System, node: str) -> str:
    found = system.api.get(
        f"/api/v1/namespaces/{names.NAMESPACE}/pods", {"labelSelector": f"app.kubernetes.io/name={names.PLUGIN}"}
    )
    [name] = [each["metadata"]["name"] for each in found["items"] if each["spec"]["nodeName"] == node]
    return system.api.ask(kube.pod_path(names.NAMESPACE, f"{name}:12347", "proxy/metrics"), timeout_s=30.0).text
