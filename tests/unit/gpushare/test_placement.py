import itertools
from dataclasses import replace

import pytest

from gpushare.identity import ContainerName
from gpushare.model.allocation import Placed, RefusalReason, Refused
from gpushare.model.gpu import GpuHealth
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerKind, ContainerRequest, Policy, RequestShape
from gpushare.placement import search
from gpushare.placement.costs import change_of, costs_of
from gpushare.placement.place import place
from gpushare.placement.policies import POLICIES, Policies
from testing.builders import make_gpu, make_inventory, make_ledger, make_shape


def gpus(verdict: object) -> list[str]:
    assert isinstance(verdict, Placed), verdict
    return [",".join(grant.gpus) for grant in verdict.grants]


def refusal(verdict: object) -> tuple[RefusalReason, str, bool]:
    assert isinstance(verdict, Refused), verdict
    return verdict.reason, verdict.message, verdict.permanent


def test_every_policy_has_a_row() -> None:
    assert set(POLICIES) == set(Policy)


def container_requests(*pairs: tuple[int, int]) -> RequestShape:
    """MiB on so many GPUs."""
    return RequestShape(
        containers=tuple(
            ContainerRequest(container=ContainerName(f"c{i}"), memory_mib=mib, gpu_count=count)
            for i, (mib, count) in enumerate(pairs)
        )
    )


SPREAD, BINPACK = Policy.SPREAD, Policy.BINPACK


@pytest.mark.parametrize(
    ("shape", "ledger", "expected"),
    [
        pytest.param(make_shape(3), make_ledger([15] * 3, {0: 4, 1: 9, 2: 13}), "1", id="binpack takes the fullest"),
        pytest.param(make_shape(3, policy=SPREAD), make_ledger([15] * 3, {0: 4, 1: 9}), "2", id="spread the emptiest"),
        pytest.param(make_shape(3), make_ledger([15, 15]), "0", id="equal ones by index"),
        pytest.param(make_shape(3, policy=SPREAD), make_ledger([15, 15]), "0", id="equal ones by index, spread"),
        pytest.param(make_shape(3, 3, policy=SPREAD), make_ledger([15] * 3), "0 1", id="equal ones, two containers"),
        pytest.param(make_shape(5, 3, policy=SPREAD), make_ledger([10, 9]), "0 1", id="by what others leave, spread"),
        pytest.param(make_shape(6, 2, policy=BINPACK), make_ledger([8, 5]), "0 0", id="by what others leave, binpack"),
        pytest.param(make_shape((3, 2)), make_ledger([15] * 3, {1: 2}), "1,0", id="several are different"),
        pytest.param(make_shape(3, 3, 4), make_ledger([6, 4]), "0 0 1", id="a fit that greedy misses"),
        pytest.param(make_shape((4, 2), 1, 6), make_ledger([6, 5, 6]), "1,0 1 2", id="different numbers of GPUs"),
        pytest.param(make_shape(2, 7), make_ledger([9, 8]), "0 1", id="the largest container first"),
        pytest.param(make_shape(7, (2, 2)), make_ledger([9, 9, 12]), "0 0,1", id="the one on most GPUs first"),
    ],
)
def test_a_pod_gets_the_gpus_that_its_policy_likes_best(shape: RequestShape, ledger: NodeLedger, expected: str) -> None:
    assert " ".join(gpus(place(shape, ledger))).replace("GPU-", "") == expected


def test_the_pods_policy_beats_the_clusters() -> None:
    ledger = make_ledger([15, 15], {0: 4})
    assert gpus(place(make_shape(3), ledger, Policies(SPREAD))) == ["GPU-1"]
    assert gpus(place(make_shape(3, policy=BINPACK), ledger, Policies(SPREAD))) == ["GPU-0"]


MEMORY, FREE = RefusalReason.INSUFFICIENT_GPU_MEMORY, "; free per GPU on node-a: "


@pytest.mark.parametrize(
    ("shape", "ledger", "needs", "free"),
    [
        (make_shape(10), make_ledger([15] * 4, {0: 12, 1: 12, 2: 8, 3: 6}), "10 GiB on one GPU", "3, 3, 7, 9 GiB"),
        (
            make_shape(3, (4, 2)),
            make_ledger([4, 6]),
            "3 GiB on one GPU (c0) + 4 GiB on each of 2 GPUs (c1)",
            "4, 6 GiB",
        ),
    ],
)
def test_a_refusal_has_the_numbers(shape: RequestShape, ledger: NodeLedger, needs: str, free: str) -> None:
    assert refusal(place(shape, ledger)) == (MEMORY, f"needs {needs}{FREE}{free}", False)


