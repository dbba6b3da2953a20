"""May this container start: every refusal, and the acceptance."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from deviceplugin import decide
from deviceplugin.decide import Accept, Reason, Refuse, StartRequest
from deviceplugin.resources import MEMORY, PERCENT, WHOLE, Resource
from gpushare.model.gpu import GpuHealth, NodeInventory
from gpushare.model.ledger import Grant
from gpushare.units import MemoryUnit
from testing.builders import Json, env_of, make_container, make_grant, make_inventory, make_pod
from testing.deviceplugin.build import NODE, bound_pod, ids_of, percent_container, start_of
from tests.unit.deviceplugin import golden

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
ALLOCATION, DEVICES = "gpushare.dev/allocation", "devices.gpushare.dev/main"
IDX = "ALIYUN_COM_GPU_MEM_IDX"
ACK = "scheduler.framework.gpushare.allocation"

PART = replace(make_grant(0), compute_percent=20)
PARTS = replace(make_grant(0, 1), compute_percent=20)
CORE = replace(make_grant(0, gib=4), compute_percent=30)
WHOLE_GPU = replace(make_grant(0, gib=15), compute_percent=100, whole=True)
TWO_GPUS = replace(WHOLE_GPU, gpus=make_grant(0, 1).gpus)


def share(resource: Resource, grant: Grant, devices: int, **fields: Any) -> StartRequest:
    """A container that holds devices of a resource, in a pod that was bound with this grant."""
    percent = [percent_container(grant.compute_percent)] if resource is PERCENT else None
    return start_of(bound_pod(grant, containers=percent), resource=resource, devices=devices, **fields)


@pytest.mark.parametrize(
    ("resource", "grant", "devices"),
    [
        (MEMORY, make_grant(0), 3),
        (MEMORY, make_grant(0, 1, gib=4), 8),
        (MEMORY, CORE, 4),
        (PERCENT, PART, 20),
        (PERCENT, PARTS, 40),
        (PERCENT, replace(PART, memory_mib=15360, compute_percent=100), 100),
        (WHOLE, WHOLE_GPU, 1),
        (WHOLE, TWO_GPUS, 2),
    ],
)
def test_a_container_with_its_grant_in_order_starts(resource: Resource, grant: Grant, devices: int) -> None:
    assert decide.decide(share(resource, grant, devices)) == Accept((grant,))


def test_memory_that_is_no_whole_unit_is_rounded_up_and_percent_do_not_depend_on_the_unit() -> None:
    grant, inventory = replace(make_grant(0), memory_mib=3000), make_inventory(15, unit=MemoryUnit(256))
    assert decide.decide(share(MEMORY, grant, 12, inventory=inventory)) == Accept((grant,))
    assert decide.decide(share(PERCENT, PART, 20, inventory=inventory)) == Accept((PART,))


def test_every_container_that_may_be_the_one_has_to_be_in_order() -> None:
    both = (make_grant(0, container="a"), make_grant(1, container="b"))
    assert decide.decide(start_of(bound_pod(*both), "a", "b")) == Accept(both)
    gone = (make_grant(0, container="a"), make_grant("GPU-9", container="b"))
    decision = decide.decide(start_of(bound_pod(*gone), "a", "b"))
    assert isinstance(decision, Refuse)
    assert decision.reason is Reason.GPU_GONE


def sick() -> NodeInventory:
    [gpu] = make_inventory(15).gpus
    return replace(make_inventory(), gpus=(replace(gpu, health=GpuHealth.UNHEALTHY),))


def with_env(*env: Json, name: str = "main") -> StartRequest:
    return start_of(bound_pod(containers=[make_container(name, env=list(env))]))


def annotated(**annotations: str | None) -> StartRequest:
    keys = {"allocation": ALLOCATION, "devices": DEVICES, "memory": "memory.gpushare.dev/main"}
    return start_of(bound_pod(annotations={keys[key]: value for key, value in annotations.items()}))


UNBOUND: dict[str, Any] = {"annotations": {ALLOCATION: None}, "schedulerName": None}
REFUSED = [
    start_of(bound_pod(node="node-b")),
    start_of(bound_pod(annotations={ALLOCATION: None}, schedulerName="default-scheduler")),
    start_of(bound_pod(containers=[make_container("main", 3)], **UNBOUND)),
    start_of(bound_pod(annotations={ALLOCATION: None, IDX: "0"}, schedulerName=None)),
    annotated(allocation="[]"),
    start_of(bound_pod(make_grant(0, container="a"), make_grant(0, container="b")), "main"),
    annotated(allocation='{"version":1,"node":"node-a","containers":[]}'),
    start_of(bound_pod(make_grant(0, container="other")), resource=PERCENT),
    with_env(),
    with_env({"name": VISIBLE, "value": "all"}),
    with_env(env_of("main"), {"name": VISIBLE, "value": "GPU-0"}),
    with_env(env_of("other")),
    with_env({"name": VISIBLE, "valueFrom": {"configMapKeyRef": {}}}),
    with_env(name="other"),
    annotated(devices="GPU-1"),
    start_of(bound_pod(make_grant(0, 1), annotations={DEVICES: "GPU-0,GPU-1,GPU-2"}), devices=6),
    annotated(devices=None),
    annotated(memory="99999"),
    share(MEMORY, make_grant(0, 7), 6),
    start_of(bound_pod(), inventory=sick()),
    share(MEMORY, make_grant(0, gib=16), 16),
    share(PERCENT, PART, 30),
    share(PERCENT, PARTS, 20),
    share(PERCENT, make_grant(0), 20),
    share(PERCENT, WHOLE_GPU, 100),
    share(WHOLE, WHOLE_GPU, 2),
    share(WHOLE, TWO_GPUS, 1),
    share(WHOLE, make_grant(0), 1),
    share(WHOLE, PART, 1),
    share(MEMORY, WHOLE_GPU, 15),
    share(MEMORY, make_grant(0), 1),
    share(MEMORY, make_grant(0), 3, inventory=make_inventory(15, unit=MemoryUnit(256))),
]


def told(question: StartRequest) -> str:
    decision = decide.decide(question)
    return f"{decision.reason.value}: {decision.message}" if isinstance(decision, Refuse) else "it starts"


def test_a_refusal_says_what_is_wrong_and_what_to_do() -> None:
    unknown = decide.unknown_pod("pod default/p with uid 1", NODE, PERCENT)
    golden.compare("refused", [*map(told, REFUSED), f"{unknown.reason.value}: {unknown.message}"])


# Containers that the plugin of a former system gave their devices to, and that are started again under this one.

ALIYUN = {IDX: "1", "ALIYUN_COM_GPU_MEM_POD": "3", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "5"}
NANO = {"nano-gpu/assume": "true", "nano-gpu/container-main": "1"}
IDS = frozenset(f"GPU-3b1f7a9e-3c1f-4c1d-8f57-0d8f4f0e1a2b-_-{number}" for number in range(3))


def aliyun(
    *, devices: frozenset[str] = IDS, container: Json | None = None, others: tuple[Json, ...] = (), **more: Any
) -> StartRequest:
    pod = make_pod(make_container("main", 3, **container or {}), node=NODE, annotations=ALIYUN, phase="Running")
    pod["metadata"]["annotations"] |= more.pop("annotations", {})
    return start_of(pod, devices=devices, others=others, **more)


def ack(allocation: str) -> StartRequest:
    pod = make_pod(make_container("main", 4), node=NODE, annotations={ACK: allocation}, phase="Running")
    return start_of(pod, devices=IDS | {"GPU-3b1f7a9e-_-3"})


def nano(percent: int = 20) -> StartRequest:
    pod = make_pod(make_container(resources={"limits": {"nano-gpu/gpu-percent": str(percent)}}), node=NODE)
    pod["metadata"] |= {"annotations": NANO, "labels": {"nano-gpu/assume": "true"}}
    return start_of(pod, devices=frozenset(f"nano-0-{number:02}" for number in range(20)), resource=PERCENT)


def large(*, at: int) -> Json:
    return bound_pod(make_grant(1, gib=14), name="large", assumed=at)


@pytest.mark.parametrize(
    ("question", "gpus"),
    [
        (aliyun(), ["GPU-1"]),
        (ack('{"0":{"0":2,"1":2}}'), ["GPU-0", "GPU-1"]),
        (nano(), ["GPU-1"]),
        (start_of(bound_pod(), devices=IDS), ["GPU-0"]),  # bound by this system while the old plugin served
        (aliyun(others=(large(at=9),)), ["GPU-1"]),
    ],
)
def test_a_container_of_a_former_system_starts_again_with_the_gpus_that_it_had(
    question: StartRequest, gpus: list[str]
) -> None:
    decision = decide.decide(question)
    assert isinstance(decision, Accept), decision
    assert [gpu for grant in decision.grants for gpu in grant.gpus] == gpus


REFUSED_OF_FORMER = [
    start_of(bound_pod(containers=[make_container("main", 3)]), devices=IDS),
    aliyun(devices=ids_of(3)),
    aliyun(devices=frozenset([*IDS][:2]) | ids_of(1)),
    start_of(make_pod(make_container("main", 3), node=NODE), devices=IDS),
    aliyun(annotations={IDX: "-1"}),
    aliyun(annotations={IDX: "7"}),
    nano(30),
    aliyun(container={"env": [{"name": VISIBLE, "value": ""}]}),
    aliyun(container={"env": [env_of("main")]}),
    aliyun(container={"envFrom": [{"configMapRef": {"name": "mine"}}]}),
    ack('{"0":{"0":3,"1":1}}'),
    aliyun(others=(large(at=1),)),
    start_of(make_pod(make_container("main"), make_container("other", 3), node=NODE, annotations=ALIYUN), devices=IDS),
]


def test_what_is_not_in_order_with_a_former_systems_container_is_refused() -> None:
    golden.compare("refused_of_former", map(told, REFUSED_OF_FORMER))


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
    a, b = held("a", 10, at=1), held("b", 10, at=1)  # at the same moment the UID decides
    assert starts(a, b)
    assert not starts(b, a)


def test_a_small_pod_starts_in_what_a_refused_one_cannot_use() -> None:
    first, large, small = held("first", 10, at=1), held("large", 10, at=2), held("small", 4, at=3)
    asked = ((first, 10), (large, 10), (small, 4))
    assert [starts(pod, first, large, small, gib=gib) for pod, gib in asked] == [True, False, True]


def with_factor(extra_gib: int) -> NodeInventory:
    known = make_inventory(15, 15)
    return replace(known, gpus=(replace(known.gpus[0], extra_mib=extra_gib * 1024), known.gpus[1]))


OVERSUBSCRIBED = [held(name, 10, at=at, extra_mib=7 * 1024) for at, name in enumerate("abc")]


def test_pods_start_in_all_that_may_be_granted_of_an_oversubscribed_gpu_also_under_a_smaller_factor_later() -> None:
    assert [starts(pod, *OVERSUBSCRIBED, inventory=with_factor(7)) for pod in OVERSUBSCRIBED] == [True, True, False]
    two = OVERSUBSCRIBED[:2]
    assert [starts(pod, *two, inventory=with_factor(extra)) for extra in (3, 0) for pod in two] == [True] * 4


def test_of_a_pod_that_refuses_and_what_is_too_much_beside_it_the_first_one_starts() -> None:
    """The controller never grants both; two that believe to lead might."""
    for at in (1, 3):
        both = held("refuser", 10, at=2, physical=True), held("other", 10, at=at, extra_mib=7 * 1024)
        assert [starts(pod, *both, inventory=with_factor(7)) for pod in both] == [at == 3, at == 1]


def elsewhere(annotations: dict[str, str], **limits: Any) -> Json:
    """A pod that another system bound, before all others."""
    written = annotations | {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1"}
    container = make_container(resources={"limits": limits})
    return make_pod(container, name="other", node=NODE, annotations=written, phase="Running")


FAILED = held("evicted", 10, at=1, phase="Failed")
FAILED_BUT_RUNS = FAILED | {"status": {"phase": "Failed", "containerStatuses": [{"state": {"running": {}}}]}}
NEWER = {ALLOCATION: '{"version":3,"minReader":3}', "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1"}
NANO_0 = {"nano-gpu/assume": "true", "nano-gpu/container-main": "0"}
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
        ([elsewhere(NANO_0, **{"nano-gpu/gpu-percent": "90"})], False),
        ([bound_pod(make_grant("GPU-9", 0, gib=10), name="both", assumed=1)], False),
        ([FORGED], True),
    ],
    ids=["other GPUs", "ended", "failed but runs", "no time", "newer", "broken", "index", "nano-gpu", "gone", "forged"],
)
def test_what_other_pods_hold_decides_whether_it_starts(others: list[Json], expected: bool) -> None:
    assert starts(held("mine", 10, at=9), *others) is expected


def test_a_refusal_counts_what_is_missing() -> None:
    whole = held("owner", 15, at=1, whole=True, compute_percent=100)
    half, most = held("older", at=1, compute_percent=60), held("mine", at=2, compute_percent=60)
    found = [
        why(held("mine", 10, at=9), held("other", 10, at=1)),
        why(OVERSUBSCRIBED[2], *OVERSUBSCRIBED, inventory=with_factor(7)),
        why(most, half, gib=3),
        why(held("mine", at=2), whole, gib=3),
    ]
    golden.compare("missing", found)


@given(st.lists(st.tuples(st.integers(1, 15), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=8))
def test_what_starts_always_fits(container_requests: list[tuple[int, int, int]]) -> None:
    pods = [held(f"p{i}", gib, at=at, gpu=gpu) for i, (gib, at, gpu) in enumerate(container_requests)]
    started = [
        request for pod, request in zip(pods, container_requests, strict=True) if starts(pod, *pods, gib=request[0])
    ]
    for gpu in (0, 1):
        assert sum(gib for gib, _, on in started if on == gpu) <= 15
    assert started
