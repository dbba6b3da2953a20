"""Whether a program that takes all it gets stays within its share, under MPS and in a cgroup.

    python -m bench.gpu.limits [--gpu UUID] [--mps] [--cgroup PATH]

--mps starts NVIDIA's MPS daemon as gpushare-mps does: as root, on a machine on which no other program uses a GPU; the
compute mode of all GPUs is DEFAULT afterwards. --cgroup is an empty cgroup of version 2 of your own, for drivers from
r615 on. Ends with 1 if a limit that is to hold does not.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.gpu import machine
from bench.gpu.cuda import MIB, Taken
from deviceplugin.limits.mps import MpsBackend
from deviceplugin.limits.node import PROVEN, LimitError
from deviceplugin.mps import MpsControl, Supervisor
from deviceplugin.nvml import driver
from deviceplugin.nvml.driver import UNLIMITED, DriverError, MemoryLimits
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.runtime.clock import SystemClock

PARTS = (4, 2)
START_S = 20.0
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@contextmanager
def mps(directory: Path, gpu: Gpu) -> Iterator[MpsBackend]:
    """The daemon of the product, and what points containers at it."""
    control, stop = MpsControl(directory, directory / "shm"), threading.Event()
    supervisor = Supervisor(control=control, clock=SystemClock())
    parts = [threading.Thread(target=part, args=(stop,)) for part in (supervisor.run, supervisor.serve)]
    backend = MpsBackend(directory=directory, shared_memory=directory / "shm", held=lambda _inventory: ())
    for part in parts:
        part.start()
    try:
        until = time.monotonic() + START_S
        while (problem := backend.prove([gpu])[gpu.uuid]) != PROVEN:
            if time.monotonic() > until:
                raise LimitError(problem)
            time.sleep(0.2)
        yield backend
    finally:
        stop.set()
        for part in parts:
            part.join()
        subprocess.run(["nvidia-smi", "--compute-mode=DEFAULT"], check=False, stdout=subprocess.DEVNULL)


def under_mps(found: NodeInventory, gpu: Gpu, mib: int) -> Taken:
    with tempfile.TemporaryDirectory(prefix="gs") as path, mps(Path(path), gpu) as backend:
        edits = backend.prepare(machine.start_of(found, gpu, mib), [gpu])
        return machine.taken(gpu, dict(edits.env))


def in_cgroup(gpu: Gpu, mib: int, cgroup: Path) -> Taken:
    limits = MemoryLimits(driver.library())
    limits.set(gpu.uuid, cgroup, mib * MIB)
    try:
        return machine.taken(gpu, before=("/bin/sh", "-c", ENTER, str(cgroup)))
    finally:
        limits.set(gpu.uuid, cgroup, UNLIMITED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpu")
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--cgroup", type=Path)
    arguments = parser.parse_args()
    found = machine.read()
    gpu = machine.only(found, arguments.gpu)
    rows: list[tuple[object, ...]] = []
    broken = False
    for part in PARTS:
        mib = gpu.memory_mib // part
        ways: dict[str, Callable[[], Taken]] = {"none": partial(machine.taken, gpu)}
        if arguments.mps:
            ways["mps"] = partial(under_mps, found, gpu, mib)
        if arguments.cgroup:
            ways["cgroup"] = partial(in_cgroup, gpu, mib, arguments.cgroup)
        for way, act in ways.items():
            try:
                got = act()
            except (LimitError, DriverError) as error:
                rows.append((way, mib, "", "", f"not possible: {error}"))
                broken = True
                continue
            holds = 0 < got.taken_mib <= mib
            broken = broken or (way != "none" and not holds)
            rows.append(
                (way, mib, got.total_mib, got.taken_mib, f"{'holds' if holds else 'does not hold'}; {got.error}")
            )
    machine.table(("limit", "share MiB", "total by CUDA", "a program got", "the limit"), *rows)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
