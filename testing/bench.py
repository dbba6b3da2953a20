"""Benchmarks as they are run, in small sizes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def bench(module: str, *arguments: object) -> str:
    """What one prints."""
    argv = [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
