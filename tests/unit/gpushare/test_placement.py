"""Where a pod goes on a node, and what is said when it cannot."""

from dataclasses import replace

import pytest

from gpushare.identity import ContainerName, by_index
from gpushare.model.gpu import Gpu, GpuHealth, HandOver, Limit
from gpushare.model.ledger import Allocation, NodeLedger, Placed, RefusalReason, Refused
from gpushare.model.request import (
    Affinity,
    Choice,
    ContainerKind,
    ContainerRequest,
    GpuSelector,
    LabelSelector,
    MigChoice,
    Policy,
    RequestShape,
)
from gpushare.placement.place import place
from gpushare.placement.policies import POLICIES, Policies
from testing.builders import make_allocation, make_gpu, make_grant, make_inventory, make_ledger, make_mig, make_shape

WEB = LabelSelector.parse("app=web")


def request(
    name: str = "c",
    *,
    kind: ContainerKind = ContainerKind.APP,
    gib: int = 1,
    compute: int = 0,
    percent: int = 0,
    whole: bool = False,
    count: int = 1,
) -> ContainerRequest:
    """So many GiB, or so many per cent, or whole GPUs."""
    return ContainerRequest(
        container=ContainerName(name),
        kind=kind,
        memory_mib=0 if percent or whole else gib * 1024,
        memory_percent=percent,
        compute_percent=100 if whole else percent or compute,
        whole=whole,
        gpu_count=count,
    )


def shape(*container_requests: ContainerRequest, **fields: object) -> RequestShape:
    return replace(RequestShape(containers=container_requests), **fields)  # type: ignore[arg-type]  # the test's own fields


def gpus(verdict: object) -> str:
    """The GPUs of each container."""
    assert isinstance(verdict, Placed), verdict
    return " ".join(",".join(grant.gpus) for grant in verdict.grants).replace("GPU-", "")


def refused(verdict: object) -> tuple[RefusalReason, str, bool]:
    assert isinstance(verdict, Refused), verdict
    return verdict.reason, verdict.message, verdict.permanent


def fill(ledger: NodeLedger, *container_requests: RequestShape) -> NodeLedger:
    """The ledger after these pods came one after the other."""
    for i, one in enumerate(container_requests):
        verdict = place(one, ledger)
        assert isinstance(verdict, Placed), verdict
        ledger = ledger.with_allocation(make_allocation(f"p{i}", *verdict.grants))
    return ledger


def of_gpus(*found: Gpu) -> NodeLedger:
    return NodeLedger.of(replace(make_inventory(15), gpus=found))


def mixed() -> NodeLedger:
    """A T4 of 15 GiB and an A100 of 80 GiB, of which 70 are held."""
    a100 = Gpu(uuid=make_gpu(1).uuid, index=1, model="NVIDIA A100-SXM4-80GB", memory_mib=80 * 1024)
    ledger = make_ledger([15, 80], {1: 70})
    return replace(ledger, inventory=replace(ledger.inventory, gpus=(make_gpu(0, 15), a100)))


def with_mig(*gib: int) -> NodeLedger:
    """GPUs of these sizes, and one that has three MIG instances of 5 GiB."""
    return of_gpus(*make_inventory(*gib).gpus, *(make_mig(len(gib), number) for number in range(3)))


def limited(limit: Limit, count: int = 2) -> NodeLedger:
    """The last GPUs have this limit."""
    return of_gpus(*(make_gpu(0),) * (2 - count), *(replace(make_gpu(i), limit=limit) for i in range(2 - count, 2)))


def neighbour(gpu: int, app: str = "web", namespace: str = "default") -> Allocation:
    found = make_allocation(f"n{gpu}", make_grant(gpu, gib=1))
    return replace(found, labels={"app": app}, pod=replace(found.pod, namespace=namespace))


def beside(**fields: object) -> RequestShape:
    return shape(request(gib=3), affinity=replace(Affinity(namespace="default"), **fields))  # type: ignore[arg-type]


