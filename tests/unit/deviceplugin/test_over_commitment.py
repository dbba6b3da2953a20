"""If the ledger of a GPU does not add up, the pods that were bound first keep what they have."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import decide
from deviceplugin.decide import Accept, Reason
from gpushare.model.gpu import NodeInventory
from gpushare.model.request import ContainerKind
from testing.builders import Json, make_container, make_grant, make_inventory, make_pod
from testing.deviceplugin.build import NODE, bound_pod, start_of


def held(name: str, gib: int = 3, *, at: int | str | None, gpu: int = 0, phase: str = "Running", **grant: Any) -> Json:
    return bound_pod(make_grant(gpu, gib=gib, **grant), name=name, assumed=at, phase=phase)


def why(pod: Json, *others: Json, gib: int = 10, inventory: NodeInventory | None = None) -> str:
    """What a refusal says; nothing if the pod starts."""
    inventory = inventory or make_inventory(15, 15)
    decision = decide.decide(start_of(pod, devices=gib, inventory=inventory, others=others))
    if isinstance(decision, Accept):
        return ""
    assert decision.reason is Reason.OVER_COMMITTED
    return decision.message


def starts(pod: Json, *others: Json, gib: int = 10, inventory: NodeInventory | None = None) -> bool:
    return not why(pod, *others, gib=gib, inventory=inventory)


def test_the_older_of_two_pods_starts_and_the_younger_does_not() -> None:
    older, younger = held("older", 10, at=1), held("younger", 10, at=2)
    assert starts(older, older, younger)
    assert not starts(younger, older, younger)


def test_of_pods_bound_at_the_same_moment_the_uid_decides() -> None:
    a, b = held("a", 10, at=1), held("b", 10, at=1)
    assert starts(a, b)
    assert not starts(b, a)


def test_a_small_pod_starts_in_what_a_refused_one_cannot_use() -> None:
    first, large, small = held("first", 10, at=1), held("large", 10, at=2), held("small", 4, at=3)
    asked = ((first, 10), (large, 10), (small, 4))
    assert [starts(pod, first, large, small, gib=gib) for pod, gib in asked] == [True, False, True]


def with_factor(extra_gib: int) -> NodeInventory:
    known = make_inventory(15, 15)
    return replace(known, gpus=(replace(known.gpus[0], extra_mib=extra_gib * 1024), known.gpus[1]))


def test_pods_start_in_all_that_may_be_granted_of_an_oversubscribed_gpu_and_in_no_more() -> None:
    pods = [held(name, 10, at=at, extra_mib=7 * 1024) for at, name in enumerate("abc")]
    assert [starts(pod, *pods, inventory=with_factor(7)) for pod in pods] == [True, True, False]
    assert why(pods[2], *pods, inventory=with_factor(7)).startswith(
        "pod default/c: GPU GPU-0 of node node-a, oversubscribed to 22528 MiB, has 15360 MiB, and pods that were bound"
        " earlier leave 2048 MiB, 8192 MiB too few;"
    )


def test_what_was_granted_under_a_larger_factor_starts_again_under_a_smaller_one() -> None:
    pods = [held(name, 10, at=at, extra_mib=7 * 1024) for at, name in enumerate("ab")]
    assert [starts(pod, *pods, inventory=with_factor(extra)) for extra in (7, 3, 0) for pod in pods] == [True] * 6


@pytest.mark.parametrize("first", ["refuser", "other"])
def test_of_a_pod_that_refuses_and_what_is_too_much_beside_it_the_first_one_starts(first: str) -> None:
    """The controller never grants both; two that believe to lead might."""
    refuser = held("refuser", 10, at=1 if first == "refuser" else 2, physical=True)
    other = held("other", 10, at=2 if first == "refuser" else 1, extra_mib=7 * 1024)
    found = {
        name: starts(pod, refuser, other, inventory=with_factor(7))
        for name, pod in (("refuser", refuser), ("other", other))
    }
    assert found == {"refuser": first == "refuser", "other": first == "other"}


ROOM = "delete the pod and create it again, so that it is placed where there is room"


def test_the_message_counts_what_is_missing() -> None:
    mine, other = held("mine", 10, at=9), held("other", 10, at=1)
    assert why(mine, mine, other) == (
        "pod default/mine: GPU GPU-0 of node node-a has 15360 MiB, and pods that were bound earlier leave 5120 MiB,"
        f" 5120 MiB too few; {ROOM}"
    )


def test_an_init_container_counts_by_its_maximum() -> None:
    init = make_grant(0, gib=10, container="prepare", kind=ContainerKind.INIT)
    mine = bound_pod(init, make_grant(0, gib=10), name="mine")
    assert starts(mine, mine)


def elsewhere(annotations: dict[str, str], **limits: Any) -> Json:
    """A pod that another system bound, before all others."""
    written = annotations | {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1"}
    container = make_container(resources={"limits": limits})
    return make_pod(container, name="other", node=NODE, annotations=written, phase="Running")


FAILED = held("evicted", 10, at=1, phase="Failed")
FAILED_BUT_RUNS = FAILED | {"status": {"phase": "Failed", "containerStatuses": [{"state": {"running": {}}}]}}
ALLOCATION, DEVICES = "gpushare.dev/allocation", "devices.gpushare.dev/main"
NEWER = {ALLOCATION: '{"version":3,"minReader":3}', "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1"}
NANO = {"nano-gpu/assume": "true", "nano-gpu/container-main": "0"}
# No one guards the annotations of pods that ask for nothing, and a claim of long ago would beat everybody's.
FORGED = bound_pod(make_grant(0, gib=15), name="forger", assumed=0, containers=[make_container("main")])


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([held("a", 10, at=1, gpu=1), held("b", 10, at=2, gpu=1)], True),
        ([held("a", 10, at=1, phase="Succeeded"), FAILED], True),
        ([FAILED_BUT_RUNS], False),
        ([held("a", 10, at=None), held("b", 10, at="soon"), held("c", 10, at="9" * 5000)], True),
        ([bound_pod(make_grant(0, gib=10), name="newer", annotations=NEWER)], False),
        ([bound_pod(name="broken", annotations={ALLOCATION: "?", DEVICES: None}), make_pod(name="x", node=NODE)], True),
        ([elsewhere({"ALIYUN_COM_GPU_MEM_IDX": "0"}, **{"aliyun.com/gpu-mem": 10})], False),
        ([elsewhere(NANO, **{"nano-gpu/gpu-percent": "90"})], False),
        ([bound_pod(make_grant("GPU-9", 0, gib=10), name="both", assumed=1)], False),
        ([FORGED], True),
    ],
    ids=["other GPUs", "ended", "failed but runs", "no time", "newer", "broken", "index", "nano-gpu", "gone", "forged"],
)
def test_what_other_pods_hold_decides_whether_it_starts(others: list[Json], expected: bool) -> None:
    assert starts(held("mine", 10, at=9), *others) is expected


def test_compute_is_counted_like_memory() -> None:
    older, mine = held("older", at=1, compute_percent=60), held("mine", at=2, compute_percent=60)
    assert why(mine, older, gib=3) == (
        "pod default/mine: pods that were bound earlier leave 40 % of the compute of GPU GPU-0 of node node-a, 20 % too"
        f" few; {ROOM}"
    )
    assert starts(older, mine, gib=3)
    assert starts(mine, held("older", at=1, compute_percent=40), gib=3)


def test_nothing_starts_beside_a_pod_that_has_the_gpu_for_itself() -> None:
    whole = held("owner", 15, at=1, whole=True, compute_percent=100)
    assert "bound earlier leave 0 MiB, 3072 MiB too few" in why(held("mine", at=2), whole, gib=3)


@given(st.lists(st.tuples(st.integers(1, 15), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=8))
def test_what_starts_always_fits(container_requests: list[tuple[int, int, int]]) -> None:
    pods = [held(f"p{i}", gib, at=at, gpu=gpu) for i, (gib, at, gpu) in enumerate(container_requests)]
    started = [
        request for pod, request in zip(pods, container_requests, strict=True) if starts(pod, *pods, gib=request[0])
    ]
    for gpu in (0, 1):
        assert sum(gib for gib, _, on in started if on == gpu) <= 15
    assert started
