"""No misspelled word in code and documents."""

import subprocess
import sys

from localcluster.installation import ROOT


def test_codespell_finds_nothing() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=60, check=False)
    files = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    argv = [sys.executable, "-m", "codespell_lib", *(files or ["."])]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == ""
