"""Limits of cgroups through the real NVML binding, over a stub that counts as the driver or the kernel does."""

import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from deviceplugin import cgroups, pods
from deviceplugin.causes import Cause, Code
from deviceplugin.decide import Accept
from deviceplugin.limits.cgroup import CgroupBackend, ContainerLimits
from deviceplugin.limits.node import PROVEN, LimitedStart, LimitError, NodeLimits, OnFailure
from deviceplugin.nvml.driver import UNLIMITED, MemoryLimits, SilentDriverError
from deviceplugin.prestart import limited
from gpushare.identity import GpuUuid, NodeName, PodRef
from gpushare.model.gpu import Limit, MigInstance, NodeInventory
from gpushare.model.ledger import Grant
from gpushare.model.request import ContainerKind
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB, ResourceConfig
from testing.builders import Json, make_gpu, make_grant
from testing.clock import ManualClock
from testing.deviceplugin.build import fields_of
from testing.deviceplugin.running import in_threads
from testing.deviceplugin.usage import container_id, running_pod, uid
from testing.fakes.kubelet import wait_until
from testing.nvml import stub
from testing.nvml.memory import Memory
from testing.nvml.stub import MIB, Stub

UID: Final = uid(0)
IDS: Final = {"main": 1, "second": 2, "init": 3, "sidecar": 4}
BOTH: Final = pytest.mark.parametrize("mode", ["dmem", "misc"])


class Node:
    """A node with two GPUs of 15 GiB, and one pod in the cgroup tree of a kubelet."""

    def __init__(self, mount: Path, nvml: Any, nvml_stub: Stub, mode: str) -> None:
        self.stub, self.mount = nvml_stub, mount
        for _ in range(2):
            nvml_stub.add_gpu(15360)
        self.memory = Memory(nvml_stub, mode)
        (mount / "kubepods/burstable").mkdir(parents=True)
        (mount / "cgroup.controllers").touch()
        if mode == "dmem":
            (mount / "dmem.capacity").write_text("nvidia/<00000000:01:00.0>/vidmem 16106127360\n", encoding="ascii")
        uuids = [GpuUuid(str(nvml_stub.keys[f"{i}.uuid"])) for i in range(2)]
        gpus = tuple(replace(make_gpu(i, 15), uuid=uuid, limit=Limit.CGROUP) for i, uuid in enumerate(uuids))
        self.inventory = NodeInventory(node=NodeName("node-a"), gpus=gpus, unit=GIB)
        self.driver = MemoryLimits(nvml)
        self.pods: list[Json] = []
        self.clock = ManualClock()
        self.plugin_restarts()

    def plugin_restarts(self) -> ContainerLimits:
        self.backend = CgroupBackend(driver=self.driver, mount=self.mount)
        self.backend.prove(self.inventory.gpus)
        self.containers = ContainerLimits(
            backend=self.backend,
            held=lambda inventory: pods.held(self.pods, inventory, ResourceConfig()),
            inventory=lambda: self.inventory,
            clock=self.clock,
        )
        return self.containers

    @property
    def pod(self) -> Path:
        return self.directory(0)

    def directory(self, pod: int) -> Path:
        return self.mount / f"kubepods/burstable/pod{uid(pod)}"

    def container(self, name: str) -> Path:
        return self.pod / container_id(IDS[name])

    def grant(self, *gpus: int, **fields: Any) -> Grant:
        grant = make_grant(*gpus, **fields)
        return replace(grant, gpus=tuple(self.inventory.gpus[gpu].uuid for gpu in gpus))

    def start(self, grant: Grant, *of_pod: Grant, pod: int = 0) -> LimitedStart:
        self.directory(pod).mkdir(exist_ok=True)
        ref = PodRef(namespace="default", name="pod", uid=uid(pod))
        return LimitedStart(pod=ref, grant=grant, of_pod=of_pod or (grant,), inventory=self.inventory)

    def prepare(self, grant: Grant, *of_pod: Grant, pod: int = 0) -> dict[str, str]:
        start = self.start(grant, *of_pod, pod=pod)
        return dict(self.backend.prepare(start, start.gpus).env)

    def runs(self, *grants: Grant) -> Path:
        """The containers of these grants, and what the kubelet tells of them; the group of the first."""
        self.pods = [running_pod(0, *grants, ids=IDS)]
        for grant in grants:
            self.container(grant.container).mkdir(exist_ok=True)
        return self.container(grants[0].container)

    def limit(self, cgroup: Path, gpu: int = 0) -> int | None:
        """MiB, of the group itself."""
        found = self.memory.limits(gpu).get(cgroup)
        return found and found // MIB

    def refuses(self, start: LimitedStart, why: str) -> None:
        with pytest.raises(LimitError, match=why):
            self.backend.prepare(start, start.gpus)


