"""The driver's library in real containers: it is replaced under a running plugin, and tells of faults.

The library is the stub of testing/nvml, in the directory that the plugin's container has of its node.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from deviceplugin.causes import Code
from gpushare import names
from gpushare.model.gpu import HandOver, Limit
from localcluster.python_image import UNUSED_LIBRARIES
from testing.manifests import tree
from testing.nvml import stub
from testing.nvml.stub import Stub
from tests.e2e import disturb
from tests.e2e.system import Json, System, allocated, gpushare_json, is_ready, make_pod, restarts

DRIVER: Final = "driver"
INSIDE: Final = Path("/var/lib/kubelet/device-plugins") / DRIVER
SETTINGS: Final = {
    "GPUSHARE_GPU_SOURCE": "nvml",
    "LD_LIBRARY_PATH": f"{INSIDE}:{UNUSED_LIBRARIES}",  # the image has its Python there
    "NVML_STUB_CONTROL": str(INSIDE / "nvml.control"),
}
LIMITS: Final = "nvml.control.limits"
"""What limits the stub knows: a line for each GPU and cgroup."""
READ: Final = "that is all"
"""What a container prints after them."""
CAPABILITIES: Final = 1 << 21 | 1 << 5  # SYS_ADMIN and KILL
ALL, HALF = 28, 14
"""GiB of two T4 and of one, without what the driver keeps."""


@pytest.fixture(scope="module")
def drivers(system: System) -> Iterator[Mapping[str, Stub]]:
    """By node: two T4 each."""
    made = {}
    for number, own in enumerate(system.cluster.nodes):
        directory = own.device_plugins_dir / DRIVER
        directory.mkdir()
        stub.build(directory)
        made[own.name] = Stub(directory=directory)
        for gpu in range(2):
            made[own.name].add_gpu(uuid=f"GPU-0000000{number}-0000-0000-0000-00000000000{gpu}")
    # The label counts more than the setting, and a new plugin reads it: there is no CDI spec of these GPUs.
    before = {name: system.node(name)["metadata"]["labels"].get(names.LABEL_HAND_OVER) for name in made}
    for node in made:
        system.label(node, names.LABEL_HAND_OVER, HandOver.ENVVAR.value)
    with disturb.patched_plugins(system, SETTINGS, *tree.patches("limits/cgroup")):
        yield made
        for node, way in before.items():
            system.label(node, names.LABEL_HAND_OVER, way)
    for own in system.cluster.nodes:
        shutil.rmtree(own.device_plugins_dir / DRIVER)


def test_a_driver_that_is_replaced_needs_no_one(system: System, drivers: Mapping[str, Stub]) -> None:
    node, driver = next(iter(drivers.items()))

    def restarted() -> int:
        """How often the plugin has; -1 while it is not ready."""
        pod = disturb.plugin_of(system, node)
        return restarts(pod)["device-plugin"] if is_ready(pod) else -1

    system.eventually("the GPUs are offered", lambda: all(disturb.offered(system, each) == ALL for each in drivers))
    before = restarted()
    began = time.monotonic()
    driver.set({"driver": "590.10", "library": "590.10"})
    system.eventually("the plugin has a new process", lambda: restarted() == before + 1)
    system.eventually("the GPUs are offered again", lambda: disturb.offered(system, node) == ALL)
    print(f"healed after {time.monotonic() - began:.0f} s")


def test_what_is_wrong_with_a_gpu_is_said_wherever_one_looks(system: System, drivers: Mapping[str, Stub]) -> None:
    node, driver = list(drivers.items())[1]

    def inspected() -> str:
        return str(gpushare_json(system, 0, "inspect"))

    system.eventually("the GPUs are offered", lambda: disturb.offered(system, node) == ALL)
    driver.happen(0, 79)
    system.eventually("the GPU is not offered", lambda: disturb.offered(system, node) == HALF)
    why = "Xid 79: GPU has fallen off the bus"
    system.eventually("inspect says so", lambda: why in inspected())
    found = gpushare_json(system, 0, "doctor")["findings"]
    assert [each["problem"] for each in found if each["check"] == "gpu-health" and why in each["problem"]]
    assert 'reason="Xid79"' in disturb.plugin_metrics(system, node)
    driver.set({"0.fail.all": stub.GPU_IS_LOST})  # a reset takes it away
    system.eventually("it is away", lambda: "GPU is lost" in inspected())
    driver.set({"0.fail.all": None})
    system.eventually("it is well again", lambda: disturb.offered(system, node) == ALL)


def test_the_plugin_has_the_capabilities_that_the_component_adds(system: System, drivers: Mapping[str, Stub]) -> None:
    """Of a name that a runtime does not know it makes nothing, without an error."""
    plugin = disturb.plugin_of(system, next(iter(drivers)))
    statuses = [Path(f"/proc/{pid}/status").read_text(encoding="utf-8") for pid in disturb.processes_of(plugin)]
    effective = {line.split()[1] for status in statuses for line in status.splitlines() if line.startswith("CapEff:")}
    assert f"{CAPABILITIES:016x}" in effective


def limited(node: str, name: str, gib: int, gpus: int, **annotations: str) -> Json:
    """A pod whose container prints, before all else, which limits the driver knows at that moment."""
    pod = make_pod(
        name,
        gib,
        node=node,
        annotations={names.ANNOTATION_GPUS: str(gpus), **annotations},
        command=f"cat /driver/{LIMITS}; echo {READ}; exec /wait",
        volumes=[{"name": "driver", "hostPath": {"path": str(INSIDE)}}],
    )
    mount = {"name": "driver", "mountPath": "/driver", "readOnly": True}
    pod["spec"]["containers"][0]["volumeMounts"] = [mount]
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
    driver.set({"limits": "misc"})
    system.eventually("the driver holds limits", lambda: system.limits(node) == {Limit.CGROUP})
    system.run(namespace, limited(node, "one", 3, 1), limited(node, "two", 2, 2))
    for restarted in ((), (system.cluster.node(node),)):
        one, two = system.running(namespace, "one", "two")
        [gpu] = allocated(one)["c0"]
        numbers = {uuid: number for number, uuid in enumerate(sorted(allocated(two)["c0"]))}
        assert limits_at_start(system, one) == {numbers[gpu]: 3 * 1024}
        assert limits_at_start(system, two) == {0: 2 * 1024, 1: 2 * 1024}
        disturb.restart_plugins(system, *restarted)
        disturb.start_again(system, namespace, "one", "two")
    assert limits_at_start(system, system.pod(namespace, "two")) == {0: 2 * 1024, 1: 2 * 1024}

    driver.set({"limits": None})  # as after a downgrade
    system.eventually("nothing holds them any more", lambda: system.limits(node) == {Limit.ADVISORY})
    assert f'limit="advisory",node="{node}",reason="{Code.NOT_SUPPORTED}"' in disturb.plugin_metrics(system, node)
    demanding = limited(node, "demanding", 1, 1, **{names.ANNOTATION_LIMIT: names.ENFORCED})
    system.create(namespace, demanding)
    system.wait_told(namespace, "demanding", "needs a GPU with an enforced limit; GPUs of ")
