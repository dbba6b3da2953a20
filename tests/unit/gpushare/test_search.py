"""The search for GPUs of several containers: what it finds, and how much work it takes."""

from dataclasses import replace

import pytest

from gpushare.identity import ContainerName
from gpushare.model.ledger import NodeLedger, Placed, RefusalReason, Refused
from gpushare.model.request import ContainerKind, ContainerRequest, Policy, RequestShape
from gpushare.placement import search
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from testing.builders import make_gpu, make_inventory, make_ledger, make_shape

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
TOO_LONG, TOO_LITTLE = RefusalReason.SEARCH_TOO_LONG, RefusalReason.INSUFFICIENT_GPU_MEMORY


def pod(*containers: tuple[ContainerKind, int, int, int]) -> RequestShape:
    """Kind, MiB, per cent of compute, and number of GPUs of each."""
    return RequestShape(
        containers=tuple(
            ContainerRequest(
                container=ContainerName(f"c{i}"), kind=kind, memory_mib=mib, compute_percent=compute, gpu_count=count
            )
            for i, (kind, mib, compute, count) in enumerate(containers)
        )
    )


def apps(*pairs: tuple[int, int]) -> RequestShape:
    """MiB on so many GPUs."""
    return pod(*((APP, mib, 0, count) for mib, count in pairs))


def node(*mib: int) -> NodeLedger:
    gpus = tuple(make_gpu(i, mib=each) for i, each in enumerate(mib))
    return NodeLedger.of(replace(make_inventory(15), gpus=gpus))


NEARLY_EQUAL = node(*(80_000 + 7 * i for i in range(16)))


def refused(shape: RequestShape, ledger: NodeLedger) -> tuple[RefusalReason, str]:
    verdict = place(shape, ledger)
    assert isinstance(verdict, Refused), verdict
    return verdict.reason, verdict.message


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
    [apps(*[(22_800, 8)] * 7), apps(*[(22_800 + i, 8) for i in range(7)]), apps(*[(31_700 + i, 1) for i in range(39)])],
    ids=["seven on eight of sixteen", "seven different on eight of sixteen", "many different"],
)
def test_the_work_of_a_search_is_bounded_also_on_many_unequal_gpus(shape: RequestShape, steps: list[int]) -> None:
    """Choices of 8 of 16 GPUs alone are 12,870 for each of seven containers."""
    reason, message = refused(shape, NEARLY_EQUAL)
    assert reason is TOO_LONG
    assert message.endswith("ask for equal amounts, or use fewer GPU containers")
    assert sum(steps) <= search.MAX_STEPS + 2 * 16
    assert min(steps) >= 1


# The first four take longer if any of the sums that end a branch early is left out.
WORK: dict[str, tuple[RequestShape, NodeLedger, int]] = {
    "init containers and a sidecar": (
        pod((INIT, 2, 60, 2), (INIT, 3, 60, 1), (SIDECAR, 6, 0, 2), (APP, 4, 0, 1), (APP, 7, 0, 1)),
        node(10, 9, 9),
        54,
    ),
    "init containers with compute": (
        pod((INIT, 1, 0, 1), (INIT, 5, 60, 2), (INIT, 7, 50, 2), (APP, 8, 30, 1), (APP, 2, 0, 1), (APP, 8, 30, 1)),
        node(12, 11, 12),
        65,
    ),
    "sidecars": (pod((SIDECAR, 8, 30, 2), (SIDECAR, 6, 0, 1), (APP, 2, 50, 2)), node(11, 10, 6), 21),
    "one of each": (pod((INIT, 7, 0, 1), (SIDECAR, 3, 60, 1), (APP, 3, 60, 2), (APP, 7, 0, 2)), node(8, 9, 7), 15),
    # Two equal GPUs, then two that differ, of which one has the sidecar.
    "every look is counted": (pod((SIDECAR, 2048, 0, 1), (APP, 1024, 0, 1)), make_ledger([15, 15]), 7),
    # The third container is placed where the sidecar may be already.
    "more with early containers": (
        pod((SIDECAR, 3072, 0, 1), (APP, 2048, 0, 1), (APP, 1024, 0, 1)),
        make_ledger([15, 15]),
        13,
    ),
    "nothing, by the sum": (apps(*[(23_000, 8)] * 7), NEARLY_EQUAL, 0),
    # Two GPUs are empty enough for the first one, which wants three.
    "nothing, for too few GPUs": (make_shape((6, 3), 1), make_ledger([15] * 8, dict.fromkeys(range(6), 10)), 0),
    # All choices of 8 of 16 empty GPUs are one.
    "equal GPUs": (make_shape((4, 8), (4, 8), (4, 8)), make_ledger([80] * 16), 80),
}


@pytest.mark.parametrize(("shape", "ledger", "expected"), WORK.values(), ids=WORK.keys())
def test_what_cannot_be_any_more_is_not_searched(
    shape: RequestShape, ledger: NodeLedger, expected: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = place(shape, ledger, Policies(Policy.BINPACK))
    assert sum(steps) == expected
    monkeypatch.setattr(search, "MAX_STEPS", expected)
    assert place(shape, ledger, Policies(Policy.BINPACK)) == before
    monkeypatch.setattr(search, "MAX_STEPS", expected - 1)
    assert not expected or place(shape, ledger, Policies(Policy.BINPACK)) != before


def test_many_equal_containers_on_many_equal_gpus_are_no_hard_case() -> None:
    """Thirty-two containers of 4 GiB cannot be put on eight GPUs of 15 GiB; three fit on each."""
    assert refused(make_shape(*[4] * 25), make_ledger([15] * 8))[0] is TOO_LITTLE
    assert isinstance(place(make_shape(*[4] * 24), make_ledger([15] * 8)), Placed)


def test_a_pod_with_thousands_of_containers_is_answered() -> None:
    """More than there are stack frames, and more than a message can name."""
    assert isinstance(place(apps(*[(1, 1)] * 3000), make_ledger([15])), Placed)
    message = refused(apps(*[(1024, 1)] * 3000), make_ledger([15, 15]))[1]
    named = " + ".join(f"1 GiB on one GPU (c{i})" for i in range(8))
    assert message == f"needs {named} + 2992 more containers; free per GPU on node-a: 15, 15 GiB"
    assert " + 2 more containers;" in refused(apps(*[(4096, 1)] * 10), make_ledger([15, 15]))[1]