def test_a_node_that_could_never_hold_the_pod_says_so() -> None:
    message = f"needs 20 GiB on one GPU{FREE}15, 12 GiB (its largest GPU has 15 GiB in all)"
    assert refusal(place(make_shape(20), make_ledger([15, 15], {1: 3}))) == (MEMORY, message, True)


def test_one_container_that_could_never_be_held_is_enough_for_never() -> None:
    assert refusal(place(make_shape(3, 20), make_ledger([15, 15])))[2]
    assert refusal(place(make_shape(20, 3), make_ledger([15, 15])))[2]
    assert not refusal(place(make_shape(9, 9), make_ledger([15])))[2], "each alone could be held"


def test_what_is_asked_is_rounded_up_and_what_is_free_is_rounded_down() -> None:
    node = NodeLedger.of(replace(make_inventory(15), gpus=(make_gpu(0, mib=2900),)))
    text = "needs 3 GiB on one GPU; free per GPU on node-a: 2 GiB (its largest GPU has 2 GiB in all)"
    assert refusal(place(container_requests((3000, 1)), node))[1] == text


def test_a_node_with_too_few_gpus_says_how_many() -> None:
    message = "needs 3 GPUs; node-a has 2"
    for shape in (make_shape((1, 3)), make_shape(1, (1, 3)), make_shape((1, 3), 1)):
        assert refusal(place(shape, make_ledger([15, 15]))) == (RefusalReason.TOO_FEW_GPUS, message, True)


def unhealthy(*indices: int) -> object:
    gpus = tuple(make_gpu(i, health=GpuHealth.UNHEALTHY if i in indices else GpuHealth.HEALTHY) for i in range(3))
    return replace(make_inventory(15), gpus=gpus)


@pytest.mark.parametrize(
    ("bad", "shape", "message"),
    [
        (
            (0,),
            make_shape(16),
            "needs 16 GiB on one GPU; free per GPU on node-a: unhealthy, 15, 15 GiB"
            " (its largest GPU has 15 GiB in all)",
        ),
        ((0,), make_shape((1, 3)), "needs 3 GPUs; node-a has 2 healthy (GPU 0 is unhealthy)"),
        ((0, 2), make_shape((1, 2)), "needs 2 GPUs; node-a has 1 healthy (GPUs 0, 2 are unhealthy)"),
        ((0, 1, 2), make_shape(1), "node-a has no healthy GPU (GPUs 0, 1, 2 are unhealthy)"),
    ],
)
def test_unhealthy_gpus_are_avoided_and_named(bad: tuple[int, ...], shape: RequestShape, message: str) -> None:
    ledger = replace(make_ledger([15]), inventory=unhealthy(*bad))  # type: ignore[arg-type]  # a builder's result
    assert refusal(place(shape, ledger))[1] == message


def test_a_node_without_gpus_says_so() -> None:
    assert refusal(place(make_shape(1), make_ledger([]))) == (RefusalReason.NO_HEALTHY_GPU, "node-a has no GPU", True)


def cost(shape: RequestShape, ledger: NodeLedger, policy: Policy) -> int:
    verdict = place(replace(shape, policy=policy), ledger)
    assert isinstance(verdict, Placed)
    return costs_of([change_of(verdict.grants, ledger)], Policies(policy).of(None))[0][0]


@pytest.mark.parametrize(
    ("policy", "held", "expected"),
    [
        (Policy.BINPACK, 0, 800_000_000),
        (Policy.BINPACK, 12, 0),
        (Policy.SPREAD, 0, -800_000_000),
        (Policy.SPREAD, 12, 0),
    ],
)
def test_binpack_and_spread_rank_nodes_by_the_part_that_stays_free(policy: Policy, held: int, expected: int) -> None:
    assert cost(make_shape(3), make_ledger([15], {0: held} if held else {}), policy) == expected


@pytest.mark.parametrize(("policy", "expected"), [(Policy.BINPACK, 400_000_000), (Policy.SPREAD, -400_000_000)])
def test_a_gpu_on_which_more_is_held_than_it_has_counts_as_a_full_one(policy: Policy, expected: int) -> None:
    assert cost(make_shape(3), make_ledger([15, 15], {0: 40}), policy) == expected