def near(*allocations: Allocation, gpus: int = 2) -> NodeLedger:
    return NodeLedger.of(make_inventory(*[15] * gpus), allocations)


def model(name: str, **fields: int) -> GpuSelector:
    return GpuSelector(models=Choice(wanted=(name,)), min_memory_mib=fields.get("least_mib", 0))


INIT, ENFORCED, ONLY = ContainerKind.INIT, GpuSelector(enforced=True), GpuSelector(mig=MigChoice.ONLY)
SPREAD, BINPACK = Policy.SPREAD, Policy.BINPACK
BUSY = fill(make_ledger([15]), shape(request(gib=3, compute=70)))
USED_UP = fill(make_ledger([15]), shape(request(gib=3, compute=100)))
OF_OTHER_SYSTEM = near(replace(make_allocation("old", make_grant(str(by_index(1)), gib=1)), labels={"app": "web"}))
WHOLE, PAIR = request(whole=True), request(whole=True, count=2)
WHOLE_BESIDE = shape(request("a", whole=True), request("b", gib=3))
TWO = request(count=2)
DEAD_END = shape(*(request(f"c{i}", gib=4 - i, compute=compute) for i, compute in enumerate((40, 50, 60, 50))))
HALVES = shape(*(request(f"c{i}", percent=50) for i in range(4)))

PLACED: dict[str, tuple[RequestShape, NodeLedger, str]] = {
    "binpack takes the fullest": (make_shape(3), make_ledger([15] * 3, {0: 4, 1: 9, 2: 13}), "1"),
    "spread the emptiest": (make_shape(3, policy=SPREAD), make_ledger([15] * 3, {0: 4, 1: 9}), "2"),
    "equal ones by index": (make_shape(3), make_ledger([15, 15]), "0"),
    "equal ones by index, spread": (make_shape(3, policy=SPREAD), make_ledger([15, 15]), "0"),
    "equal ones, two containers": (make_shape(3, 3, policy=SPREAD), make_ledger([15] * 3), "0 1"),
    "by what others leave, spread": (make_shape(5, 3, policy=SPREAD), make_ledger([10, 9]), "0 1"),
    "by what others leave, binpack": (make_shape(6, 2, policy=BINPACK), make_ledger([8, 5]), "0 0"),
    "several are different": (make_shape((3, 2)), make_ledger([15] * 3, {1: 2}), "1,0"),
    "a fit that greedy misses": (make_shape(3, 3, 4), make_ledger([6, 4]), "0 0 1"),
    "different numbers of GPUs": (make_shape((4, 2), 1, 6), make_ledger([6, 5, 6]), "1,0 1 2"),
    "the largest container first": (make_shape(2, 7), make_ledger([9, 8]), "0 1"),
    "the one on most GPUs first": (make_shape(7, (2, 2)), make_ledger([9, 9, 12]), "0 0,1"),
    "what others leave of compute": (shape(request(gib=3, compute=30)), BUSY, "0"),
    "who asks for no compute shares it": (shape(request(gib=12)), BUSY, "0"),
    "a part that others leave": (shape(request(percent=30)), BUSY, "0"),
    "a dead end is left again": (DEAD_END, make_ledger([15, 15]), "0 1 0 1"),
    "parts of unlike GPUs are counted by the smallest": (HALVES, make_ledger([4, 20]), "0 0 1 1"),
    "an init container's compute": (
        shape(request("init", kind=INIT, gib=1, compute=80), request("app", gib=1, compute=60)),
        make_ledger([15]),
        "0 0",
    ),
    "whole GPUs that no one touched": (shape(PAIR), make_ledger([15, 15, 15], {1: 1}), "0,2"),
    "a whole GPU beside a share": (WHOLE_BESIDE, make_ledger([15, 15], {0: 3}), "1 0"),
    "an init container may use the whole GPU of a later share": (
        shape(request("init", kind=INIT, whole=True), request("app", gib=3)),
        make_ledger([15]),
        "0 0",
    ),
    "a model": (shape(request(gib=10), gpus=model("A100")), mixed(), "1"),
    "an enforced limit": (shape(request(gib=10), gpus=ENFORCED), limited(Limit.CGROUP, 1), "1"),
    "all of a MIG instance": (shape(request(gib=15), gpus=ENFORCED), limited(Limit.MIG), "0"),
    "a whole MIG instance": (shape(WHOLE, gpus=ENFORCED), limited(Limit.MIG), "0"),
    "a part of a MIG instance": (shape(request(gib=14)), limited(Limit.MIG), "0"),
    "the smallest is an instance": (shape(request()), with_mig(15, 15), "MIG-2-0"),
    "several GPUs are no instances": (shape(TWO), with_mig(15, 15), "0,1"),
    "several whole GPUs are no instances": (shape(PAIR), with_mig(15, 15), "0,1"),
    "several GPUs beside an instance": (
        shape(request(gib=2, count=2), request("b", gib=5)),
        with_mig(15, 15),
        "0,1 MIG-2-0",
    ),
    "the GPU of others": (beside(same=WEB), near(neighbour(1), gpus=3), "1"),
    "the GPU of others, known by number": (beside(same=WEB), OF_OTHER_SYSTEM, "1"),
    "another GPU than others, known by number": (beside(other=WEB), OF_OTHER_SYSTEM, "0"),
    "the first of a group": (beside(same=WEB, first=True), make_ledger([15]), "0"),
    "another GPU than others": (beside(other=WEB), near(neighbour(0), neighbour(1, app="api")), "1"),
}


