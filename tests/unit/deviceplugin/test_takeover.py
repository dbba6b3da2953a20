"""Containers that the plugin of a former system gave their devices to, and that are started again under this one."""

from collections.abc import Sequence
from typing import Any

import pytest

from deviceplugin import decide
from deviceplugin.decision import Accept, Reason, Refuse, Start
from deviceplugin.resources import MEMORY, PERCENT, Resource
from gpushare.identity import ContainerName, GpuUuid
from gpushare.model.gpu import GpuHealth, NodeInventory
from gpushare.resource_config import ResourceConfig
from gpushare.units import GIB
from testing.builders import Json, env_of, make_container, make_gpu, make_grant, make_inventory, make_pod
from testing.deviceplugin.build import NODE, bound_pod, ids_of

UUID = "GPU-3b1f7a9e-3c1f-4c1d-8f57-0d8f4f0e1a2b"
AGAIN = "delete the pod and create it again"
MAIN = "container main of pod default/pod"
ALIYUN = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "3", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "5"}
ACK = {"scheduler.framework.gpushare.allocation": '{"0":{"0":2,"1":2}}'}
NANO = {"nano-gpu/assume": "true", "nano-gpu/container-main": "1"}


def aliyun_ids(count: int) -> frozenset[str]:
    return frozenset(f"{UUID}-_-{number}" for number in range(count))


def nano_ids(count: int) -> frozenset[str]:
    return frozenset(f"nano-0-{number:02}" for number in range(count))


def aliyun_pod(amount: object = 3, annotations: dict[str, str] | None = None, **container: Any) -> Json:
    found = make_container("main", amount, **container)
    return make_pod(found, node=NODE, annotations=ALIYUN if annotations is None else annotations, phase="Running")


def nano_pod(percent: int = 20) -> Json:
    limits = {"nano-gpu/gpu-percent": str(percent)}
    return make_pod(
        make_container(resources={"limits": limits}), node=NODE, annotations=NANO, labels={"nano-gpu/assume": "true"}
    )


def start(
    pod: Json, ids: frozenset[str], resource: Resource = MEMORY, others: Sequence[Json] = (), **fields: Any
) -> Start:
    given: dict[str, Any] = {"inventory": make_inventory(15, 15)} | fields
    return Start(
        pod=pod,
        containers=(ContainerName("main"),),
        resource=resource,
        ids=ids,
        node=NODE,
        resource_config=ResourceConfig(),
        others=others,
        **given,
    )


def gpus_of(question: Start) -> list[GpuUuid]:
    decision = decide.decide(question)
    assert isinstance(decision, Accept), decision
    return [gpu for grant in decision.grants for gpu in grant.gpus]


def test_a_container_of_aliyun_gpushare_starts_again_with_the_gpu_that_it_had() -> None:
    assert gpus_of(start(aliyun_pod(), aliyun_ids(3))) == ["GPU-1"]


def test_a_container_of_ack_may_have_several_gpus() -> None:
    assert gpus_of(start(aliyun_pod(4, ACK), aliyun_ids(4))) == ["GPU-0", "GPU-1"]


def test_a_container_of_nano_gpu_starts_again() -> None:
    assert gpus_of(start(nano_pod(), nano_ids(20), PERCENT)) == ["GPU-1"]


def test_a_pod_that_this_system_bound_while_the_old_plugin_served_is_judged_by_its_own_grant() -> None:
    assert gpus_of(start(bound_pod(make_grant(0)), aliyun_ids(3))) == ["GPU-0"]
    decision = decide.decide(start(bound_pod(make_grant(0), containers=[make_container("main", 3)]), aliyun_ids(3)))
    assert isinstance(decision, Refuse)
    assert decision.reason is Reason.NOT_MUTATED


def test_an_older_pod_of_the_former_system_keeps_its_place_and_a_younger_one_does_not() -> None:
    large = bound_pod(make_grant(1, gib=14), name="large", assumed=9)
    assert gpus_of(start(aliyun_pod(), aliyun_ids(3), others=[large])) == ["GPU-1"]
    earlier = bound_pod(make_grant(1, gib=14), name="large", assumed=1)
    assert decide.decide(start(aliyun_pod(), aliyun_ids(3), others=[earlier])) == Refuse(
        Reason.OVER_COMMITTED,
        "pod default/pod: GPU GPU-1 of node node-a has 15360 MiB, and pods that were bound earlier leave 1024 MiB, 2048"
        f" MiB too few; {AGAIN}, so that it is placed where there is room",
    )


def sick() -> NodeInventory:
    gpus = (make_gpu(0), make_gpu(1, health=GpuHealth.UNHEALTHY))
    return NodeInventory(node=NODE, gpus=gpus, unit=GIB)


