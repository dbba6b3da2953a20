"""What one device of each resource stands for."""

from dataclasses import replace

import pytest

from deviceplugin import resources
from deviceplugin.resources import MEMORY, PERCENT, WHOLE, Resource
from gpushare.model.allocation import Grant
from gpushare.units import GIB
from testing.builders import make_gpu, make_grant

SHARE = make_grant(0, 1, gib=3)
PART = replace(make_grant(0), compute_percent=20)
GPUS = replace(make_grant(0, 1, gib=15), compute_percent=100, whole=True)


def test_memory_is_always_offered() -> None:
    offered = [
        resources.offered(percent=percent, whole_gpus=whole) for percent in (False, True) for whole in (False, True)
    ]
    assert offered == [(MEMORY,), (MEMORY, WHOLE), (MEMORY, PERCENT), (MEMORY, PERCENT, WHOLE)]


def test_names_sockets_and_ids_are_different() -> None:
    everything = resources.offered(percent=True, whole_gpus=True)
    assert [one.name for one in everything] == ["aliyun.com/gpu-mem", "nano-gpu/gpu-percent", "nvidia.com/gpu"]
    assert len({one.socket for one in everything}) == len({one.prefix for one in everything}) == 3


@pytest.mark.parametrize(("resource", "devices"), [(MEMORY, 14), (PERCENT, 100), (WHOLE, 1)])
def test_a_gpu_is_so_many_devices(resource: Resource, devices: int) -> None:
    assert resource.devices_of_gpu(make_gpu(0, mib=15109), GIB) == devices


@pytest.mark.parametrize(
    ("resource", "grant", "devices"),
    [
        (MEMORY, SHARE, 6),
        (MEMORY, replace(SHARE, compute_percent=30), 6),
        (MEMORY, GPUS, None),
        (PERCENT, PART, 20),
        (PERCENT, replace(PART, gpus=SHARE.gpus), 40),
        (PERCENT, SHARE, None),
        (PERCENT, GPUS, None),
        (WHOLE, GPUS, 2),
        (WHOLE, SHARE, None),
        (WHOLE, PART, None),
    ],
)
def test_a_grant_counts_as_so_many_devices_of_its_own_resource(
    resource: Resource, grant: Grant, devices: int | None
) -> None:
    assert resource.devices_of_grant(grant, GIB) == devices


@pytest.mark.parametrize("number", [0, 1, 35, 36, 1295, 1296, 19_999, 46_655])
def test_a_resource_knows_its_own_devices(number: int) -> None:
    for resource in (MEMORY, PERCENT, WHOLE):
        others = {MEMORY, PERCENT, WHOLE} - {resource}
        assert resource.is_own_id(resource.device(number))
        assert not any(other.is_own_id(resource.device(number)) for other in others)


@pytest.mark.parametrize(
    "device",
    [
        "",
        "g",
        "g00",
        "g0000",
        "g00A",
        "g00\u0661",
        "G000",
        "p000",
        "GPU-3b1f7a9e-3c1f-4c1d-8f57-0d8f4f0e1a2b-_-11",
        "nano-0-07",
        "nano",
    ],
)
def test_devices_of_other_plugins_are_told_apart(device: str) -> None:
    assert not MEMORY.is_own_id(device)