@pytest.mark.parametrize(("asked", "ledger", "expected"), PLACED.values(), ids=PLACED.keys())
def test_a_pod_goes_to_the_gpus_that_it_asks_for_and_its_policy_likes_best(
    asked: RequestShape, ledger: NodeLedger, expected: str
) -> None:
    assert gpus(place(asked, ledger)) == expected


def of_health(*health: GpuHealth) -> NodeLedger:
    return of_gpus(*(make_gpu(i, health=each) for i, each in enumerate(health)))


def told(*reasons: str) -> list[Gpu]:
    return [replace(make_gpu(i, health=SICK), reason=reason) for i, reason in enumerate(reasons)]


WELL, SICK, CORDONED = GpuHealth.HEALTHY, GpuHealth.UNHEALTHY, GpuHealth.CORDONED
MEMORY, COMPUTE = (RefusalReason.INSUFFICIENT_GPU_MEMORY, False), (RefusalReason.INSUFFICIENT_GPU_COMPUTE, False)
NEVER, UNTOUCHED = (RefusalReason.INSUFFICIENT_GPU_MEMORY, True), (RefusalReason.NO_UNTOUCHED_GPU, False)
MATCHING, NEIGHBOURS = (RefusalReason.NO_MATCHING_GPU, True), (RefusalReason.NO_MATCHING_GPU, False)
TOO_FEW, NONE = (RefusalReason.TOO_FEW_GPUS, True), (RefusalReason.NO_HEALTHY_GPU, True)
T4 = "(Tesla T4, 15360 MiB)"
INSTANCES = ", ".join(f"1:{number}: MIG (NVIDIA A100-SXM4-40GB MIG 1g.5gb, 5120 MiB)" for number in range(3))
SEVERAL = "for one container, which MIG instances cannot be, as a process uses one of them"
ODD = NodeLedger.of(make_inventory(15), [make_allocation("odd", make_grant(0, gib=0))])
FULL_BESIDE_MIG = fill(with_mig(15), shape(request(gib=14)))
FULL_PAIR = fill(with_mig(15, 15), shape(request(gib=14, count=2)))
THREE_OF_TWO = "needs 3 GPUs; node-a has 2"
LARGE = GpuSelector(min_memory_mib=20 * 1024)
SMALL = of_gpus(make_gpu(0, mib=15109)).with_allocation(make_allocation("p", make_grant(0, gib=2)))
FULL_OF_FIFTHS = fill(of_gpus(make_gpu(0, mib=15109)), *[shape(request(percent=20))] * 5)
PART_TAKEN = fill(make_ledger([15, 15]), shape(request(percent=50)))
ONE_OF_TWO = of_gpus(make_gpu(0, health=CORDONED), make_gpu(1)).with_allocation(
    make_allocation("p", make_grant(1, gib=14))
)
SAME_CAUSES = of_gpus(
    *told("the driver does not answer", "Xid 79: GPU has fallen off the bus", "the driver does not answer"),
    replace(make_mig(3, 1), health=SICK, reason="x" * 1000),
)

