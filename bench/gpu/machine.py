"""What the measurements on a GPU share: the machine's GPUs, programs that take their memory, tables."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bench.gpu.cuda import Taken
from deviceplugin import inventory
from deviceplugin.limits.node import LimitedStart
from deviceplugin.nvml import driver
from deviceplugin.nvml.source import NvmlSource
from deviceplugin.source import RawGpu
from gpushare import units
from gpushare.identity import ContainerName, NodeName, PodRef, PodUid
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.model.ledger import Grant
from gpushare.runtime.clock import SystemClock

NODE = NodeName("this-machine")


def raw_gpus() -> Sequence[RawGpu]:
    source = NvmlSource(nvml=driver.library(), clock=SystemClock())
    try:
        return source.read()
    finally:
        source.close()


def read() -> NodeInventory:
    """As the device plugin would publish it."""
    return inventory.build(raw_gpus(), node=NODE, unit=units.GIB)


def start_of(found: NodeInventory, gpu: Gpu, mib: int, annotations: Mapping[str, str] | None = None) -> LimitedStart:
    """A container that is granted a part of a GPU."""
    grant = Grant(container=ContainerName("main"), gpus=(gpu.uuid,), memory_mib=mib)
    pod = PodRef(namespace="default", name="bench", uid=PodUid("00000000-0000-4000-8000-000000000001"))
    return LimitedStart(pod=pod, grant=grant, of_pod=(grant,), inventory=found, annotations=annotations or {})


@contextmanager
def taking(
    gpu: Gpu, env: Mapping[str, str] | None = None, *, most_mib: int | None = None, before: Sequence[str] = ()
) -> Iterator[tuple[Taken, "subprocess.Popen[str]"]]:
    """A program that has taken what it gets of a GPU, and keeps it meanwhile. Args: before: of its command line."""
    command = [*before, sys.executable, "-m", "bench.gpu.cuda", "--hold"]
    command += [] if most_mib is None else [f"--most-mib={most_mib}"]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid, **(env or {})}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, text=True) as program:
        try:
            assert program.stdout
            yield Taken(**json.loads(program.stdout.readline())), program
        finally:
            program.kill()


def taken(gpu: Gpu, env: Mapping[str, str] | None = None, *, before: Sequence[str] = ()) -> Taken:
    """What such a program got."""
    with taking(gpu, env, before=before) as (got, _):
        return got


def table(*rows: Sequence[object]) -> None:
    """Print one in Markdown; the first row is its head."""
    head, *rest = rows
    for row in (head, ["---"] * len(head), *rest):
        print(f"| {' | '.join(map(str, row))} |")


def only(found: NodeInventory, uuid: str | None) -> Gpu:
    """The GPU that was asked for, or the first that is healthy."""
    return next(gpu for gpu in found.gpus if gpu.uuid == uuid or (uuid is None and not gpu.reason))
