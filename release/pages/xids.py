"""The reference page of the driver's errors."""

from deviceplugin.nvml import faults

HEAD = """# Driver errors (Xids)

What the device plugin makes of each error number that NVIDIA's driver reports.
One that condemns its GPU makes it unhealthy: nothing new is placed on it, and running pods stay.
Numbers that are not here condemn as well.
`--ignored-xids` adds numbers that have no effect; `--xid-recovery` lets time heal the others.
[Operate](../operate.md#a-faulty-gpu) says how a GPU recovers.
The names are those of [NVIDIA's Xid catalog](https://docs.nvidia.com/deploy/xid-errors/).
This page is written by `make docs` from the code; do not edit it.

| Xid | name | condemns the GPU |
|---|---|---|
"""


def page() -> str:
    """Every known Xid."""
    return HEAD + "".join(
        f"| {number} | {name} | {'no: a faulty program causes it' if number in faults.HARMLESS else 'yes'} |\n"
        for number, name in faults.NAMES.items()
    )