# What pods need, and what is free on each GPU.
LACKING: list[tuple[RequestShape, NodeLedger, tuple[RefusalReason, bool], str, str]] = [
    (make_shape(10), make_ledger([15] * 4, {0: 12, 1: 12, 2: 8, 3: 6}), MEMORY, "10 GiB on one GPU", "3, 3, 7, 9 GiB"),
    (
        make_shape(3, (4, 2)),
        make_ledger([4, 6]),
        MEMORY,
        "3 GiB on one GPU (c0) + 4 GiB on each of 2 GPUs (c1)",
        "4, 6 GiB",
    ),
    (
        make_shape(20),
        make_ledger([15, 15], {1: 3}),
        NEVER,
        "20 GiB on one GPU",
        "15, 12 GiB (its largest GPU has 15 GiB in all)",
    ),
    # What is asked is rounded up, and what is free is rounded down.
    (
        shape(replace(request(), memory_mib=3000)),
        of_gpus(make_gpu(0, mib=2900)),
        NEVER,
        "3 GiB on one GPU",
        "2 GiB (its largest GPU has 2 GiB in all)",
    ),
    (
        make_shape(16),
        of_health(SICK, WELL, WELL),
        NEVER,
        "16 GiB on one GPU",
        "unhealthy, 15, 15 GiB (its largest GPU has 15 GiB in all)",
    ),
    (make_shape(3), ONE_OF_TWO, MEMORY, "3 GiB on one GPU", "cordoned, 1 GiB"),
    (shape(request(percent=1)), FULL_OF_FIFTHS, MEMORY, "1 % of one GPU", "0 GiB and 0 %"),
    (shape(WHOLE), SMALL, UNTOUCHED, "1 whole GPU", "12 of 14 GiB and 100 %"),
    (
        shape(request("a", gib=9), request("b", gib=4, compute=30)),
        SMALL,
        MEMORY,
        "9 GiB on one GPU (a) + 4 GiB and 30 % of compute on one GPU (b)",
        "12 GiB and 100 %",
    ),
    (
        shape(*(request(f"c{i}", gib=2) for i in range(9))),
        SMALL,
        MEMORY,
        f"{' + '.join(f'2 GiB on one GPU (c{i})' for i in range(8))} + 1 more container",
        "12 GiB",
    ),
    (shape(request(gib=3, compute=40)), BUSY, COMPUTE, "3 GiB and 40 % of compute on one GPU", "12 GiB and 30 %"),
    (shape(request(percent=40)), BUSY, COMPUTE, "40 % of one GPU", "12 GiB and 30 %"),
    (shape(request(gib=12, compute=1)), USED_UP, COMPUTE, "12 GiB and 1 % of compute on one GPU", "12 GiB and 0 %"),
    (shape(request(gib=13, compute=1)), USED_UP, MEMORY, "13 GiB and 1 % of compute on one GPU", "12 GiB and 0 %"),
    (shape(WHOLE), ODD, UNTOUCHED, "1 whole GPU", "15 of 15 GiB and 100 %"),
    (WHOLE_BESIDE, ODD, UNTOUCHED, "1 whole GPU (a) + 3 GiB on one GPU (b)", "15 of 15 GiB and 100 %"),
    (
        shape(PAIR),
        make_ledger([15, 15], {0: 3}),
        UNTOUCHED,
        "2 whole GPUs",
        "12 of 15 GiB and 100 %, 15 of 15 GiB and 100 %",
    ),
    (
        shape(request(percent=60, count=2)),
        PART_TAKEN,
        MEMORY,
        "60 % of each of 2 GPUs",
        "7 GiB and 50 %, 15 GiB and 100 %",
    ),
    (shape(request(gib=11), gpus=model("A100")), mixed(), MEMORY, "11 GiB on one GPU", "other model, 10 GiB"),
    (shape(request(gib=90)), mixed(), NEVER, "90 GiB on one GPU", "15, 10 GiB (its largest GPU has 80 GiB in all)"),
    (shape(WHOLE), FULL_BESIDE_MIG, UNTOUCHED, "1 whole GPU", "1 of 15 GiB and 100 %, MIG, MIG, MIG"),
    (
        shape(request("a", whole=True), request("b", gib=4)),
        FULL_BESIDE_MIG,
        UNTOUCHED,
        "1 whole GPU (a) + 4 GiB on one GPU (b)",
        "1 of 15 GiB and 100 %" + ", 5 of 5 in MIG GiB and 100 %" * 3,
    ),
    (shape(request(gib=4, count=2)), FULL_PAIR, MEMORY, "4 GiB on each of 2 GPUs", "1, 1, MIG, MIG, MIG GiB"),
    (
        shape(request("a", gib=4, count=2), request("b", gib=4)),
        FULL_PAIR,
        MEMORY,
        "4 GiB on each of 2 GPUs (a) + 4 GiB on one GPU (b)",
        "1, 1, 5 in MIG, 5 in MIG, 5 in MIG GiB",
    ),
    (
        beside(same=WEB),
        near(neighbour(1, namespace="other"), gpus=3),
        NEIGHBOURS,
        "3 GiB on one GPU",
        "without app=web, without app=web, without app=web",
    ),
    (beside(other=WEB), near(neighbour(0), gpus=1), NEIGHBOURS, "3 GiB on one GPU", "with app=web"),
]
# What pods need, and what the GPUs are.
UNMATCHED: list[tuple[RequestShape, NodeLedger, str, str]] = [
    (
        shape(request(), gpus=model("H100", least_mib=40000)),
        mixed(),
        "a GPU with model H100 and at least 40000 MiB in all",
        f"0: other model {T4}, 1: other model (NVIDIA A100-SXM4-80GB, 81920 MiB)",
    ),
    (
        shape(TWO, gpus=model("A100")),
        mixed(),
        "2 GPUs with model A100",
        f"0: other model {T4}, 1: fits (NVIDIA A100-SXM4-80GB, 81920 MiB)",
    ),
    (
        shape(request(gib=10), gpus=ENFORCED),
        make_ledger([15, 15]),
        "a GPU with an enforced limit",
        f"0: limit advisory {T4}, 1: limit advisory {T4}",
    ),
    (
        shape(request(gib=14), gpus=ENFORCED),
        limited(Limit.MIG),
        "a GPU with an enforced limit",
        f"0: only a part of MIG {T4}, 1: only a part of MIG {T4}",
    ),
    (shape(TWO), with_mig(15), f"2 GPUs {SEVERAL}", f"0: fits {T4}, {INSTANCES}"),
    (shape(PAIR), with_mig(15), f"2 GPUs {SEVERAL}", f"0: fits {T4}, {INSTANCES}"),
    (shape(TWO, gpus=ONLY), with_mig(15), f"2 GPUs with MIG {SEVERAL}", f"0: no MIG {T4}, {INSTANCES}"),
    (
        shape(request(), gpus=LARGE),
        of_gpus(make_gpu(0, 80, health=SICK), make_gpu(1, 15)),
        "a GPU with at least 20480 MiB in all",
        f"0: unhealthy (Tesla T4, 81920 MiB), 1: too small {T4}",
    ),
    (
        shape(request(), gpus=LARGE),
        make_ledger([15] * 10),
        "a GPU with at least 20480 MiB in all",
        ", ".join(f"{i}: too small {T4}" for i in range(8)) + " and 2 more",
    ),
]