@pytest.fixture
def mode() -> str:
    return "dmem"


@pytest.fixture
def node(tmp_path: Path, nvml_binding: Any, nvml_stub: Stub, mode: str) -> Iterator[Node]:
    node = Node(tmp_path / "cgroup", nvml_binding, nvml_stub, mode)
    yield node
    assert list(node.mount.rglob("gpushare-probe")) == []


def why(node: Node, gpu: int = 0) -> str:
    found = node.backend.prove(node.inventory.gpus)[node.inventory.gpus[gpu].uuid]
    assert found.code != Code.OTHER
    return found


@BOTH
def test_support_is_proven_by_a_real_limit_on_a_scratch_cgroup(node: Node) -> None:
    assert why(node) == PROVEN
    assert (node.memory.limits(0), node.memory.limits(1)) == ({}, {})


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"limits": None}, "Not Supported: driver or kernel hold no limits for cgroups on this GPU"),
        ({"limits.root": 0}, "Insufficient Permissions: the plugin needs to be root on the node"),
        ({"fail.nvmlDeviceSetMemoryLimits_v1": stub.FUNCTION_NOT_FOUND}, "the driver is older than r615"),
        ({"fail.nvmlDeviceGetMemoryLimits_v1": stub.NOT_SUPPORTED}, "took a limit of 134217728 bytes for"),
        ({"0.fail.all": stub.GPU_IS_LOST}, "GPU is lost: see the node's kernel log"),
        ({"fail.nvmlInitWithFlags": 9}, "Driver Not Loaded"),
    ],
)
def test_what_does_not_work_says_why(node: Node, keys: dict[str, object], problem: str) -> None:
    node.stub.set(keys)
    assert problem in why(node)
    assert (why(node, 1) == PROVEN) == ("0.fail.all" in keys), "of each GPU by itself"


def test_mig_instances_are_not_tried_and_without_the_nodes_cgroups_it_says_what_to_mount(
    tmp_path: Path, node: Node
) -> None:
    instance = replace(node.inventory.gpus[0], mig=MigInstance(gpu=0, number=0, profile="1g.5gb"))
    found = node.backend.prove([instance])[instance.uuid]
    assert (found, found.code) == ("the driver holds no limits for cgroups on MIG instances", Code.MIG)
    [found] = CgroupBackend(driver=node.driver, mount=tmp_path / "none").prove(node.inventory.gpus[:1]).values()
    assert (found, found.code) == (f"{tmp_path}/none has no cgroups; mount the node's there", Code.NO_CGROUP)
    (node.mount / "kubepods/gpushare-probe").touch()
    assert f"no cgroup can be made in {node.mount}/kubepods (File exists)" in why(node)
    (node.mount / "kubepods/gpushare-probe").unlink()


@BOTH
def test_the_pods_limit_is_there_before_the_container_on_every_gpu(node: Node) -> None:
    assert node.prepare(node.grant(0, 1, gib=3)) == {}, "CUDA reports the share as the total"
    assert (node.limit(node.pod, 0), node.limit(node.pod, 1)) == (3072, 3072)
    main = node.runs(node.grant(0, 1, gib=3))
    assert node.memory.allocate(0, main, 3072) is not None
    assert node.memory.allocate(0, main, 1) is None
    assert node.memory.allocate(1, main, 3073) is None


