"""Parts, whole GPUs, kinds of GPUs and neighbours: where pods go, and what is said when they cannot."""

from dataclasses import replace

import pytest

from gpushare.identity import ContainerName, by_index
from gpushare.model.allocation import Allocation
from gpushare.model.gpu import Gpu, GpuHealth, HandOver, Limit
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerKind, ContainerRequest, Policy, RequestShape
from gpushare.model.selector import Affinity, Choice, GpuSelector, MigChoice
from gpushare.model.verdict import Placed, RefusalReason, Refused
from gpushare.placement.place import place
from gpushare.placement.policies import Rankings
from gpushare.wire import labels
from testing.builders import make_allocation, make_gpu, make_grant, make_inventory, make_ledger, make_mig, make_shape

WEB = labels.parse("app=web")


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


def test_five_fifths_of_a_gpu_fit_although_its_memory_does_not_divide() -> None:
    inventory = replace(make_inventory(15), gpus=(make_gpu(0, mib=15109),))
    full = fill(NodeLedger.of(inventory), *[shape(request(percent=20))] * 5)
    assert (dict(full.used_mib), dict(full.used_percent)) == ({"GPU-0": 5 * 3021}, {"GPU-0": 100})
    assert refused(place(shape(request(percent=1)), full)) == (
        RefusalReason.INSUFFICIENT_GPU_MEMORY,
        "needs 1 % of one GPU; free per GPU on node-a: 0 GiB and 0 %",
        False,
    )


def test_a_part_is_granted_as_so_much_of_the_gpu_that_was_chosen() -> None:
    verdict = place(shape(request(percent=50)), make_ledger([10, 20], {0: 6}))
    assert isinstance(verdict, Placed)
    (grant,) = verdict.grants
    assert (grant.gpus, grant.memory_mib, grant.compute_percent) == (("GPU-1",), 10 * 1024, 50)


def test_compute_is_counted_like_memory() -> None:
    ledger = fill(make_ledger([15]), shape(request(gib=3, compute=70)))
    assert refused(place(shape(request(gib=3, compute=40)), ledger)) == (
        RefusalReason.INSUFFICIENT_GPU_COMPUTE,
        "needs 3 GiB and 40 % of compute on one GPU; free per GPU on node-a: 12 GiB and 30 %",
        False,
    )
    assert gpus(place(shape(request(gib=3, compute=30)), ledger)) == ["GPU-0"]
    assert gpus(place(shape(request(gib=12)), ledger)) == ["GPU-0"], "who asks for no compute shares it"


def test_a_part_needs_its_compute_as_well_as_its_memory() -> None:
    ledger = fill(make_ledger([15]), shape(request(gib=3, compute=70)))
    assert refused(place(shape(request(percent=40)), ledger)) == (
        RefusalReason.INSUFFICIENT_GPU_COMPUTE,
        "needs 40 % of one GPU; free per GPU on node-a: 12 GiB and 30 %",
        False,
    )
    assert gpus(place(shape(request(percent=30)), ledger)) == ["GPU-0"]


@pytest.mark.parametrize("memory", [True, False])
def test_the_worst_moment_of_a_pod_may_be_in_the_middle_of_its_start(memory: bool) -> None:
    def of(name: str, amount: int, kind: ContainerKind = ContainerKind.APP) -> ContainerRequest:
        return request(name, kind=kind, gib=amount) if memory else request(name, kind=kind, compute=amount)

    sidecar, app = of("side", 50, ContainerKind.SIDECAR), of("app", 10)
    large, small = of("large", 60, ContainerKind.INIT), of("small", 5, ContainerKind.INIT)
    node = make_ledger([100])
    for early in ((sidecar, large), (sidecar, large, small), (sidecar, small, large)):
        assert isinstance(place(shape(*early, app), node), Refused)
    for early in ((large, sidecar), (large, small, sidecar), (sidecar, small)):
        assert isinstance(place(shape(*early, app), node), Placed)


def test_a_dead_end_is_left_again() -> None:
    """The first two would share a GPU, and the last would have none."""
    pod = shape(*(request(f"c{i}", gib=4 - i, compute=compute) for i, compute in enumerate((40, 50, 60, 50))))
    assert gpus(place(pod, make_ledger([15, 15]))) == ["GPU-0", "GPU-1", "GPU-0", "GPU-1"]


