"""What PyTorch and JAX take of a GPU with the variables that containers get where nothing holds their limit.

    python -m bench.gpu.frameworks [--gpu UUID] [--python PYTHON ...]

Each interpreter that is named (by default this one) is asked for both; what is not installed there is said.
"""

import argparse
import os
import subprocess
import sys

from bench.gpu import machine
from deviceplugin.limits.node import reported

PROGRAMS = {
    "pytorch": """
import torch
taken, error = 0, ""
kept = []
try:
    while True:
        kept.append(torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda"))
        taken += 64
except torch.cuda.OutOfMemoryError:
    pass
print(torch.__version__, taken)
""",
    "jax": """
import jax
print(jax.__version__, jax.devices("gpu")[0].memory_stats()["bytes_limit"] // 2**20)
""",
}
TIMEOUT_S = 300


def run(python: str, program: str, env: dict[str, str]) -> tuple[str, str]:
    """Version and MiB, or why there are none."""
    done = subprocess.run(
        [python, "-c", program], env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode == 0:
        version, _, mib = done.stdout.strip().rpartition(" ")
        return version, mib
    return "", (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpu")
    parser.add_argument("--python", nargs="*", default=[sys.executable])
    arguments = parser.parse_args()
    found = machine.read()
    gpu = machine.only(found, arguments.gpu)
    mib, rows, broken = gpu.memory_mib // 4, [], False
    for python in arguments.python:
        for framework, program in PROGRAMS.items():
            annotations = {"gpushare.dev/framework-variables": framework}
            start = machine.start_of(found, gpu, mib, annotations)
            told = dict(reported(start, [gpu], lambda gpu: gpu.memory_mib))
            env = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid, **told}
            version, got = run(python, program, env)
            broken = broken or not got.isdigit() or int(got) > mib
            rows.append((framework, version, "; ".join(f"{key}={value}" for key, value in told.items()), mib, got))
    machine.table(("framework", "version", "variables", "share MiB", "it takes at most"), *rows)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
