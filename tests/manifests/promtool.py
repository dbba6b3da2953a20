"""Prometheus' own checks."""

import subprocess
from pathlib import Path

import pytest

from localcluster import prometheus
from localcluster.provision import ProvisionError


def promtool(*arguments: str | Path, text: str = "") -> str:
    """What it prints; an AssertionError if it finds anything wrong. Skips where no package can be had."""
    try:
        program = prometheus.programs() / "promtool"
    except ProvisionError as error:
        pytest.skip(str(error))
    argv = [str(program), *map(str, arguments)]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
