"""The measurements for a machine with a GPU, over stubs of NVIDIA's libraries and programs: they say what is so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin import cgroups
from testing.nvml import mps_programs
from testing.nvml.stub import Stub

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
USABLE, CONTEXT = 15060, 256


@pytest.fixture
def machine(nvml_stub: Stub) -> Stub:
    nvml_stub.add_gpu(USABLE + 300, reserved_mib=300, uuid="GPU-a")
    nvml_stub.set({"context": CONTEXT})
    return nvml_stub


def run(machine: Stub, name: str, *flags: str, path: Path | None = None) -> tuple[int, list[list[str]], str]:
    """The exit status, the cells of the table without its head, and all that was printed."""
    env = {**os.environ, **machine.env, "PATH": f"{path}{os.pathsep if path else ''}{os.environ['PATH']}"}
    command = [sys.executable, "-m", f"bench.gpu{name and '.'}{name}", *flags]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=250, check=False)
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("|")]
    return done.returncode, lines[2:], done.stdout + done.stderr


def test_all_that_is_shared_can_be_taken(machine: Stub) -> None:
    code, rows, printed = run(machine, "inventory")
    got = str(USABLE - CONTEXT)
    assert rows == [["0", "Tesla T4", "GPU-a", str(USABLE), str(USABLE), got, str(CONTEXT), "healthy"]], printed
    assert code == 0


def test_mps_holds_its_share_and_nothing_else_does(machine: Stub, tmp_path: Path) -> None:
    code, rows, printed = run(machine, "limits", "--mps", path=mps_programs.install(tmp_path))
    quarter, half = USABLE // 4, USABLE // 2
    out_of_memory = "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"
    assert rows == [
        [way, str(mib), str(USABLE), str(got), f"{verdict}; {out_of_memory}"]
        for mib in (quarter, half)
        for way, got, verdict in (("none", USABLE - CONTEXT, "does not hold"), ("mps", mib - CONTEXT, "holds"))
    ], printed
    assert code == 0


OURS = any(os.access(each, os.W_OK) for each in cgroups.hierarchies())
NEEDS_CGROUPS = pytest.mark.skipif(not OURS, reason="cgroups need root")


@pytest.mark.parametrize(
    ("name", "flags", "context", "said"),
    [
        ("inventory", [], 5000, "GPU-a: its shares cannot be allocated in full"),
        ("limits", ["--cgroup=/nowhere"], CONTEXT, "not possible: the driver says"),  # an old one, and no one's cgroup
        pytest.param("watchdog", [], 1200, "| within | 2048 | 2048 | 3248 | ended |", marks=NEEDS_CGROUPS),
    ],
)
def test_what_does_not_hold_is_a_failure(machine: Stub, name: str, flags: list[str], context: int, said: str) -> None:
    machine.set({"context": context})
    code, _, printed = run(machine, name, *flags)
    assert (code, said in printed) == (1, True), printed


@NEEDS_CGROUPS
def test_the_program_above_its_grant_is_ended(machine: Stub) -> None:
    code, rows, printed = run(machine, "watchdog")
    assert rows == [
        ["within", "2048", "2048", str(2048 + CONTEXT), "runs"],
        ["above", "2048", "3072", str(3072 + CONTEXT), "ended"],
    ], printed
    assert (code, f"of each: {CONTEXT}, {CONTEXT} MiB" in printed) == (0, True)


@pytest.mark.parametrize(("mib", "code"), [(3765, 0), (3766, 1)])
def test_frameworks_are_told_their_share(machine: Stub, tmp_path: Path, mib: int, code: int) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho 9.9 {mib}\n")
    python.chmod(0o755)
    found, rows, printed = run(machine, "frameworks", "--python", str(python))
    assert rows == [
        ["pytorch", "9.9", "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.2500", "3765", str(mib)],
        ["jax", "9.9", "XLA_PYTHON_CLIENT_MEM_FRACTION=0.2500", "3765", str(mib)],
    ], printed
    assert found == code


def test_all_of_them_are_one_report_that_names_what_failed(machine: Stub) -> None:
    if shutil.which("nvidia-ctk"):
        pytest.skip("there is a real toolkit here")
    code, _, printed = run(machine, "")
    assert printed.startswith("Driver 580.95.05\n")
    assert "Failed: Hand-over by CDI" in printed
    assert code == 1