def for_claims(sick: int, claims: int) -> NodeLedger:
    """A node of so many unhealthy GPUs, and others of mode dra."""
    gpus = make_inventory(*[16] * (sick + claims)).gpus
    broken = tuple(replace(gpu, health=GpuHealth.UNHEALTHY) for gpu in gpus[:sick])
    return NodeLedger.of(replace(make_inventory(), gpus=broken, dra=gpus[sick:]))


REFUSED: list[tuple[RequestShape, NodeLedger, tuple[RefusalReason, bool], str]] = [
    *(
        (asked, ledger, kind, f"needs {needs}; free per GPU on node-a: {free}")
        for asked, ledger, kind, needs, free in LACKING
    ),
    *(
        (asked, ledger, MATCHING, f"needs {needs}; GPUs of node-a: {found}")
        for asked, ledger, needs, found in UNMATCHED
    ),
    *(
        (asked, make_ledger([15, 15]), TOO_FEW, THREE_OF_TWO)
        for asked in (make_shape((1, 3)), make_shape(1, (1, 3)), make_shape((1, 3), 1))
    ),
    (make_shape(1), make_ledger([]), NONE, "node-a has no GPU"),
    (make_shape(1), for_claims(0, 2), NONE, "node-a has no GPU beside 2 that are shared by ResourceClaims"),
    (
        make_shape(1),
        for_claims(1, 1),
        NONE,
        "node-a has no healthy GPU (GPU 0 is unhealthy) beside 1 that is shared by ResourceClaims",
    ),
    (
        make_shape((1, 3)),
        of_health(SICK, WELL, WELL),
        TOO_FEW,
        "needs 3 GPUs; node-a has 2 healthy (GPU 0 is unhealthy)",
    ),
    (
        make_shape(1),
        of_health(CORDONED, SICK, CORDONED),
        NONE,
        "node-a has no healthy GPU (GPU 1 is unhealthy, GPUs 0, 2 are cordoned)",
    ),
    (
        make_shape(1),
        SAME_CAUSES,
        NONE,
        "node-a has no healthy GPU (GPUs 0, 2 are unhealthy: the driver does not answer, GPU 1 is unhealthy: Xid 79:"
        f" GPU has fallen off the bus, GPU 3:1 is unhealthy: {'x' * 120})",
    ),
    (
        make_shape(1),
        of_gpus(*told(*(f"Xid {200 + i}" for i in range(10)))),
        NONE,
        "node-a has no healthy GPU ("
        + ", ".join(f"GPU {i} is unhealthy: Xid {200 + i}" for i in range(8))
        + " and 2 more)",
    ),
    (make_shape((1, 2)), ONE_OF_TWO, TOO_FEW, "needs 2 GPUs; node-a has 1 healthy (GPU 0 is cordoned)"),
]


