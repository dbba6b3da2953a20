"""Builds the stub library and writes the file that drives it, whose format is at the top of `libnvidia-ml.c`.

The binding loads `libnvidia-ml.so.1` by that name, so a process finds the stub by the environment `Stub.env`, which
must be set before it starts; inside of a test's own process the fixture `nvml_binding` puts it into place.
"""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from gpushare.identity import NodeName
from gpushare.wire.profile import Profile, uuid_of

_SOURCES: Final = {"libnvidia-ml.so.1": "libnvidia-ml.c", "libcuda.so.1": "libcuda.c"}
_FLAGS: Final = ["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
_NAME: Final = "libnvidia-ml.so.1"
MIB: Final = 1024 * 1024

VERSION_MISMATCH: Final = 18
GPU_IS_LOST: Final = 15
FUNCTION_NOT_FOUND: Final = 13
NOT_SUPPORTED: Final = 3
XID: Final = 8
"""Type of an event: a critical error, with its Xid as data."""
DOUBLE_BIT_ECC: Final = 2


@dataclass(kw_only=True)
class Stub:
    """One library and its file. Its keys can be changed at any time, and hold from the next call on."""

    directory: Path
    keys: dict[str, object] = field(default_factory=lambda: {"driver": "580.95.05", "library": "580.95.05", "gpus": 0})
    events: int = 0

    def __post_init__(self) -> None:
        self.write()

    @property
    def library(self) -> Path:
        return self.directory / _NAME

    @property
    def control(self) -> Path:
        return self.directory / "nvml.control"

    @property
    def env(self) -> Mapping[str, str]:
        """What a process needs in its environment to load the stub."""
        return {"LD_LIBRARY_PATH": str(self.directory), "NVML_STUB_CONTROL": str(self.control)}

    def write(self) -> None:
        """Write the whole file; a reader sees the old or the new one."""
        fresh = self.control.with_suffix(".new")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in self.keys.items()), encoding="utf-8")
        fresh.replace(self.control)

    def set(self, keys: Mapping[str, object]) -> None:
        """Set keys of the file; None takes one away."""
        for key, value in keys.items():
            self.keys.pop(key, None)
            if value is not None:
                self.keys[key] = value
        self.write()

    def add_gpu(
        self, memory_mib: int = 15360, *, reserved_mib: int = 300, model: str = "Tesla T4", **keys: object
    ) -> int:
        """Add a GPU; its number. Args: keys: more of its keys, or others for those that are made up."""
        number = int(str(self.keys["gpus"]))
        made_up: dict[str, object] = {
            "uuid": f"GPU-00000000-0000-0000-0000-{number:012d}",
            "name": model,
            "bus": f"00000000:{number + 1:02X}:00.0",
            "minor": number,
            "memory": f"{memory_mib * MIB} {reserved_mib * MIB} 0",
        }
        self.set({"gpus": number + 1} | {f"{number}.{key}": value for key, value in (made_up | keys).items()})
        return number

    def add_mig(self, gpu: int, number: int, *, profile: str, memory_mib: int, reserved_mib: int = 0, gi: int) -> str:
        """Turn MIG on for a GPU and give it an instance; its UUID."""
        uuid = f"MIG-00000000-0000-0000-{gpu:04d}-{number:012d}"
        made_up: dict[str, object] = {
            "uuid": uuid,
            "name": f"{self.keys[f'{gpu}.name']} MIG {profile}",
            "memory": f"{memory_mib * MIB} {reserved_mib * MIB} 0",
            "gi": gi,
            "ci": 0,
        }
        self.set({f"{gpu}.mig": 1} | {f"{gpu}.mig.{number}.{key}": value for key, value in made_up.items()})
        return uuid

    def add_profile(self, profile: Profile, node: NodeName) -> None:
        """Add the GPUs of a profile of simulated GPUs, before any fault, with the same UUIDs."""
        for index in range(len(profile.gpus)):
            spec = profile.gpus[index]
            uuid = spec.uuid or uuid_of("GPU", profile.seed, node, index)
            self.add_gpu(spec.memory_mib, reserved_mib=spec.reserved_mib, model=spec.model, uuid=uuid)
            if spec.mig is not None:
                self.set({f"{index}.mig": 1})
            for number, mig in enumerate(spec.mig or ()):
                self.add_mig(index, number, profile=mig.profile, memory_mib=mig.memory_mib, gi=number + 1)
                self.set({f"{index}.mig.{number}.uuid": uuid_of("MIG", profile.seed, node, index, number)})

    def happen(self, gpu: int, data: int = 0, *, kind: int = XID, instance: int | None = None) -> None:
        """Have an event."""
        self.events += 1
        more = "" if instance is None else f" {instance}"
        self.set({f"event.{self.events}": f"{gpu} {kind} {data}{more}"})


def gpu_of(device: str) -> int:
    """Number of the GPU whose handle this is, in decimal digits."""
    return (int(device) - 0x100000) >> 8


def build(directory: Path) -> Path:
    """Compile the libraries into a directory; the path of NVML's."""
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError(
            "tests of NVML need a C compiler (cc, gcc or clang); install one: apt-get install gcc libc6-dev"
        )
    for name, source in _SOURCES.items():
        subprocess.run([compiler, *_FLAGS, "-o", directory / name, Path(__file__).with_name(source)], check=True)
    return directory / _NAME


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled stub. A machine without a compiler fails here: the tests are not skipped."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml_stub(nvml_library: Path, tmp_path: Path) -> Stub:
    """A stub of the test's own, without GPUs yet."""
    directory = tmp_path / "driver"
    directory.mkdir()
    for library in nvml_library.parent.glob("*.so.1"):
        shutil.copy(library, directory)  # a file of its own: a library that is loaded already would keep its state
    return Stub(directory=directory)


@pytest.fixture
def nvml_binding(nvml_stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real `pynvml` of this process with the test's stub behind it."""
    import ctypes

    import pynvml

    monkeypatch.setenv("NVML_STUB_CONTROL", str(nvml_stub.control))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml_stub.library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    return pynvml