def test_parts_of_gpus_of_different_sizes_are_counted_by_the_smallest() -> None:
    """Two halves on each GPU; four halves of the larger one are more than both have."""
    assert gpus(place(shape(*(request(f"c{i}", percent=50) for i in range(4))), make_ledger([4, 20]))) == [
        *["GPU-0"] * 2,
        *["GPU-1"] * 2,
    ]


def test_compute_follows_the_formula_of_init_containers() -> None:
    init = request("init", kind=ContainerKind.INIT, gib=1, compute=80)
    assert gpus(place(shape(init, request("app", gib=1, compute=60)), make_ledger([15]))) == ["GPU-0", "GPU-0"]
    sidecar = request("side", kind=ContainerKind.SIDECAR, gib=1, compute=50)
    assert isinstance(place(shape(sidecar, request("app", gib=1, compute=60)), make_ledger([15])), Refused)


def test_the_least_compute_is_counted_as_well() -> None:
    ledger = fill(make_ledger([15]), shape(request(gib=3, compute=100)))
    assert refused(place(shape(request(gib=12, compute=1)), ledger))[0] is RefusalReason.INSUFFICIENT_GPU_COMPUTE
    assert refused(place(shape(request(gib=13, compute=1)), ledger))[0] is RefusalReason.INSUFFICIENT_GPU_MEMORY


def test_a_gpu_on_which_somebody_holds_nothing_that_is_known_is_not_whole() -> None:
    ledger = NodeLedger.of(make_inventory(15), [make_allocation("odd", make_grant(0, gib=0))])
    assert refused(place(shape(request(whole=1)), ledger))[0] is RefusalReason.NO_UNTOUCHED_GPU
    assert refused(place(shape(request("a", whole=1), request("b")), ledger))[0] is RefusalReason.NO_UNTOUCHED_GPU


def test_whole_gpus_are_those_that_no_one_touched() -> None:
    assert gpus(place(shape(request(whole=2)), make_ledger([15, 15, 15], {1: 1}))) == ["GPU-0,GPU-2"]


def test_a_whole_gpu_has_room_for_no_one_else_even_when_it_grows() -> None:
    ledger = fill(make_ledger([15]), shape(request(whole=1)))
    grown = replace(ledger, inventory=make_inventory(16))
    assert isinstance(place(make_shape(1), grown), Refused)
    assert dict(grown.used_mib) == {"GPU-0": 16 * 1024}
    assert ledger.over_committed() == ledger.over_computed() == {}


def test_whole_gpus_of_different_sizes_are_held_whole() -> None:
    ledger = fill(make_ledger([10, 20]), shape(request(whole=2)))
    assert dict(ledger.used_mib) == {"GPU-0": 10 * 1024, "GPU-1": 20 * 1024}


def test_shares_and_whole_gpus_live_side_by_side() -> None:
    assert gpus(place(shape(request("a", whole=1), request("b", gib=3)), make_ledger([15, 15], {0: 3}))) == [
        "GPU-1",
        "GPU-0",
    ]


def test_an_init_container_may_use_the_whole_gpu_of_a_later_share() -> None:
    init = request("init", kind=ContainerKind.INIT, whole=1)
    assert gpus(place(shape(init, request("app", gib=3)), make_ledger([15]))) == ["GPU-0", "GPU-0"]


def test_a_refusal_of_whole_gpus_shows_what_is_used() -> None:
    assert refused(place(shape(request(whole=2)), make_ledger([15, 15], {0: 3}))) == (
        RefusalReason.NO_UNTOUCHED_GPU,
        "needs 2 whole GPUs; free per GPU on node-a: 12 of 15 GiB and 100 %, 15 of 15 GiB and 100 %",
        False,
    )


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
    node = replace(make_inventory(15), gpus=(make_gpu(0, mib=15109),))
    ledger = NodeLedger.of(node, [make_allocation("p", make_grant(0, gib=2))])
    assert refused(place(shape(*container_requests), ledger))[1] == f"needs {needs}; free per GPU on node-a: {free}"


