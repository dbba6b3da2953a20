"""Parts, whole GPUs, kinds of GPUs and neighbours: where pods go, and what is said when they cannot."""

from dataclasses import replace

import pytest

from gpushare.identity import ContainerName, by_index
from gpushare.model.allocation import Allocation, Placed, RefusalReason, Refused
from gpushare.model.gpu import Gpu, GpuHealth, HandOver, Limit
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerKind, ContainerRequest, Policy, RequestShape
from gpushare.model.selector import Affinity, Choice, GpuSelector, LabelSelector, MigChoice
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from testing.builders import make_allocation, make_gpu, make_grant, make_inventory, make_ledger, make_mig, make_shape

WEB = LabelSelector.parse("app=web")


def request(name: str = "c", *, kind: ContainerKind = ContainerKind.APP, **fields: int) -> ContainerRequest:
    whole = fields.pop("whole", 0)
    if whole:
        return ContainerRequest(
            container=ContainerName(name), kind=kind, whole=True, compute_percent=100, gpu_count=whole
        )
    if percent := fields.pop("percent", 0):
        return ContainerRequest(
            container=ContainerName(name), kind=kind, memory_percent=percent, compute_percent=percent
        )
    gib, compute = fields.pop("gib", 1), fields.pop("compute", 0)
    return ContainerRequest(container=ContainerName(name), kind=kind, memory_mib=gib * 1024, compute_percent=compute)


def shape(*container_requests: ContainerRequest, **fields: object) -> RequestShape:
    return replace(RequestShape(containers=container_requests), **fields)  # type: ignore[arg-type]  # the test's own fields


def gpus(verdict: object) -> list[str]:
    assert isinstance(verdict, Placed), verdict
    return [",".join(grant.gpus) for grant in verdict.grants]


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


def several(count: int, gib: int = 1, name: str = "c") -> ContainerRequest:
    return replace(request(name, gib=gib), gpu_count=count)


def near(*allocations: Allocation, gpus: int = 2) -> NodeLedger:
    return NodeLedger.of(make_inventory(*[15] * gpus), allocations)


def model(name: str, **fields: int) -> GpuSelector:
    return GpuSelector(models=Choice(wanted=(name,)), min_memory_mib=fields.get("least_mib", 0))


INIT, ENFORCED, ONLY = ContainerKind.INIT, GpuSelector(enforced=True), GpuSelector(mig=MigChoice.ONLY)
BUSY = fill(make_ledger([15]), shape(request(gib=3, compute=70)))
USED_UP = fill(make_ledger([15]), shape(request(gib=3, compute=100)))
OF_OTHER_SYSTEM = near(replace(make_allocation("old", make_grant(str(by_index(1)), gib=1)), labels={"app": "web"}))
WHOLE_BESIDE = shape(request("a", whole=1), request("b", gib=3))

