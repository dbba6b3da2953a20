"""The machine's GPUs as the plugin shares them, and whether a program gets what is shared. Ends with 1 if not.

python -m bench.gpu.inventory
"""

import sys

from bench.gpu import machine
from bench.gpu.cuda import MIB

CONTEXT_MIB = 1024
"""More than CUDA keeps for itself in a process."""


def main() -> int:
    totals = {raw.uuid: raw.memory_bytes // MIB for raw in machine.raw_gpus()}
    rows, short = [], []
    for gpu in machine.read().gpus:
        got = machine.taken(gpu)
        context = gpu.memory_mib - got.taken_mib
        rows.append(
            (
                gpu.label,
                gpu.model,
                gpu.uuid,
                totals[gpu.uuid],
                got.total_mib,
                got.taken_mib,
                context,
                gpu.why or "healthy",
            )
        )
        short += [gpu.uuid] if context > CONTEXT_MIB else []
    machine.table(
        ("GPU", "model", "UUID", "shared MiB", "total by CUDA", "a program got", "difference", "health"), *rows
    )
    for uuid in short:
        print(f"{uuid}: its shares cannot be allocated in full")
    return 1 if short or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