def test_a_part_of_several_gpus_is_told_as_such() -> None:
    parts = replace(request(percent=60), gpu_count=2)
    assert refused(place(shape(parts), fill(make_ledger([15, 15]), shape(request(percent=50)))))[1] == (
        "needs 60 % of each of 2 GPUs; free per GPU on node-a: 7 GiB and 50 %, 15 GiB and 100 %"
    )


def mixed() -> NodeLedger:
    """A T4 of 15 GiB and an A100 of 80 GiB, of which 70 are held."""
    a100 = Gpu(uuid=make_gpu(1).uuid, index=1, model="NVIDIA A100-SXM4-80GB", memory_mib=80 * 1024)
    ledger = make_ledger([15, 80], {1: 70})
    return replace(ledger, inventory=replace(ledger.inventory, gpus=(make_gpu(0, 15), a100)))


def test_a_kind_of_gpu_is_chosen() -> None:
    a100 = GpuSelector(models=Choice(wanted=("A100",)))
    assert gpus(place(shape(request(gib=10), gpus=a100), mixed())) == ["GPU-1"]
    assert refused(place(shape(request(gib=11), gpus=a100), mixed())) == (
        RefusalReason.INSUFFICIENT_GPU_MEMORY,
        "needs 11 GiB on one GPU; free per GPU on node-a: other model, 10 GiB",
        False,
    )


def test_a_node_without_the_kind_says_what_it_has() -> None:
    h100 = GpuSelector(models=Choice(wanted=("H100",)), min_memory_mib=40000)
    assert refused(place(shape(request(), gpus=h100), mixed())) == (
        RefusalReason.NO_MATCHING_GPU,
        "needs a GPU with model H100 and at least 40000 MiB in all; GPUs of node-a: 0: other model (Tesla T4, 15360"
        " MiB), 1: other model (NVIDIA A100-SXM4-80GB, 81920 MiB)",
        True,
    )
    two = GpuSelector(models=Choice(wanted=("A100",)))
    assert refused(place(replace(make_shape((1, 2)), gpus=two), mixed()))[1].endswith(
        "1: fits (NVIDIA A100-SXM4-80GB, 81920 MiB)"
    )


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


def test_a_pod_that_demands_a_limit_is_placed_where_one_is_enforced() -> None:
    enforced = GpuSelector(enforced=True)
    ledger = make_ledger([15, 15])
    advisory, cgroup = ledger.inventory.gpus
    mixed = replace(ledger, inventory=replace(ledger.inventory, gpus=(advisory, replace(cgroup, limit=Limit.CGROUP))))
    assert gpus(place(shape(request(gib=10), gpus=enforced), mixed)) == ["GPU-1"]
    assert refused(place(shape(request(gib=16), gpus=enforced), mixed))[1].startswith(
        "needs 16 GiB on one GPU; free per GPU on node-a: limit advisory, 15 GiB"
    )
    assert refused(place(shape(request(gib=10), gpus=enforced), ledger)) == (
        RefusalReason.NO_MATCHING_GPU,
        "needs a GPU with an enforced limit; GPUs of node-a: 0: limit advisory (Tesla T4, 15360 MiB), 1: limit advisory"
        " (Tesla T4, 15360 MiB)",
        True,
    )


def test_a_part_of_a_mig_instance_is_no_enforced_limit_and_all_of_one_is() -> None:
    ledger = make_ledger([15, 15])
    instances = tuple(replace(gpu, limit=Limit.MIG) for gpu in ledger.inventory.gpus)
    mig = replace(ledger, inventory=replace(ledger.inventory, gpus=instances))
    enforced = GpuSelector(enforced=True)
    assert gpus(place(shape(request(gib=15), gpus=enforced), mig)) == ["GPU-0"]
    assert gpus(place(shape(request(whole=1), gpus=enforced), mig)) == ["GPU-0"]
    assert gpus(place(shape(request(gib=14)), mig)) == ["GPU-0"]
    assert refused(place(shape(request(gib=14), gpus=enforced), mig)) == (
        RefusalReason.NO_MATCHING_GPU,
        "needs a GPU with an enforced limit; GPUs of node-a: 0: only a part of MIG (Tesla T4, 15360 MiB), 1: only a"
        " part of MIG (Tesla T4, 15360 MiB)",
        True,
    )