PLACED: dict[str, tuple[RequestShape, NodeLedger, list[str]]] = {
    "what others leave of compute": (shape(request(gib=3, compute=30)), BUSY, ["GPU-0"]),
    "who asks for no compute shares it": (shape(request(gib=12)), BUSY, ["GPU-0"]),
    "a part that others leave": (shape(request(percent=30)), BUSY, ["GPU-0"]),
    "a dead end is left again": (
        shape(*(request(f"c{i}", gib=4 - i, compute=compute) for i, compute in enumerate((40, 50, 60, 50)))),
        make_ledger([15, 15]),
        ["GPU-0", "GPU-1", "GPU-0", "GPU-1"],
    ),
    "parts of unlike GPUs are counted by the smallest": (
        shape(*(request(f"c{i}", percent=50) for i in range(4))),
        make_ledger([4, 20]),
        ["GPU-0"] * 2 + ["GPU-1"] * 2,
    ),
    "an init container's compute": (
        shape(request("init", kind=INIT, gib=1, compute=80), request("app", gib=1, compute=60)),
        make_ledger([15]),
        ["GPU-0", "GPU-0"],
    ),
    "whole GPUs that no one touched": (shape(request(whole=2)), make_ledger([15, 15, 15], {1: 1}), ["GPU-0,GPU-2"]),
    "a whole GPU beside a share": (WHOLE_BESIDE, make_ledger([15, 15], {0: 3}), ["GPU-1", "GPU-0"]),
    "an init container may use the whole GPU of a later share": (
        shape(request("init", kind=INIT, whole=1), request("app", gib=3)),
        make_ledger([15]),
        ["GPU-0", "GPU-0"],
    ),
    "a model": (shape(request(gib=10), gpus=model("A100")), mixed(), ["GPU-1"]),
    "an enforced limit": (shape(request(gib=10), gpus=ENFORCED), limited(Limit.CGROUP, 1), ["GPU-1"]),
    "all of a MIG instance": (shape(request(gib=15), gpus=ENFORCED), limited(Limit.MIG), ["GPU-0"]),
    "a whole MIG instance": (shape(request(whole=1), gpus=ENFORCED), limited(Limit.MIG), ["GPU-0"]),
    "a part of a MIG instance": (shape(request(gib=14)), limited(Limit.MIG), ["GPU-0"]),
    "the smallest is an instance": (shape(request()), with_mig(15, 15), ["MIG-2-0"]),
    "several GPUs are no instances": (shape(several(2)), with_mig(15, 15), ["GPU-0,GPU-1"]),
    "several whole GPUs are no instances": (shape(request(whole=2)), with_mig(15, 15), ["GPU-0,GPU-1"]),
    "several GPUs beside an instance": (
        shape(several(2, 2), request("b", gib=5)),
        with_mig(15, 15),
        ["GPU-0,GPU-1", "MIG-2-0"],
    ),
    "the GPU of others": (beside(same=WEB), near(neighbour(1), gpus=3), ["GPU-1"]),
    "the GPU of others, known by number": (beside(same=WEB), OF_OTHER_SYSTEM, ["GPU-1"]),
    "another GPU than others, known by number": (beside(other=WEB), OF_OTHER_SYSTEM, ["GPU-0"]),
    "the first of a group": (beside(same=WEB, first=True), make_ledger([15]), ["GPU-0"]),
    "another GPU than others": (beside(other=WEB), near(neighbour(0), neighbour(1, app="api")), ["GPU-1"]),
}


@pytest.mark.parametrize(("asked", "ledger", "expected"), PLACED.values(), ids=PLACED.keys())
def test_a_pod_goes_to_gpus_of_the_kind_that_it_asks_for(
    asked: RequestShape, ledger: NodeLedger, expected: list[str]
) -> None:
    assert gpus(place(asked, ledger)) == expected


MEMORY, COMPUTE = (RefusalReason.INSUFFICIENT_GPU_MEMORY, False), (RefusalReason.INSUFFICIENT_GPU_COMPUTE, False)
NEVER, UNTOUCHED = (RefusalReason.INSUFFICIENT_GPU_MEMORY, True), (RefusalReason.NO_UNTOUCHED_GPU, False)
MATCHING, NEIGHBOURS = (RefusalReason.NO_MATCHING_GPU, True), (RefusalReason.NO_MATCHING_GPU, False)
T4 = "(Tesla T4, 15360 MiB)"
INSTANCES = ", ".join(f"1:{number}: MIG (NVIDIA A100-SXM4-40GB MIG 1g.5gb, 5120 MiB)" for number in range(3))
SEVERAL = "for one container, which MIG instances cannot be, as a process uses one of them; GPUs of node-a:"
ODD = NodeLedger.of(make_inventory(15), [make_allocation("odd", make_grant(0, gib=0))])
FULL_BESIDE_MIG = fill(with_mig(15), shape(request(gib=14)))
FULL_PAIR = fill(with_mig(15, 15), shape(several(2, 14)))
FREE = "; free per GPU on node-a: "
HAS = "; GPUs of node-a: "
SICK = of_gpus(make_gpu(0, 80, health=GpuHealth.UNHEALTHY), make_gpu(1, 15))