@pytest.mark.parametrize(("asked", "ledger", "kind", "message"), REFUSED)
def test_a_refusal_says_what_is_needed_and_what_there_is(
    asked: RequestShape, ledger: NodeLedger, kind: tuple[RefusalReason, bool], message: str
) -> None:
    assert refused(place(asked, ledger)) == (kind[0], message, kind[1])


@pytest.mark.parametrize(
    ("asked", "ledger", "never"),
    [
        (make_shape(3, 20), make_ledger([15, 15]), True),
        (make_shape(20, 3), make_ledger([15, 15]), True),
        (make_shape(9, 9), make_ledger([15]), False),  # each alone could be held
        (shape(request(gib=20), gpus=model("T4")), mixed(), True),
        (make_shape((4, 2)), make_ledger([3, 3]), True),
    ],
)
def test_what_the_node_could_never_hold_is_permanent(asked: RequestShape, ledger: NodeLedger, never: bool) -> None:
    assert refused(place(asked, ledger))[2] is never


def test_several_containers_lack_compute_if_one_of_them_does() -> None:
    ledger = fill(make_ledger([15]), shape(request(gib=1, compute=50)))
    for compute, reason in ((60, RefusalReason.INSUFFICIENT_GPU_COMPUTE), (30, RefusalReason.INSUFFICIENT_GPU_MEMORY)):
        other = request("a", gib=1, compute=0 if compute == 60 else 30)
        assert refused(place(shape(other, request("b", gib=1, compute=compute)), ledger))[0] is reason


