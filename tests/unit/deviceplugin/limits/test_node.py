"""What is proven is shown and used, a failure refuses the start or falls to the next, and what back ends hand over."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from deviceplugin.causes import Cause, Code, code
from deviceplugin.cdi import ContainerEdits, Mount
from deviceplugin.decide import Accept, Reason, Refuse
from deviceplugin.limits import node as limits
from deviceplugin.limits.cgroup import CgroupBackend
from deviceplugin.limits.hami_core import HamiCoreBackend
from deviceplugin.limits.mps import MpsBackend
from deviceplugin.limits.node import (
    PROVEN,
    AdvisoryBackend,
    ChosenLimits,
    LimitBackend,
    LimitedStart,
    LimitError,
    MigBackend,
    NodeLimits,
    OnFailure,
    Proofs,
    mps_variables,
)
from deviceplugin.prestart import limited
from gpushare.identity import GpuUuid
from gpushare.model.gpu import GpuHealth, HandOver, Limit, MigInstance
from testing.builders import make_gpu, make_grant, make_inventory
from testing.clock import ManualClock
from testing.deviceplugin.build import bound_pod, fields_of
from testing.deviceplugin.limits import FakeBackend, start_of
from tests.unit.deviceplugin import golden

INVENTORY = make_inventory(15, 15)
FIRST, SECOND = GpuUuid("GPU-0"), GpuUuid("GPU-1")
NO_MIG, NO_DAEMON = Cause(Code.OTHER, "no MIG"), Cause(Code.MPS_SILENT, "no daemon")
EVERYWHERE: Final = {FIRST: PROVEN, SECOND: PROVEN}


def test_an_order_is_read_and_other_words_are_refused() -> None:
    for text, expected in (
        ("auto", (Limit.CGROUP, Limit.MPS, Limit.HAMI_CORE, Limit.ADVISORY)),
        ("cgroup", (Limit.CGROUP,)),
        ("mps, advisory", (Limit.MPS, Limit.ADVISORY)),
        ("hami-core,cgroup", (Limit.HAMI_CORE, Limit.CGROUP)),
        ("cgroup,mig", (Limit.CGROUP,)),
    ):
        assert limits.order(text) == (Limit.MIG, *expected)
    for text in ("", "none", "cgroup,cgroup", "auto,mps", "watchdog", "cgroup;mps"):
        with pytest.raises(
            ValueError, match="write auto, or some of mig, cgroup, mps, hami-core, advisory, each once, "
        ):
            limits.order(text)


def test_why_nothing_stronger_holds_is_told() -> None:
    proofs: dict[Limit, Proofs] = {
        Limit.MIG: {FIRST: NO_MIG, SECOND: NO_MIG},
        Limit.CGROUP: {FIRST: PROVEN, SECOND: Cause(Code.DRIVER_OLD, "old driver" * 50)},
        Limit.MPS: {FIRST: NO_DAEMON, SECOND: NO_DAEMON},
        Limit.HAMI_CORE: EVERYWHERE,
        Limit.ADVISORY: EVERYWHERE,
    }
    first, second = ChosenLimits(limits.order("auto"), proofs).shown(INVENTORY).gpus
    assert (first.limit, first.limit_reason) == (Limit.CGROUP, "")
    assert second.limit is Limit.HAMI_CORE
    assert second.limit_reason == f"cgroup: {'old driver' * 20}; mps: no daemon"
    assert [code(gpu.limit_reason) for gpu in (first, second)] == ["", Code.DRIVER_OLD]
    proofs[Limit.CGROUP] = {}
    _, second = ChosenLimits(limits.order("mps,advisory"), {**proofs, Limit.MPS: EVERYWHERE}).shown(INVENTORY).gpus
    assert code(second.limit_reason) == Code.NOT_ASKED
    first, _ = ChosenLimits((Limit.MPS, Limit.CGROUP), dict.fromkeys(Limit, EVERYWHERE)).shown(INVENTORY).gpus
    assert first.limit_reason == "cgroup: the order of limits of this node leaves it out or puts it later"


def test_a_gpu_on_which_nothing_works_takes_no_containers_and_its_own_fault_is_not_hidden() -> None:
    old = Cause(Code.DRIVER_OLD, "old driver")
    proofs = {Limit.MIG: {FIRST: NO_MIG}, Limit.CGROUP: {FIRST: old, SECOND: PROVEN}}
    chosen = ChosenLimits(limits.order("cgroup"), proofs)
    first, second = chosen.shown(INVENTORY).gpus
    assert (first.health, first.limit) == (GpuHealth.UNHEALTHY, Limit.ADVISORY)
    assert (first.reason, code(first.reason)) == ("no limit can be held: cgroup: old driver", Code.NOT_LIMITED)
    assert (second.health, second.limit, second.reason) == (GpuHealth.HEALTHY, Limit.CGROUP, "")
    mig_only = ChosenLimits(limits.order("mig"), {Limit.MIG: {FIRST: NO_MIG, SECOND: NO_MIG}}).shown(INVENTORY)
    assert {gpu.health for gpu in mig_only.gpus} == {GpuHealth.UNHEALTHY}
    broken = replace(make_inventory(), gpus=(make_gpu(0, health=GpuHealth.UNHEALTHY),))
    assert chosen.shown(broken) == broken
    assert ChosenLimits().shown(INVENTORY) == INVENTORY, "one that was not looked at stays as it is"


class Node:
    """A node with two back ends, either of which can be broken."""

    label: str | None = ""

    def __init__(self, on_failure: OnFailure = OnFailure.REFUSE, wanted: str = "cgroup,advisory") -> None:
        self.cgroup, self.advisory = FakeBackend(Limit.CGROUP), FakeBackend(Limit.ADVISORY)
        self.clock = ManualClock()
        self.limits = NodeLimits(
            backends={Limit.CGROUP: self.cgroup, Limit.ADVISORY: self.advisory},
            wanted=limits.order(wanted),
            on_failure=on_failure,
            clock=self.clock,
            label=lambda: self.label,
        )

    def shown(self) -> list[Limit]:
        return [gpu.limit for gpu in self.limits.assess(INVENTORY).gpus]

    def half(self) -> None:
        """The first back end works on the first GPU alone."""
        self.cgroup.works = lambda gpu: PROVEN if gpu.index == 0 else "old driver"

    def fails(self, why: str) -> None:
        """The first back end fails, until it is given up."""
        self.cgroup.works = lambda _gpu: why
        for _ in range(2):
            self.clock.at += 10.0
            self.shown()


def test_what_works_is_shown_and_used_at_once_on_all_gpus_with_the_same_back_end() -> None:
    node = Node()
    assert node.shown() == [Limit.CGROUP, Limit.CGROUP]
    node.limits.prepare(start_of(0, 1))
    assert (node.cgroup.prepared, node.advisory.prepared) == ([("GPU-0", "GPU-1")], [])
    node = Node()
    node.half()
    assert node.shown() == [Limit.CGROUP, Limit.ADVISORY]
    assert node.limits.prepare(start_of(0, 1)).env == (("BY_CGROUP_main", "GPU-0"), ("BY_ADVISORY_main", "GPU-1"))


def test_frameworks_are_told_nothing_where_the_gpus_of_a_container_are_limited_in_different_ways() -> None:
    node = Node()
    node.half()
    node.limits.backends = {Limit.CGROUP: node.cgroup, Limit.ADVISORY: AdvisoryBackend()}
    node.shown()
    assert node.limits.prepare(start_of(0, 1)).env == (("BY_CGROUP_main", "GPU-0"),)
    assert len(node.limits.prepare(start_of(1)).env) == 3


def test_until_the_node_was_read_nothing_starts_by_an_order_that_may_be_another_ones() -> None:
    node = Node()
    node.label = None
    assert node.limits.assess(INVENTORY) is INVENTORY
    assert node.cgroup.proofs == 0
    with pytest.raises(LimitError, match="nothing holds limits on GPU-0 yet, or the Node was not read yet; the"):
        node.limits.prepare(start_of(0))
    node.label = "advisory"
    assert node.shown() == [Limit.ADVISORY, Limit.ADVISORY]


def test_one_proof_that_fails_does_not_weaken_the_limits_of_what_starts_meanwhile() -> None:
    node = Node()
    node.shown()
    node.cgroup.works, node.cgroup.error = lambda _gpu: "no answer", "no answer"
    node.clock.at += 10.0
    assert node.shown() == [Limit.CGROUP, Limit.CGROUP]
    with pytest.raises(LimitError, match="no answer"):
        node.limits.prepare(start_of(0))
    node.cgroup.works, node.cgroup.error = lambda _gpu: PROVEN, ""
    assert node.shown() == [Limit.CGROUP, Limit.CGROUP]
    node.clock.at += 10.0
    node.cgroup.works = lambda _gpu: "no answer again"
    assert node.shown() == [Limit.CGROUP, Limit.CGROUP]
    node.clock.at += 2.0
    assert node.shown() == [Limit.ADVISORY, Limit.ADVISORY], "at the second it decides about new starts"
    node.limits.prepare(start_of(0))
    assert node.advisory.prepared == [("GPU-0",)]


def test_the_log_says_what_works_and_why_the_rest_does_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = Node()
    node.half()
    node.shown()
    node.clock.at += 10.0
    node.shown()
    no_mig = "no driver can be asked: its GPUs are simulated"
    assert fields_of(caplog, "limits proven") == [
        {"mig": no_mig, "cgroup": {"GPU-0": "works", "GPU-1": "old driver"}, "advisory": "works"}
    ]
    node.limits.assess(make_inventory())
    assert fields_of(caplog, "limits proven")[1]["cgroup"] == "no GPUs"


def test_a_failure_refuses_the_start_and_makes_the_next_look_prove_again(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.shown()
    node.cgroup.error = "no such group"
    with pytest.raises(LimitError, match=r"^the memory limit \(cgroup\) cannot be set: no such group$"):
        node.limits.prepare(start_of(0))
    assert node.advisory.prepared == []
    assert fields_of(caplog, "limit failed")[0]["limit"] == "cgroup"
    node.shown()
    assert node.cgroup.proofs == 2
    node.shown()
    assert node.cgroup.proofs == 2, "proofs are made now and then"
    node.limits.assess(make_inventory(15))
    assert node.cgroup.proofs == 3, "and for GPUs that are new"


def test_a_failure_falls_to_the_next_back_end_where_the_administrator_wants_that() -> None:
    node = Node(OnFailure.NEXT)
    node.shown()
    node.cgroup.error = "no such group"
    assert node.limits.prepare(start_of(0)).env == (("BY_ADVISORY_main", "GPU-0"),)
    node.advisory.error = "nor this"
    with pytest.raises(LimitError, match="nor this"):
        node.limits.prepare(start_of(0))


def test_a_pod_that_demands_an_enforced_limit_never_falls_below() -> None:
    node = Node(OnFailure.NEXT)
    node.shown()
    demanding = start_of(0, annotations={"gpushare.dev/limit": "enforced"})
    assert node.limits.prepare(demanding).env == (("BY_CGROUP_main", "GPU-0"),)
    node.cgroup.error = "no such group"
    with pytest.raises(LimitError, match="no such group"):
        node.limits.prepare(demanding)
    node.fails("old driver")
    said = [golden.error(LimitError, node.limits.prepare, demanding)]
    assert node.advisory.prepared == []
    whole = replace(demanding, grant=replace(demanding.grant, whole=True))
    assert node.limits.prepare(whole).env == (("BY_ADVISORY_main", "GPU-0"),), "it needs no limit to be enforced"
    node = Node(wanted="mig")
    node.limits.backends = {Limit.MIG: FakeBackend(Limit.MIG)}
    node.shown()
    assert node.limits.prepare(start_of(0, gib=15, annotations=demanding.annotations)).env
    assert node.limits.prepare(start_of(0, gib=3)).env
    part = start_of(0, gib=3, annotations=demanding.annotations)
    golden.compare("demanded", [*said, golden.error(LimitError, node.limits.prepare, part)])


BACKENDS: Final = [
    (kind.limit, kind.needs_edits) for kind in (MigBackend, CgroupBackend, MpsBackend, HamiCoreBackend, AdvisoryBackend)
]
BY_SPEC: Final = {HandOver.CDI, HandOver.VOLUME_MOUNTS}  # a container gets a spec's mounts and variables


@pytest.mark.parametrize("way", HandOver)
@pytest.mark.parametrize(("limit", "needs_edits"), BACKENDS)
def test_what_works_through_mounts_needs_a_way_that_brings_them_into_containers(
    limit: Limit, needs_edits: bool, way: HandOver
) -> None:
    node = Node(wanted="auto")
    node.limits.backends = {Limit.ADVISORY: node.advisory, limit: FakeBackend(limit, needs_edits)}
    expected = limit if way in BY_SPEC or not needs_edits else Limit.ADVISORY
    gpus = node.limits.assess(replace(INVENTORY, hand_over=way)).gpus
    assert [gpu.limit for gpu in gpus] == [expected, expected]
    edits = node.limits.prepare(start_of(0))
    assert edits.env == ((f"BY_{expected.name}_main", "GPU-0"),)


@pytest.mark.parametrize(
    ("backends", "expected"),
    [({}, Code.SIMULATED), ({Limit.MPS: FakeBackend(Limit.MPS, needs_edits=True)}, Code.NO_MOUNTS)],
)
def test_what_is_not_asked_has_its_own_code(backends: dict[Limit, LimitBackend], expected: Code) -> None:
    node = Node(wanted="mps,advisory")
    node.limits.backends = {Limit.ADVISORY: node.advisory, **backends}
    gpus = node.limits.assess(replace(INVENTORY, hand_over=HandOver.ENVVAR)).gpus
    assert {code(gpu.limit_reason) for gpu in gpus} == {expected}


def test_the_nodes_label_counts_as_soon_as_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    assert node.shown() == [Limit.CGROUP, Limit.CGROUP]
    node.label = "advisory"
    assert node.shown() == [Limit.ADVISORY, Limit.ADVISORY]
    node.label = "advisroy"
    assert node.shown() == [Limit.CGROUP, Limit.CGROUP]
    [told] = fields_of(caplog, "label not read")
    assert told["problem"] == (
        "label gpushare.dev/limits=advisroy: write auto, or some of mig, cgroup, mps, hami-core, advisory, each once,"
        " with commas between them; in a label, write dots instead of commas"
    )
    node.label = "advisory.cgroup"
    assert node.shown() == [Limit.ADVISORY, Limit.ADVISORY]


def test_a_start_gets_the_edits_of_each_container_that_may_be_meant() -> None:
    node = Node()
    node.shown()
    grants = (make_grant(0, container="init"), make_grant(0, container="main"))
    decision = limited(node.limits.prepare, bound_pod(*grants), Accept(grants, grants), INVENTORY)
    assert isinstance(decision, Accept)
    assert decision.limits == {
        "init": ContainerEdits(env=(("BY_CGROUP_init", "GPU-0"),)),
        "main": ContainerEdits(env=(("BY_CGROUP_main", "GPU-0"),)),
    }
    node.cgroup.error = "no such group"
    assert limited(node.limits.prepare, bound_pod(*grants), Accept(grants, grants), INVENTORY) == Refuse(
        Reason("NotLimited"), "pod default/pod: the memory limit (cgroup) cannot be set: no such group"
    )


ANNOTATION = "gpushare.dev/framework-variables"
JAX, PADDLE = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.2000"), ("FLAGS_gpu_memory_limit_mb", "3072")
CUPY = ("CUPY_GPU_MEMORY_LIMIT", str(3 * 1024**3))
PYTORCH = ("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.2000")


def of(start: LimitedStart) -> tuple[tuple[str, str], ...]:
    return AdvisoryBackend().prepare(start, start.gpus).env


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (start_of(grant=make_grant(0, gib=3)), (JAX, PADDLE, CUPY)),  # those that cannot break anything
        (start_of(grant=make_grant(0, gib=0, memory_percent=20)), (JAX, PADDLE, CUPY)),
        (start_of(annotations={ANNOTATION: "none"}), ()),
        (start_of(annotations={ANNOTATION: "jax"}), (JAX,)),
        (start_of(annotations={ANNOTATION: "paddle, jax"}), (PADDLE, JAX)),
        (start_of(annotations={ANNOTATION: "pytorch"}), (PYTORCH,)),
        (start_of(variables=frozenset({"XLA_PYTHON_CLIENT_MEM_FRACTION"})), (PADDLE, CUPY)),  # it is not told twice
        (start_of(variables=frozenset({"XLA_CLIENT_MEM_FRACTION"})), (PADDLE, CUPY)),
        (start_of(open_env=True), ()),  # an author may have set it elsewhere
        (start_of(grant=make_grant(0, gib=15)), ()),
        (start_of(grant=make_grant(0, gib=0, whole=True)), ()),
    ],
)
def test_frameworks_are_told_the_share_unless_the_author_has_chosen(
    start: LimitedStart, told: tuple[tuple[str, str], ...]
) -> None:
    assert of(start) == told


@pytest.mark.parametrize("annotation", ["", "tensorflow", "jax,", "none,jax"])
def test_an_unknown_framework_is_named(annotation: str) -> None:
    with pytest.raises(LimitError, match="write none, or some of jax, paddle, cupy, pytorch, each once, with commas"):
        of(start_of(annotations={ANNOTATION: annotation}))


def test_fractions_are_rounded_down_but_never_to_nothing_and_none_of_gpus_that_differ_is_exceeded() -> None:
    tiny = start_of(grant=replace(make_grant(0), memory_mib=1))
    unequal = start_of(0, 1, gib=3, inventory=make_inventory(15, 30))
    for start, fraction in ((start_of(gib=5), "0.3333"), (tiny, "0.0001"), (unequal, "0.1000")):
        assert dict(of(start))[JAX[0]] == fraction


def test_under_mps_only_jax_is_told_because_it_takes_a_part_of_the_whole_gpu() -> None:
    start = start_of(gib=3)
    assert mps_variables(start, start.gpus) == (("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.1900"),)
    assert mps_variables(start_of(variables=frozenset({"XLA_CLIENT_MEM_FRACTION"})), start.gpus) == ()
    assert mps_variables(start_of(annotations={ANNOTATION: "cupy"}), start.gpus) == ()


def test_a_mig_instance_is_held_by_the_hardware_and_a_part_of_it_by_variables() -> None:
    instance = replace(make_gpu(0, 5), mig=MigInstance(gpu=0, number=0, profile="1g.5gb"))
    backend = MigBackend()
    assert backend.prove([instance, make_gpu(1)]) == {"GPU-0": "", "GPU-1": "it is not a MIG instance"}
    inventory = replace(make_inventory(), gpus=(instance,))
    assert backend.prepare(start_of(gib=5, inventory=inventory), (instance,)).env == ()
    assert dict(backend.prepare(start_of(gib=1, inventory=inventory), (instance,)).env)[JAX[0]] == "0.2000"


@pytest.fixture
def hami_core(tmp_path: Path) -> HamiCoreBackend:
    (tmp_path / "libvgpu.so").write_bytes(b"\x7fELF...")
    (tmp_path / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n", encoding="ascii")
    return HamiCoreBackend(directory=tmp_path)


def test_it_works_where_its_files_are(hami_core: HamiCoreBackend, tmp_path: Path) -> None:
    def why(hami_core: HamiCoreBackend) -> str:
        found = hami_core.prove([make_gpu(0)])[make_gpu(0).uuid]
        assert found.code in {PROVEN, Code.LIBRARY}
        return found

    assert why(hami_core) == PROVEN
    (tmp_path / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so /lib/other.so", encoding="ascii")
    said = [why(hami_core)]
    (tmp_path / "libvgpu.so").write_bytes(b"<html>")
    said.append(why(hami_core))
    (tmp_path / "libvgpu.so").unlink()
    said += [why(hami_core), why(HamiCoreBackend(directory=None))]
    golden.compare("hami_core", (text.replace(str(tmp_path), "DIRECTORY") for text in said))


def test_a_container_gets_the_library_and_its_limit(hami_core: HamiCoreBackend, tmp_path: Path) -> None:
    start = start_of(grant=make_grant(0, 1, gib=3, compute_percent=20))
    edits = hami_core.prepare(start, start.gpus)
    each = [("CUDA_DEVICE_MEMORY_LIMIT", "3072m"), ("CUDA_DEVICE_SM_LIMIT", "20")]
    assert dict(edits.env) == {
        **{f"{name}{gpu}": value for name, value in each for gpu in ("", "_0", "_1")},
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu-cache/region",
        "CUDA_OVERSUBSCRIBE": "false",
        "CUDA_DISABLE_CONTROL": "false",
    }
    own = ("rw", "nosuid", "nodev", "noexec", "mode=1777", "size=16m")
    assert edits.mounts == (
        Mount(host_path=f"{tmp_path}/libvgpu.so", container_path="/usr/local/vgpu/libvgpu.so"),
        Mount(host_path=f"{tmp_path}/ld.so.preload", container_path="/etc/ld.so.preload"),
        Mount(host_path="tmpfs", container_path="/usr/local/vgpu-cache", options=own, kind="tmpfs"),
        Mount(host_path="tmpfs", container_path="/tmp/vgpulock", options=own, kind="tmpfs"),
    )


def test_of_shares_that_differ_the_smallest_counts_and_whole_gpus_need_no_library(hami_core: HamiCoreBackend) -> None:
    start = start_of(grant=make_grant(0, 1, gib=0, memory_percent=50), inventory=make_inventory(16, 8))
    assert dict(hami_core.prepare(start, start.gpus).env)["CUDA_DEVICE_MEMORY_LIMIT"] == "4096m"
    start = start_of(grant=make_grant(0, gib=15), image="alpine")
    assert hami_core.prepare(start, start.gpus) == ContainerEdits()


def test_images_without_glibc_are_refused_as_far_as_their_name_says(hami_core: HamiCoreBackend) -> None:
    for image in ("python:3.12-alpine", "gcr.io/distroless/static-debian12", "busybox", "x/MUSL:1"):
        with pytest.raises(LimitError, match=f"^image {image} of container main has no glibc, as its name says, and"):
            hami_core.prepare(start := start_of(0, image=image), start.gpus)


def test_a_part_of_a_containers_gpus_cannot_be_held_nor_anything_without_the_files(
    hami_core: HamiCoreBackend, tmp_path: Path
) -> None:
    start = start_of(0, 1, image="nvidia/cuda:12.4.0-base-ubuntu22.04")
    assert hami_core.prepare(start, start.gpus).mounts
    with pytest.raises(LimitError, match="holds the same limit on all GPUs of a container"):
        hami_core.prepare(start, start.gpus[:1])
    most, more = (start_of(grant=make_grant(*range(n)), inventory=make_inventory(*[15] * n)) for n in (16, 17))
    assert hami_core.prepare(most, most.gpus).mounts
    with pytest.raises(LimitError, match="at most on 16"):
        hami_core.prepare(more, more.gpus)
    (tmp_path / "ld.so.preload").unlink()
    with pytest.raises(LimitError, match=r"ld\.so\.preload cannot be read"):
        hami_core.prepare(start, start.gpus)
