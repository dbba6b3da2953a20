"""A container's first process: the kernel drops every signal for which it has no handler, so also SIGTERM's default."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
ENDLESS_IMPORT = "import sys\nsys.stdout.write('importing')\nsys.stdout.flush()\nsys.stdin.read()\n"


@pytest.mark.parametrize("component", ["webhook", "controller", "deviceplugin"])
def test_sigterm_ends_it_while_its_libraries_are_imported(component: str, tmp_path: Path) -> None:
    """Which takes seconds on a busy node; the pod would wait for SIGKILL, its whole grace period."""
    (tmp_path / "orjson.py").write_text(ENDLESS_IMPORT)
    with subprocess.Popen(
        [*NAMESPACE, sys.executable, "-m", component, "--node-name=node-a"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as outside:
        assert outside.stdout is not None
        try:
            assert outside.stdout.read(9) == b"importing"
            [first] = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
            os.kill(int(first), signal.SIGTERM)
            assert outside.wait() == 128 + signal.SIGTERM
        finally:
            outside.kill()
