"""The kubectl plug-in as krew installs it: unpacked somewhere, and called through a link."""

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import gpushare
from localcluster import krew

URL = "https://example.com/releases/v0.1.0/kubectl-gpushare.tar.gz"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with both files."""
    directory = tmp_path_factory.mktemp("krew")
    krew.build(directory, URL)
    return directory


def test_the_manifest_has_what_krew_demands(built: Path) -> None:
    manifest = json.loads((built / krew.MANIFEST).read_text())
    (platform,) = manifest["spec"]["platforms"]

    assert manifest["metadata"]["name"] == (built / krew.MANIFEST).stem
    assert manifest["spec"]["version"] == f"v{gpushare.__version__}"
    assert len(manifest["spec"]["shortDescription"]) <= 50
    assert platform["uri"] == URL
    assert platform["sha256"] == hashlib.sha256((built / krew.ARCHIVE).read_bytes()).hexdigest()
    assert platform["bin"] == krew.PROGRAM


def test_the_program_runs_where_nothing_else_is_installed(built: Path, tmp_path: Path) -> None:
    with tarfile.open(built / krew.ARCHIVE) as archive:
        archive.extractall(tmp_path / "store", filter="data")
    link = tmp_path / "kubectl-gpushare"
    link.symlink_to(tmp_path / "store" / krew.PROGRAM)
    python = Path(sys.base_prefix, "bin")  # not that of the tests
    bare = {"PATH": f"{python}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([link, *argv], capture_output=True, text=True, check=False, env=bare)

    assert run("--version").stdout == f"gpushare {gpushare.__version__}\n"
    assert "extenders:" in run("scheduler-config", "--server-version", "1.30").stdout
    assert "complete" in run("completion", "bash").stdout
    nowhere = run("inspect", "--kubeconfig", "/nowhere")
    assert nowhere.returncode == 1
    assert "/nowhere" in nowhere.stderr, "the official client's loader is there"


def test_the_same_files_make_the_same_archive(built: Path, tmp_path: Path) -> None:
    krew.build(tmp_path, URL)

    assert (tmp_path / krew.ARCHIVE).read_bytes() == (built / krew.ARCHIVE).read_bytes()
