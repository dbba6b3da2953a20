"""Whether a container may start: every refusal, with the message that its author reads."""

from dataclasses import replace
from typing import Any

import pytest

from deviceplugin import decide
from deviceplugin.decide import Accept, Reason, Refuse, StartRequest
from deviceplugin.resources import MEMORY, PERCENT, WHOLE, Resource
from gpushare.model.allocation import Grant
from gpushare.model.gpu import GpuHealth, NodeInventory
from gpushare.model.request import ContainerKind
from gpushare.units import MemoryUnit
from testing.builders import Json, env_of, make_container, make_grant, make_inventory, make_pod
from testing.deviceplugin.build import NODE, bound_pod, ids_of, percent_container, start_of

AGAIN = "delete the pod and create it again"
ANOTHER = f"{AGAIN}, so that it gets another one"
MAIN = "container main of pod default/pod"
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


def test_the_last_variable_of_a_name_counts() -> None:
    containers = [make_container(env=[{"name": VISIBLE, "value": "all"}, env_of("main")])]
    assert isinstance(decide.decide(start_of(bound_pod(containers=containers))), Accept)


def test_init_containers_and_sidecars_are_looked_up_by_name_like_all_others() -> None:
    init = make_grant(0, container="prepare", kind=ContainerKind.INIT)
    pod = bound_pod(init, make_grant(1), initContainers=[make_container("prepare", 3, env=[env_of("prepare")])])
    assert decide.decide(start_of(pod, "prepare")) == Accept((init,))


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
CHANGED = "it was changed after the pod was bound"
NOT_MUTATED = (
    f"{MAIN} does not take {VISIBLE} from metadata.annotations['devices.gpushare.dev/main']: gpushare-webhook did not"
    f" change the pod, so its author or its image would decide which GPU it sees; {AGAIN} while gpushare-webhook is"
    " running"
)
NEVER = "pod default/pod was never given a GPU by gpushare-controller: it was scheduled by"
NEVER_CHANGED = (
    f"{NEVER} none, and gpushare-webhook did not change it; {AGAIN} without spec.nodeName while gpushare-webhook is"
    " running, which gives it the scheduler gpushare-scheduler"
)
OTHER_DEVICES = (
    "pod default/pod was given its GPUs by another system, but its devices by this plugin, with which it would see"
    f" none; {AGAIN} while gpushare-webhook is running"
)