REFUSED: list[tuple[RequestShape, NodeLedger, tuple[RefusalReason, bool], str]] = [
    (
        shape(request(gib=3, compute=40)),
        BUSY,
        COMPUTE,
        f"needs 3 GiB and 40 % of compute on one GPU{FREE}12 GiB and 30 %",
    ),
    (shape(request(percent=40)), BUSY, COMPUTE, f"needs 40 % of one GPU{FREE}12 GiB and 30 %"),
    (
        shape(request(gib=12, compute=1)),
        USED_UP,
        COMPUTE,
        f"needs 12 GiB and 1 % of compute on one GPU{FREE}12 GiB and 0 %",
    ),
    (
        shape(request(gib=13, compute=1)),
        USED_UP,
        MEMORY,
        f"needs 13 GiB and 1 % of compute on one GPU{FREE}12 GiB and 0 %",
    ),
    (shape(request(whole=1)), ODD, UNTOUCHED, f"needs 1 whole GPU{FREE}15 of 15 GiB and 100 %"),
    (WHOLE_BESIDE, ODD, UNTOUCHED, f"needs 1 whole GPU (a) + 3 GiB on one GPU (b){FREE}15 of 15 GiB and 100 %"),
    (
        shape(request(whole=2)),
        make_ledger([15, 15], {0: 3}),
        UNTOUCHED,
        f"needs 2 whole GPUs{FREE}12 of 15 GiB and 100 %, 15 of 15 GiB and 100 %",
    ),
    (
        shape(replace(request(percent=60), gpu_count=2)),
        fill(make_ledger([15, 15]), shape(request(percent=50))),
        MEMORY,
        f"needs 60 % of each of 2 GPUs{FREE}7 GiB and 50 %, 15 GiB and 100 %",
    ),
    (shape(request(gib=11), gpus=model("A100")), mixed(), MEMORY, f"needs 11 GiB on one GPU{FREE}other model, 10 GiB"),
    (
        shape(request(gib=90)),
        mixed(),
        NEVER,
        f"needs 90 GiB on one GPU{FREE}15, 10 GiB (its largest GPU has 80 GiB in all)",
    ),
    (
        shape(request(), gpus=model("H100", least_mib=40000)),
        mixed(),
        MATCHING,
        f"needs a GPU with model H100 and at least 40000 MiB in all{HAS}0: other model {T4}, 1: other model"
        " (NVIDIA A100-SXM4-80GB, 81920 MiB)",
    ),
    (
        shape(several(2), gpus=model("A100")),
        mixed(),
        MATCHING,
        f"needs 2 GPUs with model A100{HAS}0: other model {T4}, 1: fits (NVIDIA A100-SXM4-80GB, 81920 MiB)",
    ),
    (
        shape(request(gib=16), gpus=ENFORCED),
        limited(Limit.CGROUP, 1),
        NEVER,
        f"needs 16 GiB on one GPU{FREE}limit advisory, 15 GiB (its largest GPU has 15 GiB in all)",
    ),
    (
        shape(request(gib=10), gpus=ENFORCED),
        make_ledger([15, 15]),
        MATCHING,
        f"needs a GPU with an enforced limit{HAS}0: limit advisory {T4}, 1: limit advisory {T4}",
    ),
    (
        shape(request(gib=14), gpus=ENFORCED),
        limited(Limit.MIG),
        MATCHING,
        f"needs a GPU with an enforced limit{HAS}0: only a part of MIG {T4}, 1: only a part of MIG {T4}",
    ),
    (
        shape(request(whole=1)),
        FULL_BESIDE_MIG,
        UNTOUCHED,
        f"needs 1 whole GPU{FREE}1 of 15 GiB and 100 %, MIG, MIG, MIG",
    ),
    (
        shape(request("a", whole=1), request("b", gib=4)),
        FULL_BESIDE_MIG,
        UNTOUCHED,
        f"needs 1 whole GPU (a) + 4 GiB on one GPU (b){FREE}1 of 15 GiB and 100 %"
        + ", 5 of 5 in MIG GiB and 100 %" * 3,
    ),
    (shape(several(2)), with_mig(15), MATCHING, f"needs 2 GPUs {SEVERAL} 0: fits {T4}, {INSTANCES}"),
    (shape(request(whole=2)), with_mig(15), MATCHING, f"needs 2 GPUs {SEVERAL} 0: fits {T4}, {INSTANCES}"),
    (
        shape(several(2), gpus=ONLY),
        with_mig(15),
        MATCHING,
        f"needs 2 GPUs with MIG {SEVERAL} 0: no MIG {T4}, {INSTANCES}",
    ),
    (shape(several(2, 4)), FULL_PAIR, MEMORY, f"needs 4 GiB on each of 2 GPUs{FREE}1, 1, MIG, MIG, MIG GiB"),
    (
        shape(several(2, 4, "a"), request("b", gib=4)),
        FULL_PAIR,
        MEMORY,
        f"needs 4 GiB on each of 2 GPUs (a) + 4 GiB on one GPU (b){FREE}1, 1, 5 in MIG, 5 in MIG, 5 in MIG GiB",
    ),
    (
        shape(request(), gpus=GpuSelector(min_memory_mib=20 * 1024)),
        SICK,
        MATCHING,
        f"needs a GPU with at least 20480 MiB in all{HAS}0: unhealthy (Tesla T4, 81920 MiB), 1: too small {T4}",
    ),
    (
        shape(request(whole=2), gpus=GpuSelector(min_memory_mib=16000)),
        make_ledger([20, 15]),
        MATCHING,
        f"needs 2 GPUs with at least 16000 MiB in all{HAS}0: fits (Tesla T4, 20480 MiB), 1: too small {T4}",
    ),
    (
        shape(request(), gpus=GpuSelector(min_memory_mib=20 * 1024)),
        make_ledger([15] * 10),
        MATCHING,
        f"needs a GPU with at least 20480 MiB in all{HAS}"
        + ", ".join(f"{i}: too small {T4}" for i in range(8))
        + " and 2 more",
    ),
    (
        beside(same=WEB),
        near(neighbour(1, namespace="other"), gpus=3),
        NEIGHBOURS,
        f"needs 3 GiB on one GPU{FREE}without app=web, without app=web, without app=web",
    ),
    (beside(other=WEB), near(neighbour(0), gpus=1), NEIGHBOURS, f"needs 3 GiB on one GPU{FREE}with app=web"),
]


