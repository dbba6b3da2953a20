"""Pods as the webhook and the controller leave them, and what else these tests need."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deviceplugin import resources
from deviceplugin.causes import Cause, Code
from deviceplugin.decide import StartRequest
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.handover.devices import DeviceHandOver
from deviceplugin.handover.spec_files import SpecFiles, SpecReader
from deviceplugin.resources import Resource
from deviceplugin.source import RawGpu
from gpushare import names, units
from gpushare.identity import ContainerName, GpuUuid, NodeName
from gpushare.model.gpu import HandOver
from gpushare.model.ledger import Allocation, Grant
from gpushare.units import ResourceConfig
from gpushare.wire import allocations
from testing.builders import Json, env_of, make_container, make_grant, make_inventory, make_pod, make_ref

NODE = NodeName("node-a")


def ids_of(count: int, resource: Resource = resources.MEMORY, *, first: int = 0) -> frozenset[str]:
    """So many devices of this plugin."""
    return frozenset(resource.device(number) for number in range(first, first + count))


def container_of(grant: Grant) -> Json:
    """A mutated container that asked for this."""
    container = make_container(grant.container, env=[env_of(grant.container)])
    resource = resources.WHOLE if grant.whole else resources.MEMORY
    return {**container, "resources": {"limits": {resource.name: resource.devices_of_grant(grant, units.GIB)}}}


def percent_container(percent: int, name: str = "main") -> Json:
    """A mutated container that asked for a part of one GPU."""
    limits = {names.GPU_PERCENT: percent}
    return make_container(name, env=[env_of(name)], resources={"limits": limits})


def bound_pod(
    *grants: Grant,
    name: str = "pod",
    node: str = NODE,
    assumed: int | str | None = 1,
    annotations: Mapping[str, str | None] | None = None,
    containers: list[Json] | None = None,
    phase: str = "Running",
    **spec: Any,
) -> Json:
    """A pod that was mutated and bound. Annotations given as None are left out."""
    given = grants or (make_grant(0),)
    allocation = Allocation(pod=make_ref(name), node=NodeName(node), grants=given)
    written: dict[str, str | None] = {names.ANNOTATION_ALLOCATION: allocations.encode(allocation)}
    for grant in given:
        written[names.PREFIX_DEVICES + grant.container] = ",".join(grant.gpus)
        written[names.PREFIX_MEMORY + grant.container] = str(grant.memory_mib)
    if assumed is not None:
        written[names.ALIYUN_ASSUME_TIME] = str(assumed)
    written |= annotations or {}
    if containers is None:
        containers = [container_of(grant) for grant in given]
    pod = make_pod(
        *containers,
        name=name,
        node=node,
        annotations={key: value for key, value in written.items() if value is not None},
        phase=phase,
    )
    pod["spec"] |= {"schedulerName": "gpushare-scheduler", **spec}
    return pod


def raw_gpu(index: int = 0, gib: int = 15, *, fault: str = "", uuid: str | None = None) -> RawGpu:
    why = Cause(Code.XID, fault)
    return RawGpu(uuid=uuid or f"GPU-{index}", index=index, model="Tesla T4", memory_bytes=gib * 1024**3, fault=why)


def simulated_gpus(count: int) -> dict[GpuUuid, RawGpu]:
    return {GpuUuid(gpu.uuid): gpu for gpu in (replace(raw_gpu(i), simulated=True) for i in range(count))}


def handing_over(
    way: HandOver = HandOver.ENVVAR, directory: Path = Path("/nowhere"), **of_choice: Any
) -> DeviceHandOver:
    """For two simulated GPUs."""
    return DeviceHandOver(
        choice=lambda: HandOverChoice(way=way, reason="the test says so", **of_choice),
        gpus=lambda: simulated_gpus(2),
        files=SpecFiles(directory),
        specs=SpecReader(directories=(directory,), own=directory).specs,
    )


def fields_of(caplog: pytest.LogCaptureFixture, event: str) -> list[Json]:
    """Fields of all log lines with this event name."""
    return [record.__dict__["gpushare_fields"] for record in caplog.records if record.message == event]


def start_of(pod: Json, *containers: str, devices: int | frozenset[str] = 3, **fields: Any) -> StartRequest:
    """On a node with two GPUs of 15 GiB. Args: containers: main, if none. devices: IDs, or how many of the plugin's."""
    resource = fields.get("resource", resources.MEMORY)
    given: dict[str, Any] = {
        "resource": resource,
        "ids": ids_of(devices, resource) if isinstance(devices, int) else devices,
        "inventory": make_inventory(15, 15),
    }
    names_of = tuple(map(ContainerName, containers or ("main",)))
    config = ResourceConfig(whole_gpus=True)
    return StartRequest(pod=pod, containers=names_of, node=NODE, resource_config=config, **given | fields)
