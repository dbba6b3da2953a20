"""Percent and whole GPUs: who may start with devices of which resource."""

from dataclasses import replace

import pytest

from deviceplugin import decide
from deviceplugin.decision import Accept, Decision, Reason, Refuse, Start
from deviceplugin.resources import MEMORY, PERCENT, WHOLE, Resource
from gpushare.identity import ContainerName
from gpushare.model.allocation import Grant
from gpushare.model.gpu import GpuHealth
from gpushare.resource_config import ResourceConfig
from gpushare.units import MemoryUnit
from testing.builders import Json, make_grant, make_inventory
from testing.deviceplugin.build import NODE, bound_pod, ids_of, percent_container

PART = replace(make_grant(0), compute_percent=20)
PARTS = replace(make_grant(0, 1), compute_percent=20)
CORE = replace(make_grant(0, gib=4), compute_percent=30)
WHOLE_GPU = replace(make_grant(0, gib=15), compute_percent=100, whole=True)
TWO_GPUS = replace(WHOLE_GPU, gpus=make_grant(0, 1).gpus)


def pod_of(grant: Grant, resource: Resource) -> Json:
    if resource is PERCENT:
        return bound_pod(grant, containers=[percent_container(grant.compute_percent)])
    return bound_pod(grant)


def start(resource: Resource, grant: Grant, devices: int, inventory_unit: int = 1024) -> Start:
    return Start(
        pod=pod_of(grant, resource),
        containers=(ContainerName("main"),),
        resource=resource,
        ids=ids_of(devices, resource),
        node=NODE,
        inventory=make_inventory(15, 15, unit=MemoryUnit(inventory_unit)),
        resource_config=ResourceConfig(whole_gpus=True),
    )


def decided(resource: Resource, grant: Grant, devices: int) -> Decision:
    return decide.decide(start(resource, grant, devices))


@pytest.mark.parametrize(
    ("resource", "grant", "devices"),
    [
        (MEMORY, make_grant(0), 3),
        (MEMORY, CORE, 4),
        (PERCENT, PART, 20),
        (PERCENT, PARTS, 40),
        (PERCENT, replace(PART, memory_mib=15360, compute_percent=100), 100),
        (WHOLE, WHOLE_GPU, 1),
        (WHOLE, TWO_GPUS, 2),
    ],
)
def test_a_container_with_its_share_starts(resource: Resource, grant: Grant, devices: int) -> None:
    assert decided(resource, grant, devices) == Accept((grant,))


AGAIN = "delete the pod and create it again"
MAIN = "container main of pod default/pod"


@pytest.mark.parametrize(
    ("resource", "grant", "devices", "message"),
    [
        (
            PERCENT,
            PART,
            30,
            f"{MAIN} holds nano-gpu/gpu-percent: 30, but was granted 3072 MiB and 20 % of the compute on each of"
            f" GPU-0, which counts as 20; {AGAIN}",
        ),
        (
            PERCENT,
            PARTS,
            20,
            f"{MAIN} holds nano-gpu/gpu-percent: 20, but was granted 3072 MiB and 20 % of the compute on each of"
            f" GPU-0, GPU-1, which counts as 40; {AGAIN}",
        ),
        (
            PERCENT,
            make_grant(0),
            20,
            f"{MAIN} holds nano-gpu/gpu-percent: 20, but was granted 3072 MiB on each of GPU-0, which is a share of"
            f" another kind; {AGAIN}",
        ),
        (
            PERCENT,
            WHOLE_GPU,
            100,
            f"{MAIN} holds nano-gpu/gpu-percent: 100, but was granted all of GPU-0, which is a share of another kind;"
            f" {AGAIN}",
        ),
        (
            WHOLE,
            WHOLE_GPU,
            2,
            f"{MAIN} holds nvidia.com/gpu: 2, but was granted all of GPU-0, which counts as 1; {AGAIN}",
        ),
        (
            WHOLE,
            TWO_GPUS,
            1,
            f"{MAIN} holds nvidia.com/gpu: 1, but was granted all of GPU-0, GPU-1, which counts as 2; {AGAIN}",
        ),
        (
            WHOLE,
            make_grant(0),
            1,
            f"{MAIN} holds nvidia.com/gpu: 1, but was granted 3072 MiB on each of GPU-0, which is a share of another"
            f" kind; {AGAIN}",
        ),
        (
            WHOLE,
            PART,
            1,
            f"{MAIN} holds nvidia.com/gpu: 1, but was granted 3072 MiB and 20 % of the compute on each of GPU-0, which"
            f" is a share of another kind; {AGAIN}",
        ),
        (
            MEMORY,
            WHOLE_GPU,
            15,
            f"{MAIN} holds aliyun.com/gpu-mem: 15, but was granted all of GPU-0, which is a share of another kind;"
            f" {AGAIN}",
        ),
        (
            MEMORY,
            CORE,
            3,
            f"{MAIN} holds aliyun.com/gpu-mem: 3, but was granted 4096 MiB and 30 % of the compute on each of GPU-0,"
            f" which counts as 4 in units of GiB; if the node's memory unit was changed since, {AGAIN}",
        ),
    ],
)
def test_devices_that_are_no_match_for_the_grant_are_refused(
    resource: Resource, grant: Grant, devices: int, message: str
) -> None:
    assert decided(resource, grant, devices) == Refuse(Reason.WRONG_AMOUNT, message)


@pytest.mark.parametrize("resource", [PERCENT, WHOLE], ids=lambda resource: resource.prefix)
def test_a_container_that_was_granted_nothing_is_told_which_resource_it_holds(resource: Resource) -> None:
    pod = bound_pod(make_grant(0, container="other"))
    question = replace(start(resource, make_grant(0), 1), pod=pod)
    assert decide.decide(question) == Refuse(
        Reason.NOT_GRANTED,
        f"{MAIN} was given no GPU (containers that were: other), although it holds {resource.name}; {AGAIN}",
    )


@pytest.mark.parametrize(("resource", "grant", "devices"), [(PERCENT, PART, 20), (WHOLE, WHOLE_GPU, 1)])
def test_an_unhealthy_gpu_is_refused_for_every_resource(resource: Resource, grant: Grant, devices: int) -> None:
    question = start(resource, grant, devices)
    sick = replace(question.inventory.gpus[0], health=GpuHealth.UNHEALTHY)
    gpus = (sick, question.inventory.gpus[1])
    assert decide.decide(replace(question, inventory=replace(question.inventory, gpus=gpus))) == Refuse(
        Reason.GPU_UNHEALTHY,
        f"{MAIN}: GPU GPU-0 (number 0) of node node-a is unhealthy; {AGAIN}, so that it gets another one",
    )


def test_percent_does_not_depend_on_the_nodes_memory_unit() -> None:
    assert isinstance(decide.decide(start(PERCENT, PART, 20, inventory_unit=256)), Accept)


def test_devices_of_two_resources_in_one_container_never_both_match() -> None:
    grants = [make_grant(0), CORE, WHOLE_GPU, TWO_GPUS]
    for grant in grants:
        memory = decided(MEMORY, grant, 15)
        whole = decided(WHOLE, grant, 1)
        assert not (isinstance(memory, Accept) and isinstance(whole, Accept))
