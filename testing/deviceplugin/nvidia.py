"""CDI specs as NVIDIA's programs write them, and what nodes with them have.

`nvidia-ctk cdi generate` (1.20) with `--device-name-strategy=index`, `uuid`, `type-index` or two of them, with MIG
instances, and with `--mode=management`, whose spec the GPU Operator's toolkit writes beside the other.
`python -m bench.gpu.hand_over` tries the real one.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from deviceplugin import cdi
from deviceplugin.cdi import ContainerEdits, VendorSpec
from deviceplugin.source import RawGpu
from gpushare.model.gpu import MigInstance

UUIDS = [f"GPU-12345678-1234-1234-1234-12345678000{i}" for i in range(4)]
MIG_UUIDS = [f"MIG-12345678-1234-1234-1234-12345678000{i}" for i in range(4)]
LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.615.71.09"

Json = dict[str, Any]


def node(minor: int) -> Json:
    """As nvidia-ctk writes it; what is zero is left out."""
    path = f"/dev/nvidia{minor}"
    numbers: Json = {"major": 195} | ({"minor": minor} if minor else {})
    return {"path": path, "hostPath": path, **numbers, "fileMode": 438, "permissions": "rwm"}


def plain(path: str) -> Json:
    return {"path": path, "hostPath": path}


def device(name: str, *nodes: Json, **more: Any) -> Json:
    return {"name": name, "containerEdits": {"deviceNodes": list(nodes), **more}}


def document(*devices: Json, kind: str = "nvidia.com/gpu") -> Json:
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": list(devices),
        "containerEdits": {
            "env": ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu", "NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [plain("/dev/nvidia-uvm"), plain("/dev/nvidia-uvm-tools"), plain("/dev/nvidiactl")],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": "/usr/bin/nvidia-cdi-hook",
                    "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu"],
                    "env": ["NVIDIA_CTK_DEBUG=false"],
                }
            ],
            "mounts": [
                {
                    "hostPath": LIBRARY,
                    "containerPath": LIBRARY,
                    "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                }
            ],
        },
    }


def cap(number: int) -> Json:
    return plain(f"/dev/nvidia-caps/nvidia-cap{number}")


ALL_OF_FOUR = device("all", *map(node, range(4)))
BY_UUID = document(*(device(UUIDS[i], node(i), plain(f"/dev/dri/renderD{128 + i}")) for i in range(4)), ALL_OF_FOUR)
BY_INDEX = document(*(device(str(i), node(i)) for i in range(4)), ALL_OF_FOUR)
BY_TYPE = document(*(device(f"gpu{i}", node(i)) for i in range(4)), ALL_OF_FOUR)
BY_BOTH = document(*(device(name, node(i)) for i in range(4) for name in (str(i), UUIDS[i])), ALL_OF_FOUR)
ONLY_ALL = document(ALL_OF_FOUR, kind="management.nvidia.com/gpu")
CONTROL = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]
_ALL_AND_CONTROL = device("all", *map(plain, CONTROL), *map(node, range(4)), cap(66), cap(67), cap(75), cap(76))
MANAGEMENT = document(_ALL_AND_CONTROL, kind="management.nvidia.com/gpu")
"""As `nvidia-ctk cdi generate --mode=management` writes it: no device node is common to the devices."""
del MANAGEMENT["containerEdits"]["deviceNodes"]
MIG = document(
    device("0:0", node(0), cap(66), cap(67)),
    device("0:1", node(0), cap(75), cap(76)),
    device("1", node(1)),
    device("all", node(0), cap(66), cap(67), cap(75), cap(76), node(1)),
)


def spec(found: Json, path: str = "/etc/cdi/nvidia.yaml") -> VendorSpec:
    return cdi.read(found, Path(path))


def instance(number: int, minor: int | None, *caps: int) -> RawGpu:
    """Of the first GPU."""
    mig = MigInstance(gpu=0, number=number, profile="1g.10gb")
    return replace(gpu(2 + number, minor, *caps, uuid=MIG_UUIDS[number]), mig=mig)


def gpu(index: int, minor: int | None = -1, *caps: int, uuid: str = "") -> RawGpu:
    """Its minor number is its index unless the test says otherwise."""
    return RawGpu(
        uuid=uuid or UUIDS[index],
        index=index,
        model="A100",
        memory_bytes=1,
        minor=index if minor == -1 else minor,
        caps=caps,
    )


def paths(edits: ContainerEdits) -> list[str]:
    return [each.path for each in edits.device_nodes]