@pytest.mark.parametrize(("asked", "ledger", "kind", "message"), REFUSED)
def test_a_refusal_says_what_is_needed_and_what_there_is(
    asked: RequestShape, ledger: NodeLedger, kind: tuple[RefusalReason, bool], message: str
) -> None:
    assert refused(place(asked, ledger)) == (kind[0], message, kind[1])


def test_what_the_kind_could_never_hold_is_permanent() -> None:
    assert refused(place(shape(request(gib=20), gpus=model("T4")), mixed()))[2]
    assert refused(place(shape(several(2, 4)), with_mig(3, 3)))[2], "an empty node could not hold it either"


def test_five_fifths_of_a_gpu_fit_although_its_memory_does_not_divide() -> None:
    full = fill(of_gpus(make_gpu(0, mib=15109)), *[shape(request(percent=20))] * 5)
    assert (dict(full.used_mib), dict(full.used_percent)) == ({"GPU-0": 5 * 3021}, {"GPU-0": 100})
    message = "needs 1 % of one GPU; free per GPU on node-a: 0 GiB and 0 %"
    assert refused(place(shape(request(percent=1)), full)) == (RefusalReason.INSUFFICIENT_GPU_MEMORY, message, False)


def test_a_part_is_granted_as_so_much_of_the_gpu_that_was_chosen() -> None:
    verdict = place(shape(request(percent=50)), make_ledger([10, 20], {0: 6}))
    assert isinstance(verdict, Placed)
    (grant,) = verdict.grants
    assert (grant.gpus, grant.memory_mib, grant.compute_percent) == (("GPU-1",), 10 * 1024, 50)