def test_the_pods_policy_beats_the_clusters_and_every_policy_has_a_row() -> None:
    ledger = make_ledger([15, 15], {0: 4})
    assert gpus(place(make_shape(3), ledger, Policies(SPREAD))) == "1"
    assert gpus(place(make_shape(3, policy=BINPACK), ledger, Policies(SPREAD))) == "0"
    assert set(POLICIES) == set(Policy)


def test_five_fifths_of_a_gpu_fit_although_its_memory_does_not_divide() -> None:
    assert (dict(FULL_OF_FIFTHS.used_mib), dict(FULL_OF_FIFTHS.used_percent)) == ({"GPU-0": 5 * 3021}, {"GPU-0": 100})


def test_a_whole_gpu_has_room_for_no_one_else_even_when_it_grows() -> None:
    grown = replace(fill(make_ledger([15]), shape(WHOLE)), inventory=make_inventory(16))
    assert isinstance(place(make_shape(1), grown), Refused)
    assert dict(grown.used_mib) == {"GPU-0": 16 * 1024}
    assert grown.over_committed() == grown.over_computed() == {}


def test_whole_gpus_of_different_sizes_are_held_whole() -> None:
    ledger = fill(make_ledger([10, 20]), shape(PAIR))
    assert dict(ledger.used_mib) == {"GPU-0": 10 * 1024, "GPU-1": 20 * 1024}


@pytest.mark.parametrize("by", [HandOver.ENVVAR, HandOver.VOLUME_MOUNTS])
def test_a_pod_created_without_a_runtime_class_goes_to_no_node_that_needs_one(by: HandOver) -> None:
    ledger = make_ledger([15])
    others = replace(ledger, inventory=replace(ledger.inventory, hand_over=by))
    nodes = replace(ledger, inventory=replace(ledger.inventory, hand_over=HandOver.CDI))
    wanted = shape(request(gib=10))
    assert gpus(place(wanted, others)) == gpus(place(wanted, nodes)) == "0"
    assert gpus(place(replace(wanted, only_cdi=True), nodes)) == "0"
    assert refused(place(replace(wanted, only_cdi=True), others)) == (
        RefusalReason.OTHER_HAND_OVER,
        f"node-a hands GPUs over by {by.value}, and the pod was created without the RuntimeClass that this needs, while"
        " all nodes did so by CDI; create it again",
        True,
    )


@pytest.mark.parametrize(
    ("mig", "said"),
    [
        (None, "needs a whole GPU (a MIG instance needs gpushare.dev/mig: only); GPUs of node-a:"),
        (MigChoice.NEVER, "needs a whole GPU with no MIG; GPUs of node-a:"),
    ],
)
def test_a_node_with_mig_instances_alone_never_has_a_whole_gpu(mig: MigChoice | None, said: str) -> None:
    for containers in ([WHOLE], [request("a"), request("b", whole=True)]):
        reason, message, permanent = refused(place(shape(*containers, gpus=GpuSelector(mig=mig)), with_mig()))
        assert (reason, permanent) == (RefusalReason.NO_MATCHING_GPU, True)
        assert message.startswith(f"{said} 0:0: MIG (NVIDIA A100")