def test_a_gpu_without_memory_can_be_had_whole() -> None:
    node = replace(make_inventory(15), gpus=(make_gpu(0, mib=0),))
    whole = ContainerRequest(container=ContainerName("c"), whole=True, compute_percent=100)
    assert cost(RequestShape(containers=(whole,)), NodeLedger.of(node), Policy.BINPACK) == 0


def test_the_cost_counts_an_init_container_by_maximum() -> None:
    containers = (
        ContainerRequest(container=ContainerName("init"), kind=ContainerKind.INIT, memory_mib=10 * 1024),
        ContainerRequest(container=ContainerName("app"), memory_mib=9 * 1024),
    )
    assert cost(RequestShape(containers=containers), make_ledger([20]), Policy.BINPACK) == 500_000_000


def test_a_pod_made_to_be_hard_is_given_up_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_STEPS", 1)
    verdict = place(make_shape(3, 3, 4), make_ledger([5, 5]))
    assert refusal(verdict)[0] is RefusalReason.SEARCH_TOO_LONG
    assert refusal(verdict)[1].endswith("ask for equal amounts, or use fewer GPU containers")


def test_many_equal_containers_on_many_equal_gpus_are_no_hard_case() -> None:
    """Thirty-two containers of 4 GiB cannot be put on eight GPUs of 15 GiB; three fit on each."""
    assert refusal(place(make_shape(*[4] * 25), make_ledger([15] * 8)))[0] is RefusalReason.INSUFFICIENT_GPU_MEMORY
    assert len(gpus(place(make_shape(*[4] * 24), make_ledger([15] * 8)))) == 24


def nearly_equal(count: int) -> NodeLedger:
    """GPUs of which no two have the same memory."""
    gpus = tuple(make_gpu(i, mib=80_000 + 7 * i) for i in range(count))
    return NodeLedger.of(replace(make_inventory(15), gpus=gpus))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What every bit of a search cost; its length bounds the pieces of work."""
    found: list[int] = []
    count = search._Search._count

    def counting(self: search._Search, cost: int) -> None:
        found.append(cost)
        count(self, cost)

    monkeypatch.setattr(search._Search, "_count", counting)
    return found


@pytest.mark.parametrize(
    "shape",
    [
        container_requests(*[(22_800, 8)] * 7),
        container_requests(*[(22_800 + i, 8) for i in range(7)]),
        container_requests(*[(31_700 + i, 1) for i in range(39)]),
    ],
    ids=["seven on eight of sixteen", "seven different on eight of sixteen", "many different"],
)
def test_the_work_of_a_search_is_bounded_also_on_many_unequal_gpus(shape: RequestShape, steps: list[int]) -> None:
    """Choices of 8 of 16 GPUs alone are 12,870 for each of seven containers."""
    verdict = place(shape, nearly_equal(16))
    assert refusal(verdict)[0] is RefusalReason.SEARCH_TOO_LONG
    assert sum(steps) <= search.MAX_STEPS + 2 * 16
    assert min(steps) >= 1


def test_every_look_at_a_gpu_is_counted(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal GPUs, then two that differ, of which one has the sidecar."""
    containers = (
        ContainerRequest(container=ContainerName("side"), kind=ContainerKind.SIDECAR, memory_mib=2 * 1024),
        ContainerRequest(container=ContainerName("app"), memory_mib=1024),
    )
    pod, node = RequestShape(containers=containers), make_ledger([15, 15])
    place(pod, node)
    assert steps == [2, 2, 2, 1]
    monkeypatch.setattr(search, "MAX_STEPS", 7)
    assert isinstance(place(pod, node), Placed)
    monkeypatch.setattr(search, "MAX_STEPS", 6)
    assert refusal(place(pod, node))[0] is RefusalReason.SEARCH_TOO_LONG


def test_looking_at_a_gpu_costs_more_with_every_early_container_on_it(steps: list[int]) -> None:
    """The third container is placed where the sidecar may be already."""
    containers = (
        ContainerRequest(container=ContainerName("side"), kind=ContainerKind.SIDECAR, memory_mib=3 * 1024),
        ContainerRequest(container=ContainerName("app"), memory_mib=2 * 1024),
        ContainerRequest(container=ContainerName("small"), memory_mib=1024),
    )
    place(RequestShape(containers=containers), make_ledger([15, 15]))
    assert steps == [2, 2, 2, 1, 3, 2, 1]