def test_a_whole_gpu_has_room_for_no_one_else_even_when_it_grows() -> None:
    grown = replace(fill(make_ledger([15]), shape(request(whole=1))), inventory=make_inventory(16))
    assert isinstance(place(make_shape(1), grown), Refused)
    assert dict(grown.used_mib) == {"GPU-0": 16 * 1024}
    assert grown.over_committed() == grown.over_computed() == {}


def test_whole_gpus_of_different_sizes_are_held_whole() -> None:
    ledger = fill(make_ledger([10, 20]), shape(request(whole=2)))
    assert dict(ledger.used_mib) == {"GPU-0": 10 * 1024, "GPU-1": 20 * 1024}


@pytest.mark.parametrize(
    ("container_requests", "needs", "free"),
    [
        ((request(whole=1),), "1 whole GPU", "12 of 14 GiB and 100 %"),
        (
            (request("a", whole=1), request("b", gib=3)),
            "1 whole GPU (a) + 3 GiB on one GPU (b)",
            "12 of 14 GiB and 100 %",
        ),
        (
            (request("a", gib=9), request("b", gib=4, compute=30)),
            "9 GiB on one GPU (a) + 4 GiB and 30 % of compute on one GPU (b)",
            "12 GiB and 100 %",
        ),
        (
            tuple(request(f"c{i}", gib=2) for i in range(9)),
            " + ".join(f"2 GiB on one GPU (c{i})" for i in range(8)) + " + 1 more container",
            "12 GiB",
        ),
    ],
)
def test_a_refusal_counts_in_the_terms_of_the_request(
    container_requests: list[ContainerRequest], needs: str, free: str
) -> None:
    ledger = of_gpus(make_gpu(0, mib=15109)).with_allocation(make_allocation("p", make_grant(0, gib=2)))
    assert refused(place(shape(*container_requests), ledger))[1] == f"needs {needs}; free per GPU on node-a: {free}"


@pytest.mark.parametrize("by", [HandOver.ENVVAR, HandOver.VOLUME_MOUNTS])
def test_a_pod_created_without_a_runtime_class_goes_to_no_node_that_needs_one(by: HandOver) -> None:
    ledger = make_ledger([15])
    others = replace(ledger, inventory=replace(ledger.inventory, hand_over=by))
    nodes = replace(ledger, inventory=replace(ledger.inventory, hand_over=HandOver.CDI))
    wanted = shape(request(gib=10))
    assert gpus(place(wanted, others)) == gpus(place(wanted, nodes)) == ["GPU-0"]
    assert gpus(place(replace(wanted, only_cdi=True), nodes)) == ["GPU-0"]
    assert refused(place(replace(wanted, only_cdi=True), others)) == (
        RefusalReason.OTHER_HAND_OVER,
        f"node-a hands GPUs over by {by.value}, and the pod was created without the RuntimeClass that this needs, while"
        " all nodes did so by CDI; create it again",
        True,
    )


def test_a_whole_gpu_is_a_mig_instance_only_for_pods_that_want_instances() -> None:
    for policy in Policy:
        assert gpus(place(shape(request(whole=1)), with_mig(15), Policies(policy))) == ["GPU-0"]
        beside = shape(request("a", whole=1), request("b"))
        assert gpus(place(beside, with_mig(15), Policies(policy))) == ["GPU-0", "MIG-1-0"]
        assert gpus(place(shape(request(whole=1), gpus=ONLY), with_mig(15), Policies(policy))) == ["MIG-1-0"]