def test_where_limits_nest_the_container_gets_its_own(node: Node) -> None:
    grants = (node.grant(0, gib=3), node.grant(0, 1, gib=2, container="second"))
    for grant in grants:
        assert node.prepare(grant, *grants) == {}
    assert (node.limit(node.pod, 0), node.limit(node.pod, 1)) == (5120, 2048)
    main, second = node.runs(*grants), node.container("second")
    node.containers.look_at_expected()
    assert node.limit(main) is None, "which of the two has appeared is not known"
    node.containers.look_at_reported()
    assert (node.limit(main, 0), node.limit(main, 1)) == (3072, None)
    assert (node.limit(second, 0), node.limit(second, 1)) == (2048, 2048)
    assert node.memory.allocate(0, main, 3073) is None


def two(node: Node, *gib: int) -> tuple[Grant, Grant]:
    first, second = gib or (3, 2)
    return node.grant(0, gib=first), node.grant(0, gib=second, container="second")


@pytest.mark.parametrize("mode", ["misc"])
def test_where_they_do_not_nest_the_pod_is_held_as_a_whole(node: Node) -> None:
    grants = two(node)
    told = node.prepare(grants[0], *grants)
    assert told["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.6000", "of the five that CUDA reports"
    main = node.runs(*grants)
    assert node.memory.allocate(0, main, 3072) is not None
    node.containers.look_at_expected()
    node.containers.look_at_reported()
    assert node.limit(main) is None
    assert node.memory.allocate(0, main, 2049) is None
    assert node.memory.allocate(0, node.container("second"), 2048) is not None


def running(node: Node) -> Path:
    """The group of a container with 3 GiB of the first GPU."""
    grant = node.grant(0, gib=3)
    node.prepare(grant)
    return node.runs(grant)


def appears(node: Node, name: str) -> Path:
    """As the runtime makes it, before the kubelet knows of it."""
    leaf = node.pod / f"cri-containerd-{container_id(IDS[name])}.scope"
    leaf.mkdir()
    return leaf


def test_a_container_is_limited_as_soon_as_its_group_is_there(node: Node) -> None:
    grant = node.grant(0, 1, gib=3)
    node.start(grant)
    sandbox = appears(node, "init")
    node.prepare(grant)
    node.containers.look_at_expected()
    main = appears(node, "main")
    node.containers.look_at_expected()
    assert (node.limit(main, 0), node.limit(main, 1), node.limit(sandbox)) == (3072, 3072, None)
    other = appears(node, "second")
    node.containers.look_at_expected()
    assert node.limit(other) is None, "none that was announced"


def test_until_it_is_there_it_is_looked_for(node: Node) -> None:
    node.containers.clock = SystemClock()
    with in_threads(node.containers.run):
        node.prepare(node.grant(0, gib=3))
        main = appears(node, "main")
        wait_until(lambda: node.limit(main) == 3072)


def test_while_many_that_run_are_limited_again_one_that_starts_does_not_wait_for_all(node: Node) -> None:
    """The driver takes its time for each of them, and the program that starts reads its total meanwhile."""
    for grant in (grants := two(node)):
        node.prepare(grant, *grants)
    node.runs(*grants)
    limited, init = list[Path](), list[Path]()

    class Slow(MemoryLimits):
        def set(self, gpu: GpuUuid, cgroup: Path, hard: int) -> None:
            limited.append(cgroup)
            if len(limited) == 1:  # meanwhile another one starts
                node.prepare(third, *grants, third)
                init.append(appears(node, "init"))

    third = node.grant(0, gib=1, container="init")
    node.containers.look_at_expected()
    node.backend.driver = Slow(node.driver.nvml)
    node.containers.look_at_reported()
    assert [each for each in limited if each != node.pod] == [node.container("main"), *init, node.container("second")]


def test_a_group_that_is_not_ready_is_limited_when_it_is(node: Node) -> None:
    node.prepare(node.grant(0, gib=3))
    main = appears(node, "main")
    node.stub.set({"fail.nvmlDeviceSetMemoryLimits_v1": 999})
    node.containers.look_at_expected()
    node.stub.set({"fail.nvmlDeviceSetMemoryLimits_v1": None})
    node.containers.look_at_expected()
    assert node.limit(main) is None, "not so soon"
    node.clock.at += 0.1
    node.containers.look_at_expected()
    assert node.limit(main) == 3072


def test_the_longer_a_container_takes_the_less_often_it_is_looked_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []

    def counted(pod: Path) -> Mapping[str, Path]:
        looks.append(pod)
        return {}

    monkeypatch.setattr(cgroups, "container_directories", counted)
    node.prepare(node.grant(0, gib=3))
    for _ in range(1000):
        node.clock.at += 0.01
        node.containers.look_at_expected()
    assert 50 < len(looks) < 150


def test_a_container_that_never_comes_is_forgotten(node: Node) -> None:
    node.prepare(node.grant(0, gib=3))
    for seconds in (0, 10):
        node.clock.at += seconds
        node.containers.look_at_expected()
    main = appears(node, "main")
    node.containers.look_at_expected()
    assert node.limit(main) is None


def test_containers_that_share_all_of_a_gpu_are_held_against_each_other(node: Node) -> None:
    for grant in (grants := two(node, 8, 7)):
        node.prepare(grant, *grants)
    main = node.runs(*grants)
    node.containers.look_at_reported()
    assert (node.limit(node.pod), node.limit(main)) == (15360, 8192)


def test_a_container_is_looked_for_until_it_is_there_and_a_limit_that_someone_has_removed_comes_back(
    node: Node,
) -> None:
    main = running(node)
    main.rmdir()
    node.containers.look_at_reported()
    main.mkdir()
    node.containers.look_at_reported()
    assert node.limit(main) == 3072
    node.driver.set(node.inventory.gpus[0].uuid, main, UNLIMITED)
    node.containers.look_at_reported()
    assert node.limit(main) is None
    node.clock.at += 60
    node.containers.look_at_reported()
    assert node.limit(main) == 3072


def test_a_container_is_not_limited_twice_where_the_node_uses_another_means_now(node: Node) -> None:
    main = running(node)
    gpus = tuple(replace(gpu, limit=Limit.ADVISORY) for gpu in node.inventory.gpus)
    node.inventory = replace(node.inventory, gpus=gpus)
    node.containers.look_at_reported()
    assert (node.limit(node.pod), node.limit(main)) == (3072, None)


@BOTH
def test_pods_that_were_started_without_a_limit_keep_what_they_have(node: Node) -> None:
    grant = node.grant(0, gib=3)
    node.start(grant)
    main = node.runs(grant)
    node.containers.look_at_reported()
    assert (node.limit(node.pod), node.limit(main)) == (None, None)


@BOTH
@pytest.mark.parametrize(("init_gib", "largest"), [(2, 4096), (5, 6144)])
def test_a_sidecar_that_restarts_gives_its_pod_no_more_than_was_placed(node: Node, init_gib: int, largest: int) -> None:
    """A tenant decides when it restarts; init and other containers never run at the same time."""
    sidecar = node.grant(0, gib=1, container="sidecar", kind=ContainerKind.SIDECAR)
    former, init = (
        node.grant(0, gib=gib, container=name, kind=ContainerKind.INIT)
        for name, gib in (("former", 9), ("init", init_gib))
    )
    of_pod = (former, sidecar, init, node.grant(0, gib=3))
    limits = (9216, largest, 1024 + init_gib * 1024, 4096)
    for grant, expected in zip((*of_pod, sidecar), (*limits, largest), strict=True):
        node.prepare(grant, *of_pod)
        assert node.limit(node.pod) == expected


@BOTH
def test_an_init_container_whose_devices_another_one_has_too_counts_as_either(node: Node) -> None:
    """Which of the two starts cannot be told, and the kubelet's checkpoint names them in any order."""
    init, main = node.grant(0, container="init", kind=ContainerKind.INIT), node.grant(0)
    of_pod = (init, main, node.grant(0, gib=2, container="second"))
    pod = running_pod(0, *of_pod)
    node.pod.mkdir()
    limits = NodeLimits(
        backends={Limit.CGROUP: node.backend}, wanted=(Limit.CGROUP,), on_failure=OnFailure.REFUSE, clock=node.clock
    )
    limits.assess(node.inventory)
    for held_by in ((init, main), (main, init)):
        assert isinstance(limited(limits.prepare, pod, Accept(held_by, of_pod), node.inventory), Accept)
        assert node.limit(node.pod) == 5120


@pytest.mark.parametrize("mode", ["misc"])
def test_while_another_container_has_more_than_leaves_room_the_next_one_does_not_start(node: Node) -> None:
    sidecar = node.grant(0, gib=1, container="sidecar", kind=ContainerKind.SIDECAR)
    init, main = node.grant(0, gib=2, container="init", kind=ContainerKind.INIT), node.grant(0, gib=3)
    node.prepare(sidecar, sidecar, init, main)
    taken = node.memory.allocate(0, node.runs(sidecar), 4096)
    assert taken is not None
    start = node.start(init, sidecar, init, main)
    node.refuses(start, "the limit is above the GPU's memory, or below what is in use already")
    assert node.limit(node.pod) == 4096
    node.memory.free(taken)
    node.prepare(init, sidecar, init, main)


@BOTH
def test_a_whole_gpu_needs_no_limit(node: Node) -> None:
    node.prepare(node.grant(0, gib=15, whole=True))
    node.prepare(node.grant(1, gib=15))
    assert (node.limit(node.pod, 0), node.limit(node.pod, 1)) == (None, None)
    node.runs(node.grant(0, gib=15, whole=True))
    node.containers.look_at_reported()
    assert node.limit(node.container("main")) is None


@BOTH
def test_a_pod_without_a_cgroup_does_not_start(node: Node) -> None:
    start = node.start(node.grant(0))
    node.pod.rmdir()
    node.refuses(start, f"made no cgroup for pod default/pod with uid {UID} below {node.mount}; it needs --cgroups-per")


@BOTH
def test_a_failure_on_one_gpu_leaves_no_limit_but_that_of_a_container_that_runs(node: Node) -> None:
    first, second = node.grant(0, gib=3), node.grant(0, 1, gib=2, container="second")
    why = f"GPU {node.inventory.gpus[1].uuid}, cgroup {node.pod}: the driver says"
    node.stub.set({"1.fail.nvmlDeviceSetMemoryLimits_v1": 999})
    node.refuses(node.start(second, first, second), why)
    assert (node.memory.limits(0), node.memory.limits(1)) == ({}, {})
    node.prepare(first, first, second)
    node.refuses(node.start(second, first, second), why)
    assert node.limit(node.pod, 0) == 5120


def test_a_driver_that_hangs_holds_a_start_up_twice_at_most(node: Node) -> None:
    asked: list[int] = []

    class Hanging(MemoryLimits):
        def set(self, gpu: GpuUuid, cgroup: Path, hard: int) -> None:
            asked.append(hard)
            if len(asked) > 1:
                raise SilentDriverError(Cause(Code.DRIVER_SILENT, "NVIDIA's driver has not answered in 5 s"))

    node.backend.driver = Hanging(node.driver.nvml)
    node.refuses(node.start(node.grant(0, 1)), "has not answered in 5 s")
    assert [hard == UNLIMITED for hard in asked] == [False, False, True]


def test_the_kubelets_group_is_found_again_if_it_moves(node: Node) -> None:
    moved = node.mount / f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
    start = node.start(node.grant(0))
    node.pod.rmdir()
    node.pod.parent.rmdir()
    node.pod.parent.parent.rmdir()
    moved.mkdir(parents=True)
    node.backend.prepare(start, start.gpus)
    assert node.limit(moved) == 3072


def test_the_first_hierarchy_of_version_1_that_works_is_taken(tmp_path: Path, node: Node) -> None:
    mount = tmp_path / "v1"
    (mount / "memory/kubepods").mkdir(parents=True)
    (mount / "unified").write_text("no directory", encoding="ascii")
    (mount / "devices/kubepods").mkdir(parents=True)
    backend = CgroupBackend(driver=node.driver, mount=mount)
    assert backend.prove(node.inventory.gpus[:1])[node.inventory.gpus[0].uuid] == PROVEN
    (mount / f"memory/kubepods/pod{UID}").mkdir()
    assert backend.pod_directory(UID) == mount / f"memory/kubepods/pod{UID}"


GRANTS: Final = {1: (4,), 2: (3, 2), 3: (1, 1)}
"""GiB of the containers of three pods, all on one GPU of 15."""


class History:
    """Pods whose containers start, take and free memory, and end, in any order."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node, self.random = node, random.Random(seed)
        self.running: dict[tuple[int, int], Path] = {}
        self.started = 0

    def grants(self, pod: int) -> tuple[Grant, ...]:
        return tuple(self.node.grant(0, gib=gib, container=f"c{i}") for i, gib in enumerate(GRANTS[pod]))

    def step(self) -> None:
        pod = self.random.choice(list(GRANTS))
        number = self.random.randrange(len(GRANTS[pod]))
        act = self.random.choice([self.toggle, self.take, self.take, self.take, self.look, self.restart])
        act(pod, number)
        self.check()

    def toggle(self, pod: int, number: int) -> None:
        cgroup = self.running.pop((pod, number), None)
        if cgroup is not None:
            self.node.memory.end(cgroup)
            cgroup.rmdir()
            return
        of_pod = self.grants(pod)
        self.node.prepare(of_pod[number], *of_pod, pod=pod)
        self.started += 1
        cgroup = self.node.directory(pod) / container_id(self.started)
        cgroup.mkdir()
        if self.random.random() < 0.7:  # else several appear between two looks, or the plugin restarts meanwhile
            self.node.containers.look_at_expected()
        self.running[pod, number] = cgroup

    def take(self, pod: int, number: int) -> None:
        cgroup = self.running.get((pod, number))
        if cgroup is None:
            return
        size = self.random.choice([1, 100, 1024, 2048, 6000])
        left = GRANTS[pod][number] * 1024 - self.node.memory.used(0, cgroup)
        alone = sum(key[0] == pod for key in self.running) == 1
        assert self.node.memory.allocate(0, cgroup, size) is not None or size > left or not alone

    def look(self, _pod: int, _number: int) -> None:
        ids: dict[int, dict[str, int]] = {pod: {} for pod in GRANTS}
        for (pod, number), cgroup in self.running.items():
            ids[pod][f"c{number}"] = int(cgroup.name, 16)
        self.node.pods = [running_pod(pod, *self.grants(pod), ids=each) for pod, each in ids.items()]
        self.node.containers.look_at_reported()

    def restart(self, _pod: int, _number: int) -> None:
        self.node.plugin_restarts()

    def check(self) -> None:
        for pod, sizes in GRANTS.items():
            directory = self.node.directory(pod)
            assert not directory.is_dir() or self.node.memory.used(0, directory) <= sum(sizes) * 1024
        limits = self.node.memory.limits(0)
        for (pod, number), cgroup in self.running.items():
            assert self.node.directory(pod) in limits
            if cgroup in limits:
                assert limits[cgroup] == GRANTS[pod][number] * 1024 * MIB


@BOTH
@pytest.mark.parametrize("seed", range(12))
def test_no_pod_ever_has_more_than_its_share_whatever_happens(node: Node, seed: int) -> None:
    history = History(node, seed)
    for _ in range(60):
        history.step()
    for cgroup in history.running.values():
        node.memory.end(cgroup)
    shutil.rmtree(node.mount / "kubepods")
    assert node.memory.limits(0) == {}


def test_a_container_that_cannot_be_limited_is_told_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.prepare(grant := node.grant(0))
    leaf = node.runs(grant)
    for error in (999, 999, stub.GPU_IS_LOST, 999):
        node.stub.set({"0.fail.nvmlDeviceSetMemoryLimits_v1": error})
        for _ in range(3):
            node.containers.look_at_reported()
    node.stub.set({"0.fail.nvmlDeviceSetMemoryLimits_v1": None})
    node.containers.look_at_reported()
    assert node.limit(leaf) == 3072
    node.stub.set({"0.fail.nvmlDeviceSetMemoryLimits_v1": 999})
    node.clock.at += 60
    node.containers.look_at_reported()
    said = [line["error"].split(":")[0] for line in fields_of(caplog, "container not limited")]
    assert said == [f"the driver says {error}" for error in ("Unknown Error", "GPU is lost", *["Unknown Error"] * 2)]