def with_mig(*gib: int) -> NodeLedger:
    """GPUs of these sizes, and one that has three MIG instances of 5 GiB."""
    inventory = make_inventory(*gib)
    instances = tuple(make_mig(len(gib), number) for number in range(3))
    return NodeLedger.of(replace(inventory, gpus=(*inventory.gpus, *instances)))


def several(count: int, gib: int = 1, name: str = "c") -> ContainerRequest:
    return replace(request(name, gib=gib), gpu_count=count)


def test_a_container_that_asks_for_several_gpus_gets_no_mig_instance() -> None:
    assert gpus(place(shape(request()), with_mig(15, 15))) == ["MIG-2-0"]
    assert gpus(place(shape(several(2)), with_mig(15, 15))) == ["GPU-0,GPU-1"]
    assert gpus(place(shape(request(whole=2)), with_mig(15, 15))) == ["GPU-0,GPU-1"]
    assert gpus(place(shape(several(2, 2), request("b", gib=5)), with_mig(15, 15))) == ["GPU-0,GPU-1", "MIG-2-0"]


def test_a_whole_gpu_is_a_mig_instance_only_for_pods_that_want_instances() -> None:
    only = GpuSelector(mig=MigChoice.ONLY)
    for policy in Policy:
        assert gpus(place(shape(request(whole=1)), with_mig(15), Rankings(policy))) == ["GPU-0"]
        beside = shape(request("a", whole=1), request("b"))
        assert gpus(place(beside, with_mig(15), Rankings(policy))) == ["GPU-0", "MIG-1-0"]
        assert gpus(place(shape(request(whole=1), gpus=only), with_mig(15), Rankings(policy))) == ["MIG-1-0"]


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


def test_mig_instances_do_not_count_as_room_for_a_whole_gpu() -> None:
    full = fill(with_mig(15), shape(request(gib=14)))
    assert refused(place(shape(request(whole=1)), full)) == (
        RefusalReason.NO_UNTOUCHED_GPU,
        "needs 1 whole GPU; free per GPU on node-a: 1 of 15 GiB and 100 %, MIG, MIG, MIG",
        False,
    )
    assert refused(place(shape(request("a", whole=1), request("b", gib=4)), full))[1] == (
        "needs 1 whole GPU (a) + 4 GiB on one GPU (b); free per GPU on node-a: 1 of 15 GiB and 100 %,"
        " 5 of 5 in MIG GiB and 100 %, 5 of 5 in MIG GiB and 100 %, 5 of 5 in MIG GiB and 100 %"
    )


def test_several_mig_instances_are_refused_with_the_reason() -> None:
    cannot = "for one container, which MIG instances cannot be, as a process uses one of them; GPUs of node-a:"
    instances = ", ".join(f"1:{number}: MIG (NVIDIA A100-SXM4-40GB MIG 1g.5gb, 5120 MiB)" for number in range(3))
    found = f"0: fits (Tesla T4, 15360 MiB), {instances}"
    for wanted in (several(2), request(whole=2)):
        assert refused(place(shape(wanted), with_mig(15))) == (
            RefusalReason.NO_MATCHING_GPU,
            f"needs 2 GPUs {cannot} {found}",
            True,
        )
    only = GpuSelector(mig=MigChoice.ONLY)
    assert refused(place(shape(several(2), gpus=only), with_mig(15)))[1] == (
        f"needs 2 GPUs with MIG {cannot} {found.replace('fits', 'no MIG')}"
    )


def test_mig_instances_do_not_count_as_room_for_several_gpus() -> None:
    full = fill(with_mig(15, 15), shape(several(2, 14)))
    assert refused(place(shape(several(2, 4)), full)) == (
        RefusalReason.INSUFFICIENT_GPU_MEMORY,
        "needs 4 GiB on each of 2 GPUs; free per GPU on node-a: 1, 1, MIG, MIG, MIG GiB",
        False,
    )
    beside = place(shape(several(2, 4, "a"), request("b", gib=4)), full)
    assert refused(beside)[1] == (
        "needs 4 GiB on each of 2 GPUs (a) + 4 GiB on one GPU (b); free per GPU on node-a: 1, 1,"
        " 5 in MIG, 5 in MIG, 5 in MIG GiB"
    )
    assert refused(place(shape(several(2, 4)), with_mig(3, 3)))[2], "an empty node could not hold it either"


