"""Whether a container may start: every refusal, with the message that its author reads."""

from dataclasses import replace
from typing import Any

import pytest

from deviceplugin import decide, resources
from deviceplugin.decision import Accept, Decision, Reason, Refuse, Start
from gpushare.identity import ContainerName
from gpushare.model.allocation import Grant
from gpushare.model.gpu import GpuHealth
from gpushare.model.request import ContainerKind
from gpushare.resource_config import ResourceConfig
from gpushare.units import MemoryUnit
from testing.builders import Json, env_of, make_container, make_grant, make_inventory
from testing.deviceplugin.build import NODE, bound_pod, ids_of


def start(pod: Json, *containers: str, devices: int = 3, **fields: Any) -> Start:
    names = tuple(ContainerName(name) for name in containers or ("main",))
    return Start(
        **{
            "pod": pod,
            "containers": names,
            "resource": resources.MEMORY,
            "ids": ids_of(devices),
            "node": NODE,
            "resource_config": ResourceConfig(),
            "inventory": make_inventory(15, 15),
            **fields,
        }
    )


def grants_of(decision: Decision) -> tuple[Grant, ...]:
    assert isinstance(decision, Accept)
    return decision.grants


def test_a_container_with_its_grant_in_order_starts() -> None:
    assert grants_of(decide.decide(start(bound_pod(make_grant(0))))) == (make_grant(0),)


def test_a_grant_on_several_gpus_takes_units_on_each() -> None:
    grant = make_grant(0, 1, gib=4)
    assert grants_of(decide.decide(start(bound_pod(grant), devices=8))) == (grant,)


def test_memory_that_is_no_whole_unit_is_rounded_up() -> None:
    grant = replace(make_grant(0), memory_mib=3000)
    inventory = make_inventory(15, unit=MemoryUnit(256))
    assert grants_of(decide.decide(start(bound_pod(grant), devices=12, inventory=inventory))) == (grant,)


def test_the_last_variable_of_a_name_counts() -> None:
    containers = [make_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, env_of("main")])]
    assert grants_of(decide.decide(start(bound_pod(make_grant(0), containers=containers))))


def test_init_containers_and_sidecars_are_looked_up_by_name_like_all_others() -> None:
    init = make_grant(0, container="prepare", kind=ContainerKind.INIT)
    pod = bound_pod(init, make_grant(1), initContainers=[make_container("prepare", 3, env=[env_of("prepare")])])
    assert grants_of(decide.decide(start(pod, "prepare"))) == (init,)


def test_every_container_that_may_be_the_one_has_to_be_in_order() -> None:
    both = (make_grant(0, container="a"), make_grant(1, container="b"))
    assert grants_of(decide.decide(start(bound_pod(*both), "a", "b"))) == both
    gone = (make_grant(0, container="a"), make_grant("GPU-9", container="b"))
    decision = decide.decide(start(bound_pod(*gone), "a", "b"))
    assert isinstance(decision, Refuse)
    assert decision.reason is Reason.GPU_GONE


def unhealthy() -> Start:
    inventory = make_inventory(15, 15)
    sick = replace(inventory.gpus[0], health=GpuHealth.UNHEALTHY)
    return start(bound_pod(make_grant(0)), inventory=replace(inventory, gpus=(sick, inventory.gpus[1])))


def with_env(*env: Json) -> Start:
    return start(bound_pod(make_grant(0), containers=[make_container(env=list(env))]))


NOT_MUTATED = (
    "container main of pod default/pod does not take NVIDIA_VISIBLE_DEVICES from"
    " metadata.annotations['devices.gpushare.dev/main']: gpushare-webhook did not change the pod, so its author or its"
    " image would decide which GPU it sees; delete the pod and create it again while gpushare-webhook is running"
)
AGAIN = "delete the pod and create it again"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
DEVICES = "devices.gpushare.dev/main"