VISIBLE = "NVIDIA_VISIBLE_DEVICES"
OWN = (
    f"{MAIN} sets NVIDIA_VISIBLE_DEVICES itself, which is stronger than what the plugin that gave it its devices set:"
    f" its author would decide which GPU it sees; {AGAIN}, so that gpushare-webhook changes that"
)


def test_a_container_with_variables_from_elsewhere_is_refused_because_they_may_change() -> None:
    pod = aliyun_pod()
    pod["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "mine"}}]
    assert decide.decide(start(pod, aliyun_ids(3))) == Refuse(
        Reason.NOT_MUTATED,
        f"{MAIN} takes variables from elsewhere (envFrom), which may be stronger than what the plugin that gave it its"
        f" devices set: its author would decide which GPU it sees; {AGAIN}, so that gpushare-webhook changes that",
    )


@pytest.mark.parametrize(
    ("question", "reason", "message"),
    [
        (
            start(aliyun_pod(), ids_of(3)),
            Reason.NOT_BOUND,
            "pod default/pod was given its GPUs by another system, but its devices by this plugin, with which it would"
            f" see none; {AGAIN} while gpushare-webhook is running",
        ),
        (
            start(aliyun_pod(), aliyun_ids(2) | ids_of(1)),
            Reason.NOT_BOUND,
            "pod default/pod was given its GPUs by another system, but its devices by this plugin, with which it would"
            f" see none; {AGAIN} while gpushare-webhook is running",
        ),
        (
            start(aliyun_pod(annotations={}), aliyun_ids(3)),
            Reason.NOT_BOUND,
            "pod default/pod was never given a GPU by gpushare-controller: it was scheduled by none, and"
            f" gpushare-webhook did not change it; {AGAIN} without spec.nodeName while gpushare-webhook is running,"
            " which gives it the scheduler gpushare-scheduler",
        ),
        (
            start(aliyun_pod(annotations={**ALIYUN, "ALIYUN_COM_GPU_MEM_IDX": "-1"}), aliyun_ids(3)),
            Reason.UNREADABLE,
            f"pod default/pod: annotation ALIYUN_COM_GPU_MEM_IDX: expected the number of a GPU, found '-1'; {AGAIN}",
        ),
        (
            start(aliyun_pod(annotations={**ALIYUN, "ALIYUN_COM_GPU_MEM_IDX": "7"}), aliyun_ids(3)),
            Reason.GPU_GONE,
            f"{MAIN}: GPU index:7 is gone from node node-a; {AGAIN}, so that it gets another one",
        ),
        (
            start(aliyun_pod(), aliyun_ids(3), inventory=sick()),
            Reason.GPU_UNHEALTHY,
            f"{MAIN}: GPU GPU-1 (number 1) of node node-a is unhealthy; {AGAIN}, so that it gets another one",
        ),
        (
            start(aliyun_pod(), aliyun_ids(2)),
            Reason.WRONG_AMOUNT,
            f"{MAIN} holds aliyun.com/gpu-mem: 2, but was granted 3072 MiB on each of GPU-1, which counts as 3 in units"
            f" of GiB; if the node's memory unit was changed since, {AGAIN}",
        ),
        (
            start(nano_pod(30), nano_ids(20), PERCENT),
            Reason.WRONG_AMOUNT,
            f"{MAIN} holds nano-gpu/gpu-percent: 20, but was granted 30 % of the memory and 30 % of the compute on each"
            f" of GPU-1, which counts as 30; {AGAIN}",
        ),
        (start(aliyun_pod(env=[{"name": VISIBLE, "value": "all"}]), aliyun_ids(3)), Reason.NOT_MUTATED, OWN),
        (start(aliyun_pod(env=[{"name": VISIBLE, "value": ""}]), aliyun_ids(3)), Reason.NOT_MUTATED, OWN),
        (start(aliyun_pod(env=[env_of("main")]), aliyun_ids(3)), Reason.NOT_MUTATED, OWN),
        (
            start(
                make_pod(make_container("main"), make_container("other", 3), node=NODE, annotations=ALIYUN),
                aliyun_ids(3),
            ),
            Reason.NOT_GRANTED,
            f"{MAIN} was given no GPU (containers that were: other), although it holds aliyun.com/gpu-mem; {AGAIN}",
        ),
        (
            start(aliyun_pod(4, {"scheduler.framework.gpushare.allocation": '{"0":{"0":3,"1":1}}'}), aliyun_ids(4)),
            Reason.WRONG_AMOUNT,
            f"{MAIN} holds aliyun.com/gpu-mem: 4, but was granted 3072 MiB on each of GPU-0, which counts as 3 in units"
            f" of GiB; if the node's memory unit was changed since, {AGAIN}",
        ),
    ],
)
def test_what_is_not_in_order_is_refused_with_what_to_do(question: Start, reason: Reason, message: str) -> None:
    assert decide.decide(question) == Refuse(reason, message)