def test_a_gpu_of_the_kind_that_is_unhealthy_is_told_as_such() -> None:
    gpus = (make_gpu(0, 80, health=GpuHealth.UNHEALTHY), make_gpu(1, 15))
    ledger = NodeLedger.of(replace(make_inventory(15), gpus=gpus))
    assert refused(place(shape(request(), gpus=GpuSelector(min_memory_mib=20 * 1024)), ledger))[1] == (
        "needs a GPU with at least 20480 MiB in all; GPUs of node-a: 0: unhealthy (Tesla T4, 81920 MiB), 1: too small"
        " (Tesla T4, 15360 MiB)"
    )
    assert refused(place(shape(request(whole=2), gpus=GpuSelector(min_memory_mib=16000)), make_ledger([20, 15])))[
        1
    ] == (
        "needs 2 GPUs with at least 16000 MiB in all; GPUs of node-a: 0: fits (Tesla T4, 20480 MiB), 1: too small"
        " (Tesla T4, 15360 MiB)"
    )


def test_a_node_with_many_gpus_of_another_kind_names_a_few() -> None:
    selector = GpuSelector(min_memory_mib=20 * 1024)
    message = refused(place(shape(request(), gpus=selector), make_ledger([15] * 10)))[1]
    assert message.endswith("7: too small (Tesla T4, 15360 MiB) and 2 more")


def test_what_the_kind_could_never_hold_is_permanent() -> None:
    t4 = GpuSelector(models=Choice(wanted=("T4",)))
    verdict = place(shape(request(gib=20), gpus=t4), mixed())
    assert refused(verdict)[2]
    assert refused(place(shape(request(gib=90)), mixed()))[1].endswith("(its largest GPU has 80 GiB in all)")


def neighbour(gpu: int, app: str = "web", namespace: str = "default") -> Allocation:
    found = make_allocation(f"n{gpu}", make_grant(gpu, gib=1))
    return replace(found, labels={"app": app}, pod=replace(found.pod, namespace=namespace))


def beside(ledger: NodeLedger, **fields: object) -> object:
    affinity = replace(Affinity(namespace="default"), **fields)  # type: ignore[arg-type]  # the test's own fields
    return place(shape(request(gib=3), affinity=affinity), ledger)


def test_the_gpu_of_other_pods_is_shared() -> None:
    ledger = NodeLedger.of(make_inventory(15, 15, 15), [neighbour(1)])
    assert gpus(beside(ledger, same=WEB)) == ["GPU-1"]
    foreign = NodeLedger.of(make_inventory(15, 15, 15), [neighbour(1, namespace="other")])
    assert refused(beside(foreign, same=WEB)) == (
        RefusalReason.NO_MATCHING_GPU,
        "needs 3 GiB on one GPU; free per GPU on node-a: without app=web, without app=web, without app=web",
        False,
    )


def test_pods_of_other_systems_are_neighbours_although_they_know_gpus_by_number() -> None:
    held = replace(make_allocation("old", make_grant(str(by_index(1)), gib=1)), labels={"app": "web"})
    ledger = NodeLedger.of(make_inventory(15, 15), [held])
    assert gpus(beside(ledger, same=WEB)) == ["GPU-1"]
    assert gpus(beside(ledger, other=WEB)) == ["GPU-0"]


def test_the_first_of_a_group_may_start_anywhere() -> None:
    assert gpus(beside(make_ledger([15]), same=WEB, first=True)) == ["GPU-0"]


def test_the_gpus_of_other_pods_are_avoided() -> None:
    ledger = NodeLedger.of(make_inventory(15, 15), [neighbour(0), neighbour(1, app="api")])
    assert gpus(beside(ledger, other=WEB)) == ["GPU-1"]
    both = NodeLedger.of(make_inventory(15), [neighbour(0)])
    assert refused(beside(both, other=WEB))[1] == "needs 3 GiB on one GPU; free per GPU on node-a: with app=web"


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