@pytest.mark.parametrize(
    ("question", "reason", "message"),
    [
        (
            start_of(bound_pod(node="node-b")),
            Reason.OTHER_NODE,
            f"pod default/pod is on node node-b, not on node-a; {AGAIN}",
        ),
        (
            start_of(bound_pod(annotations={ALLOCATION: None}, schedulerName="default-scheduler")),
            Reason.NOT_BOUND,
            f"{NEVER} default-scheduler; gpushare-controller gives it GPUs of node node-a if they have room for it, and"
            " it starts then; if they have not, an Event on the pod says why",
        ),
        (start_of(bound_pod(containers=[make_container("main", 3)], **UNBOUND)), Reason.NOT_BOUND, NEVER_CHANGED),
        (
            start_of(bound_pod(annotations={ALLOCATION: None, IDX: "0"}, schedulerName=None)),
            Reason.NOT_BOUND,
            OTHER_DEVICES,
        ),
        (
            annotated(allocation="[]"),
            Reason.UNREADABLE,
            f"pod default/pod: annotation {ALLOCATION}: expected an object, found a list; {AGAIN}",
        ),
        (
            start_of(bound_pod(make_grant(0, container="a"), make_grant(0, container="b")), "main"),
            Reason.NOT_GRANTED,
            f"{MAIN} was given no GPU (containers that were: a, b), although it holds aliyun.com/gpu-mem; {AGAIN}",
        ),
        (
            annotated(allocation='{"version":1,"node":"node-a","containers":[]}'),
            Reason.NOT_GRANTED,
            f"{MAIN} was given no GPU (containers that were: none), although it holds aliyun.com/gpu-mem; {AGAIN}",
        ),
        (
            start_of(bound_pod(make_grant(0, container="other")), resource=PERCENT),
            Reason.NOT_GRANTED,
            f"{MAIN} was given no GPU (containers that were: other), although it holds nano-gpu/gpu-percent; {AGAIN}",
        ),
        (with_env(), Reason.NOT_MUTATED, NOT_MUTATED),
        (with_env({"name": VISIBLE, "value": "all"}), Reason.NOT_MUTATED, NOT_MUTATED),
        (with_env(env_of("main"), {"name": VISIBLE, "value": "GPU-0"}), Reason.NOT_MUTATED, NOT_MUTATED),
        (with_env(env_of("other")), Reason.NOT_MUTATED, NOT_MUTATED),
        (with_env({"name": VISIBLE, "valueFrom": {"configMapKeyRef": {}}}), Reason.NOT_MUTATED, NOT_MUTATED),
        (with_env(name="other"), Reason.NOT_MUTATED, NOT_MUTATED),
        (
            annotated(devices="GPU-1"),
            Reason.TAMPERED,
            f"{MAIN}: annotation {DEVICES} says 'GPU-1', but its allocation says 'GPU-0': {CHANGED}; {AGAIN}",
        ),
        (
            start_of(bound_pod(make_grant(0, 1), annotations={DEVICES: "GPU-0,GPU-1,GPU-2"}), devices=6),
            Reason.TAMPERED,
            f"{MAIN}: annotation {DEVICES} says 'GPU-0,GPU-1,GPU-2', but its allocation says 'GPU-0,GPU-1': {CHANGED};"
            f" {AGAIN}",
        ),
        (
            annotated(devices=None),
            Reason.TAMPERED,
            f"{MAIN}: annotation {DEVICES} says None, but its allocation says 'GPU-0': {CHANGED}; {AGAIN}",
        ),
        (
            annotated(memory="99999"),
            Reason.TAMPERED,
            f"{MAIN}: annotation memory.gpushare.dev/main says '99999', but its allocation says '3072': {CHANGED};"
            f" {AGAIN}",
        ),
        (share(MEMORY, make_grant(0, 7), 6), Reason.GPU_GONE, f"{MAIN}: GPU GPU-7 is gone from node node-a; {ANOTHER}"),
        (
            start_of(bound_pod(), inventory=sick()),
            Reason.GPU_UNHEALTHY,
            f"{MAIN}: GPU GPU-0 (number 0) of node node-a is unhealthy; {ANOTHER}",
        ),
        (
            share(MEMORY, make_grant(0, gib=16), 16),
            Reason.OVER_COMMITTED,
            "pod default/pod: GPU GPU-0 of node node-a has 15360 MiB, 1024 MiB less than the pod was granted;"
            f" {AGAIN}, so that it is placed where there is room",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_to_do(question: StartRequest, reason: Reason, message: str) -> None:
    assert decide.decide(question) == Refuse(reason, message)


EACH = "3072 MiB on each of GPU-0"
PART_OF = "3072 MiB and 20 % of the compute on each of"
OTHER_KIND = "which is a share of another kind"
CHANGED_UNIT = "if the node's memory unit was changed since,"


@pytest.mark.parametrize(
    ("resource", "grant", "devices", "told"),
    [
        (PERCENT, PART, 30, f"{PART_OF} GPU-0, which counts as 20;"),
        (PERCENT, PARTS, 20, f"{PART_OF} GPU-0, GPU-1, which counts as 40;"),
        (PERCENT, make_grant(0), 20, f"{EACH}, {OTHER_KIND};"),
        (PERCENT, WHOLE_GPU, 100, f"all of GPU-0, {OTHER_KIND};"),
        (WHOLE, WHOLE_GPU, 2, "all of GPU-0, which counts as 1;"),
        (WHOLE, TWO_GPUS, 1, "all of GPU-0, GPU-1, which counts as 2;"),
        (WHOLE, make_grant(0), 1, f"{EACH}, {OTHER_KIND};"),
        (WHOLE, PART, 1, f"{PART_OF} GPU-0, {OTHER_KIND};"),
        (MEMORY, WHOLE_GPU, 15, f"all of GPU-0, {OTHER_KIND};"),
        (MEMORY, make_grant(0), 1, f"{EACH}, which counts as 3 in units of GiB; {CHANGED_UNIT}"),
    ],
)
def test_devices_that_are_no_match_for_the_grant_are_refused(
    resource: Resource, grant: Grant, devices: int, told: str
) -> None:
    message = f"{MAIN} holds {resource.name}: {devices}, but was granted {told} {AGAIN}"
    assert decide.decide(share(resource, grant, devices)) == Refuse(Reason.WRONG_AMOUNT, message)


def test_devices_are_counted_in_the_nodes_unit_as_it_is_now() -> None:
    decision = decide.decide(share(MEMORY, make_grant(0), 3, inventory=make_inventory(15, unit=MemoryUnit(256))))
    assert isinstance(decision, Refuse)
    assert f"which counts as 12 in units of 256MiB; {CHANGED_UNIT}" in decision.message


def test_devices_of_two_resources_in_one_container_never_both_match() -> None:
    accepted = [
        tuple(isinstance(decide.decide(share(one, each, count)), Accept) for one, count in ((MEMORY, 15), (WHOLE, 1)))
        for each in (make_grant(0, gib=15), CORE, WHOLE_GPU)
    ]
    assert accepted == [(True, False), (False, False), (False, True)]


def test_an_unknown_pod_is_described_as_the_kubelet_does() -> None:
    assert decide.unknown_pod("pod default/p with uid 1", NODE, PERCENT) == Refuse(
        Reason.UNKNOWN_POD,
        "the API server knows no pod default/p with uid 1 on node node-a; if it is a static pod, make it a Deployment"
        " or a DaemonSet: static pods cannot ask for nano-gpu/gpu-percent",
    )


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


OTHER_AUTHOR = (
    "stronger than what the plugin that gave it its devices set: its author would decide which GPU it sees;"
    f" {AGAIN}, so that gpushare-webhook changes that"
)
OWN = f"{MAIN} sets {VISIBLE} itself, which is {OTHER_AUTHOR}"
ELSEWHERE = f"{MAIN} takes variables from elsewhere (envFrom), which may be {OTHER_AUTHOR}"


@pytest.mark.parametrize(
    ("question", "reason", "message"),
    [
        (start_of(bound_pod(containers=[make_container("main", 3)]), devices=IDS), Reason.NOT_MUTATED, NOT_MUTATED),
        (aliyun(devices=ids_of(3)), Reason.NOT_BOUND, OTHER_DEVICES),
        (aliyun(devices=frozenset([*IDS][:2]) | ids_of(1)), Reason.NOT_BOUND, OTHER_DEVICES),
        (start_of(make_pod(make_container("main", 3), node=NODE), devices=IDS), Reason.NOT_BOUND, NEVER_CHANGED),
        (
            aliyun(annotations={IDX: "-1"}),
            Reason.UNREADABLE,
            f"pod default/pod: annotation {IDX}: expected the number of a GPU, found '-1'; {AGAIN}",
        ),
        (aliyun(annotations={IDX: "7"}), Reason.GPU_GONE, f"{MAIN}: GPU index:7 is gone from node node-a; {ANOTHER}"),
        (
            nano(30),
            Reason.WRONG_AMOUNT,
            f"{MAIN} holds nano-gpu/gpu-percent: 20, but was granted 30 % of the memory and 30 % of the compute on each"
            f" of GPU-1, which counts as 30; {AGAIN}",
        ),
        (aliyun(container={"env": [{"name": VISIBLE, "value": ""}]}), Reason.NOT_MUTATED, OWN),
        (aliyun(container={"env": [env_of("main")]}), Reason.NOT_MUTATED, OWN),
        (aliyun(container={"envFrom": [{"configMapRef": {"name": "mine"}}]}), Reason.NOT_MUTATED, ELSEWHERE),
        (
            ack('{"0":{"0":3,"1":1}}'),
            Reason.WRONG_AMOUNT,
            f"{MAIN} holds aliyun.com/gpu-mem: 4, but was granted {EACH}, which counts as 3 in units of GiB;"
            f" {CHANGED_UNIT} {AGAIN}",
        ),
        (
            aliyun(others=(large(at=1),)),
            Reason.OVER_COMMITTED,
            "pod default/pod: GPU GPU-1 of node node-a has 15360 MiB, and pods that were bound earlier leave 1024 MiB,"
            f" 2048 MiB too few; {AGAIN}, so that it is placed where there is room",
        ),
    ],
)
def test_what_is_not_in_order_with_a_former_systems_container_is_refused(
    question: StartRequest, reason: Reason, message: str
) -> None:
    assert decide.decide(question) == Refuse(reason, message)


def test_a_container_that_a_former_system_gave_nothing_is_told_so() -> None:
    pod = make_pod(make_container("main"), make_container("other", 3), node=NODE, annotations=ALIYUN)
    decision = decide.decide(start_of(pod, devices=IDS))
    assert isinstance(decision, Refuse)
    assert decision.reason is Reason.NOT_GRANTED
    assert "(containers that were: other)" in decision.message