def test_the_least_need_of_what_is_left_decides_which_gpus_have_room() -> None:
    """Containers on many GPUs come first, however small: the last one is the largest here."""
    node = NodeLedger.of(
        replace(make_inventory(15), gpus=tuple(make_gpu(i, mib=mib) for i, mib in enumerate((11, 4, 4))))
    )
    assert len(gpus(place(container_requests((1, 3), (3, 2), (10, 1)), node))) == 3


INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


@pytest.mark.parametrize(
    ("sizes", "containers", "most"),
    [
        ([10, 9, 9], [(INIT, 2, 60, 2), (INIT, 3, 60, 1), (SIDECAR, 6, 0, 2), (APP, 4, 0, 1), (APP, 7, 0, 1)], 54),
        (
            [12, 11, 12],
            [(INIT, 1, 0, 1), (INIT, 5, 60, 2), (INIT, 7, 50, 2), (APP, 8, 30, 1), (APP, 2, 0, 1), (APP, 8, 30, 1)],
            65,
        ),
        ([11, 10, 6], [(SIDECAR, 8, 30, 2), (SIDECAR, 6, 0, 1), (APP, 2, 50, 2)], 21),
        ([8, 9, 7], [(INIT, 7, 0, 1), (SIDECAR, 3, 60, 1), (APP, 3, 60, 2), (APP, 7, 0, 2)], 15),
    ],
)
def test_what_cannot_be_any_more_is_not_searched(
    sizes: list[int], containers: list[tuple[ContainerKind, int, int, int]], most: int, steps: list[int]
) -> None:
    """Each of these takes longer if any of the sums that end a branch early is left out."""
    shape = RequestShape(
        containers=tuple(
            ContainerRequest(
                container=ContainerName(f"c{i}"), kind=kind, memory_mib=mib, compute_percent=compute, gpu_count=count
            )
            for i, (kind, mib, compute, count) in enumerate(containers)
        )
    )
    node = replace(make_inventory(15), gpus=tuple(make_gpu(i, mib=mib) for i, mib in enumerate(sizes)))
    place(shape, NodeLedger.of(node), Policies(Policy.BINPACK))
    assert sum(steps) <= most


def test_what_cannot_fit_by_the_sum_needs_no_search(steps: list[int]) -> None:
    assert (
        refusal(place(container_requests(*[(23_000, 8)] * 7), nearly_equal(16)))[0]
        is RefusalReason.INSUFFICIENT_GPU_MEMORY
    )
    assert steps == []


def test_what_has_too_few_gpus_for_one_container_needs_no_search(steps: list[int]) -> None:
    """Two GPUs are empty enough for c0, which wants three."""
    ledger = make_ledger([15] * 8, dict.fromkeys(range(6), 10))
    assert refusal(place(make_shape((6, 3), 1), ledger))[0] is RefusalReason.INSUFFICIENT_GPU_MEMORY
    assert steps == []


def test_equal_gpus_cost_nothing(steps: list[int]) -> None:
    """All choices of 8 of 16 empty GPUs are one."""
    assert isinstance(place(make_shape((4, 8), (4, 8), (4, 8)), make_ledger([80] * 16)), Placed)
    assert sum(steps) <= 200


def test_every_choice_of_unequal_gpus_is_made_once() -> None:
    searching = search._Search((), (), Policies(Policy.BINPACK).of(None))
    for sizes, wanted in (((1, 1, 1, 1), 2), ((2, 1, 3), 3), ((3,), 2), ((1, 2), 3), ((1, 1), 3), ((2, 2, 2), 1)):
        ids = iter(range(10))
        groups = [[next(ids) for _ in range(size)] for size in sizes]
        found = [[len(set(taken) & set(group)) for group in groups] for taken in searching._subsets(groups, wanted)]
        every = itertools.product(*(range(size + 1) for size in sizes))
        assert found == sorted((list(counts) for counts in every if sum(counts) == wanted), reverse=True)


def test_a_pod_with_thousands_of_containers_is_answered() -> None:
    """More than there are stack frames, and more than a message can name."""
    assert len(gpus(place(container_requests(*[(1, 1)] * 3000), make_ledger([15])))) == 3000
    message = refusal(place(container_requests(*[(1024, 1)] * 3000), make_ledger([15, 15])))[1]
    named = " + ".join(f"1 GiB on one GPU (c{i})" for i in range(8))
    assert message == f"needs {named} + 2992 more containers; free per GPU on node-a: 15, 15 GiB"
    message = refusal(place(container_requests(*[(4096, 1)] * 10), make_ledger([15, 15])))[1]
    assert message.startswith("needs 4 GiB on one GPU (c0) + ")
    assert " + 2 more containers;" in message