@pytest.mark.parametrize(
    ("mig", "said"),
    [
        (None, "needs a whole GPU (a MIG instance needs gpushare.dev/mig: only); GPUs of node-a:"),
        (MigChoice.NEVER, "needs a whole GPU with no MIG; GPUs of node-a:"),
    ],
)
def test_a_node_with_mig_instances_alone_never_has_a_whole_gpu(mig: MigChoice | None, said: str) -> None:
    for containers in ([request(whole=1)], [request("a"), request("b", whole=1)]):
        reason, message, permanent = refused(place(shape(*containers, gpus=GpuSelector(mig=mig)), with_mig()))
        assert (reason, permanent) == (RefusalReason.NO_MATCHING_GPU, True)
        assert message.startswith(f"{said} 0:0: MIG (NVIDIA A100")


@pytest.mark.parametrize("health", [GpuHealth.CORDONED, GpuHealth.UNHEALTHY])
def test_gpus_that_take_no_new_work_are_named_by_why(health: GpuHealth) -> None:
    inventory = replace(make_inventory(15), gpus=(make_gpu(0, health=health), make_gpu(1, 15)))
    ledger = NodeLedger.of(inventory, [make_allocation("p", make_grant(1, gib=14))])
    word = health.value.lower()
    assert refused(place(make_shape(3), ledger))[1] == (
        f"needs 3 GiB on one GPU; free per GPU on node-a: {word}, 1 GiB"
    )
    assert refused(place(make_shape((1, 2)), ledger))[1] == f"needs 2 GPUs; node-a has 1 healthy (GPU 0 is {word})"


def test_all_reasons_of_gpus_that_take_no_new_work_are_told() -> None:
    states = [GpuHealth.CORDONED, GpuHealth.UNHEALTHY, GpuHealth.CORDONED]
    gpus_of_node = tuple(make_gpu(i, health=health) for i, health in enumerate(states))
    ledger = NodeLedger.of(replace(make_inventory(15), gpus=gpus_of_node))
    assert refused(place(make_shape(1), ledger))[1] == (
        "node-a has no healthy GPU (GPU 1 is unhealthy, GPUs 0, 2 are cordoned)"
    )


def test_the_cause_is_told_once_for_gpus_that_have_the_same() -> None:
    reasons = ["the driver does not answer", "Xid 79: GPU has fallen off the bus", "the driver does not answer"]
    gpus_of_node = (
        *(replace(make_gpu(i, health=GpuHealth.UNHEALTHY), reason=reason) for i, reason in enumerate(reasons)),
        replace(make_mig(3, 1), health=GpuHealth.UNHEALTHY, reason="x" * 1000),
    )
    ledger = NodeLedger.of(replace(make_inventory(15), gpus=gpus_of_node))
    assert refused(place(make_shape(1), ledger))[1] == (
        "node-a has no healthy GPU (GPUs 0, 2 are unhealthy: the driver does not answer, GPU 1 is unhealthy: Xid 79:"
        f" GPU has fallen off the bus, GPU 3:1 is unhealthy: {'x' * 120})"
    )


def test_very_many_causes_are_counted() -> None:
    gpus_of_node = tuple(replace(make_gpu(i, health=GpuHealth.UNHEALTHY), reason=f"Xid {200 + i}") for i in range(10))
    ledger = NodeLedger.of(replace(make_inventory(15), gpus=gpus_of_node))
    assert refused(place(make_shape(1), ledger))[1].endswith("GPU 7 is unhealthy: Xid 207 and 2 more)")


def test_a_compute_refusal_of_several_containers_is_told_as_such() -> None:
    ledger = fill(make_ledger([15]), shape(request(gib=1, compute=50)))
    verdict = place(shape(request("a", gib=1), request("b", gib=1, compute=60)), ledger)
    assert refused(verdict)[0] is RefusalReason.INSUFFICIENT_GPU_COMPUTE
    together = place(shape(request("a", gib=1, compute=30), request("b", gib=1, compute=30)), ledger)
    assert refused(together)[0] is RefusalReason.INSUFFICIENT_GPU_MEMORY
