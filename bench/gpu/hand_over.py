"""What containers would get of this machine's GPUs by CDI, from the specs that are here and from new ones.

    python -m bench.gpu.hand_over [--nvidia-ctk PATH] [--generate FLAG ...]

Reads the GPUs through NVML, and looks each one up in the CDI specs of this machine and in those that NVIDIA's container
toolkit writes now, under every strategy of naming devices and for management. Writes nothing outside a temporary
directory. Ends with 1 if a GPU, or a node of the driver that it needs, is not found.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.gpu import machine
from deviceplugin.handover.devices import pick
from deviceplugin.handover.spec_files import SpecReader
from deviceplugin.source import RawGpu

STRATEGIES = ("index", "uuid", "type-index")
MANAGEMENT = ("--mode=management", "--vendor=management.nvidia.com")
NEEDED = {"/dev/nvidiactl", "/dev/nvidia-uvm"}
HERE = (Path("/etc/cdi"), Path("/var/run/cdi"))


def look_up(title: str, found: Sequence[RawGpu], directories: Sequence[Path]) -> bool:
    """Print what each GPU has. Whether all have something."""
    specs = SpecReader(directories=directories, own=Path("/nowhere")).specs()
    if not specs:
        print(f"\n== {title}: there are none")
        return True
    picked = {gpu.uuid: pick(gpu, specs) for gpu in found}
    complete = True
    print(f"\n== {title}: {len(specs)} specs, {sum(len(spec.devices) for spec in specs)} devices")
    for gpu in found:
        edits = picked[gpu.uuid]
        if edits is None:
            print(f"{gpu.uuid} (minor {gpu.minor}, capabilities {gpu.caps}): NOT FOUND")
            complete = False
            continue
        nodes = [node.path for node in edits.device_nodes]
        print(f"{gpu.uuid}: {', '.join(nodes)}; {len(edits.mounts)} mounts, {len(edits.hooks)} hooks")
        if lacking := NEEDED.difference(nodes):
            print(f"    WITHOUT {', '.join(sorted(lacking))}")
            complete = False
    return complete


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nvidia-ctk", default="nvidia-ctk")
    parser.add_argument("--generate", nargs="*", default=[], help="more flags of nvidia-ctk cdi generate, without --")
    arguments = parser.parse_args()
    found = machine.raw_gpus()
    complete = [look_up("specs of this machine", found, HERE)]
    with tempfile.TemporaryDirectory(prefix="gs") as path:
        for flags in (*((f"--device-name-strategy={strategy}",) for strategy in STRATEGIES), MANAGEMENT):
            command = [arguments.nvidia_ctk, "--quiet", "cdi", "generate", *flags]
            command += [f"--output={path}/nvidia.yaml", *(f"--{flag}" for flag in arguments.generate)]
            subprocess.run(command, check=True)
            complete.append(look_up(f"nvidia-ctk {' '.join(flags)}", found, (Path(path),)))
    return 0 if all(complete) else 1


if __name__ == "__main__":
    sys.exit(main())