@pytest.mark.parametrize(
    ("question", "reason", "message"),
    [
        (
            start(bound_pod(node="node-b")),
            Reason.OTHER_NODE,
            f"pod default/pod is on node node-b, not on node-a; {AGAIN}",
        ),
        (
            start(bound_pod(annotations={"gpushare.dev/allocation": None}, schedulerName="default-scheduler")),
            Reason.NOT_BOUND,
            "pod default/pod was never given a GPU by gpushare-controller: it was scheduled by default-scheduler;"
            " gpushare-controller gives it GPUs of node node-a if they have room for it, and it starts then; if they"
            " have not, an Event on the pod says why",
        ),
        (
            start(
                bound_pod(
                    annotations={"gpushare.dev/allocation": None},
                    schedulerName=None,
                    containers=[make_container("main", 3)],
                )
            ),
            Reason.NOT_BOUND,
            "pod default/pod was never given a GPU by gpushare-controller: it was scheduled by none, and"
            " gpushare-webhook did not change it; delete the pod and create it again without spec.nodeName while"
            " gpushare-webhook is running, which gives it the scheduler gpushare-scheduler",
        ),
        (
            start(
                bound_pod(
                    annotations={"gpushare.dev/allocation": None, "ALIYUN_COM_GPU_MEM_IDX": "0"}, schedulerName=None
                )
            ),
            Reason.NOT_BOUND,
            "pod default/pod was given its GPUs by another system, but its devices by this plugin, with which it would"
            f" see none; {AGAIN} while gpushare-webhook is running",
        ),
        (
            start(bound_pod(annotations={"gpushare.dev/allocation": "[]"})),
            Reason.UNREADABLE,
            "pod default/pod: annotation gpushare.dev/allocation: expected an object, found a list; delete the pod"
            " and create it again",
        ),
        (
            start(bound_pod(annotations={"gpushare.dev/allocation": '{"version": 3, "minReader": 3}'})),
            Reason.UNREADABLE,
            "pod default/pod: annotation gpushare.dev/allocation: version 3 (readable from version 3), this program"
            f" reads version 2; upgrade it; {AGAIN}",
        ),
        (
            start(
                bound_pod(annotations={"gpushare.dev/allocation": '{"version":1,"node":"node-b","containers":[]}'}),
            ),
            Reason.UNREADABLE,
            "pod default/pod: annotation gpushare.dev/allocation: made for node node-b, but the pod is on node-a;"
            f" {AGAIN}",
        ),
        (
            start(bound_pod(make_grant(0, container="a"), make_grant(0, container="b")), "main"),
            Reason.NOT_GRANTED,
            "container main of pod default/pod was given no GPU (containers that were: a, b), although it holds"
            f" aliyun.com/gpu-mem; {AGAIN}",
        ),
        (
            start(
                bound_pod(annotations={"gpushare.dev/allocation": '{"version":1,"node":"node-a","containers":[]}'}),
            ),
            Reason.NOT_GRANTED,
            "container main of pod default/pod was given no GPU (containers that were: none), although it holds"
            f" aliyun.com/gpu-mem; {AGAIN}",
        ),
        (with_env(), Reason.NOT_MUTATED, NOT_MUTATED),
        (with_env({"name": VISIBLE, "value": "all"}), Reason.NOT_MUTATED, NOT_MUTATED),
        (with_env(env_of("main"), {"name": VISIBLE, "value": "GPU-0"}), Reason.NOT_MUTATED, NOT_MUTATED),
        (with_env(env_of("other")), Reason.NOT_MUTATED, NOT_MUTATED),
        (
            with_env({"name": VISIBLE, "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}),
            Reason.NOT_MUTATED,
            NOT_MUTATED,
        ),
        (
            start(bound_pod(make_grant(0), containers=[make_container("other")])),
            Reason.NOT_MUTATED,
            NOT_MUTATED,
        ),
        (
            start(bound_pod(annotations={DEVICES: "GPU-1"})),
            Reason.TAMPERED,
            "container main of pod default/pod: annotation devices.gpushare.dev/main says 'GPU-1', but its allocation"
            f" says 'GPU-0': it was changed after the pod was bound; {AGAIN}",
        ),
        (
            start(bound_pod(make_grant(0, 1), annotations={DEVICES: "GPU-0,GPU-1,GPU-2"}), devices=6),
            Reason.TAMPERED,
            "container main of pod default/pod: annotation devices.gpushare.dev/main says 'GPU-0,GPU-1,GPU-2', but its"
            f" allocation says 'GPU-0,GPU-1': it was changed after the pod was bound; {AGAIN}",
        ),
        (
            start(bound_pod(annotations={DEVICES: None})),
            Reason.TAMPERED,
            "container main of pod default/pod: annotation devices.gpushare.dev/main says None, but its allocation"
            f" says 'GPU-0': it was changed after the pod was bound; {AGAIN}",
        ),
        (
            start(bound_pod(annotations={"memory.gpushare.dev/main": "99999"})),
            Reason.TAMPERED,
            "container main of pod default/pod: annotation memory.gpushare.dev/main says '99999', but its allocation"
            f" says '3072': it was changed after the pod was bound; {AGAIN}",
        ),
        (
            start(bound_pod(make_grant("GPU-7"))),
            Reason.GPU_GONE,
            "container main of pod default/pod: GPU GPU-7 is gone from node node-a; delete the pod and create it again,"
            " so that it gets another one",
        ),
        (
            start(bound_pod(make_grant(0, 7)), devices=6),
            Reason.GPU_GONE,
            "container main of pod default/pod: GPU GPU-7 is gone from node node-a; delete the pod and create it again,"
            " so that it gets another one",
        ),
        (
            unhealthy(),
            Reason.GPU_UNHEALTHY,
            "container main of pod default/pod: GPU GPU-0 (number 0) of node node-a is unhealthy; delete the pod and"
            " create it again, so that it gets another one",
        ),
        (
            start(bound_pod(make_grant(0, gib=10)), devices=1),
            Reason.WRONG_AMOUNT,
            "container main of pod default/pod holds aliyun.com/gpu-mem: 1, but was granted 10240 MiB on each of GPU-0,"
            f" which counts as 10 in units of GiB; if the node's memory unit was changed since, {AGAIN}",
        ),
        (
            start(bound_pod(make_grant(0)), inventory=make_inventory(15, unit=MemoryUnit(256))),
            Reason.WRONG_AMOUNT,
            "container main of pod default/pod holds aliyun.com/gpu-mem: 3, but was granted 3072 MiB on each of GPU-0,"
            f" which counts as 12 in units of 256MiB; if the node's memory unit was changed since, {AGAIN}",
        ),
        (
            start(bound_pod(make_grant(0, gib=16)), devices=16),
            Reason.OVER_COMMITTED,
            "pod default/pod: GPU GPU-0 of node node-a has 15360 MiB, 1024 MiB less than the pod was granted;"
            f" {AGAIN}, so that it is placed where there is room",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_to_do(question: Start, reason: Reason, message: str) -> None:
    assert decide.decide(question) == Refuse(reason, message)


def test_an_unknown_pod_is_described_as_the_kubelet_does() -> None:
    assert decide.unknown_pod("pod default/p with uid 1", NODE, resources.PERCENT) == Refuse(
        Reason.UNKNOWN_POD,
        "the API server knows no pod default/p with uid 1 on node node-a; if it is a static pod, make it a Deployment"
        " or a DaemonSet: static pods cannot ask for nano-gpu/gpu-percent",
    )
