"""The commands as a kubectl plug-in: an archive that krew installs, with its manifest (`make krew`).

The archive has the commands and the libraries that they need, for the platform and the Python that build it.
"""

import argparse
import gzip
import hashlib
import io
import json
import platform
import re
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import gpushare
from localcluster import python_image

ROOT: Final = Path(__file__).parents[1]
ARCHIVE: Final = "kubectl-gpushare.tar.gz"
MANIFEST: Final = "gpushare.yaml"
PROGRAM: Final = "kubectl-gpushare"
LAUNCHER: Final = """#!/usr/bin/env python3
import os
import sys

if sys.version_info[:2] != {version}:
    sys.exit("error: this plug-in was built for Python {shown}; install the commands with pip instead")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib"))
from gpushare_cli.__main__ import main

sys.exit(main())
"""
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_UNUSED: Final = re.compile(r"(^|/)__pycache__(/|$)|\.pyc$|^kubernetes/(aio|docs)|(^|/)tests?/")
"""Of distributions; a second, asynchronous client among them."""


def build(directory: Path, url: str) -> tuple[Path, Path]:
    """Write the archive and the manifest.

    Args:
        directory: where to.
        url: from where users will get the archive.
    """
    directory.mkdir(parents=True, exist_ok=True)
    archive, manifest = directory / ARCHIVE, directory / MANIFEST
    archive.write_bytes(_packed())
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(_manifest(url, digest), indent=2) + "\n", encoding="utf-8")  # JSON is YAML, too
    return archive, manifest


def _manifest(url: str, digest: str) -> dict[str, object]:
    os_name = platform.system().lower()
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "gpushare"},
        "spec": {
            "version": f"v{gpushare.__version__}",
            "homepage": url.rpartition("/")[0],
            "shortDescription": "Look at shared GPUs, explain and drain",
            "description": "Who holds how much of which GPU, why a pod waits, what is wrong with an installation;"
            " drains single GPUs and makes room for large pods.\n",
            "caveats": f"It needs Python {python} as python3.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": os_name, "arch": architecture}},
                    "uri": url,
                    "sha256": digest,
                    "bin": PROGRAM,
                }
            ],
        },
    }


def _packed() -> bytes:
    """The same bytes for the same files, whenever they are packed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        version = sys.version_info[:2]
        launcher = LAUNCHER.format(version=tuple(version), shown=".".join(map(str, version)))
        _add(archive, PROGRAM, launcher.encode(), 0o755)
        _add(archive, "LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644)
        for name, path in sorted(_files()):
            _add(archive, f"lib/{name}", path.read_bytes(), 0o644)
    return gzip.compress(packed.getvalue(), mtime=0)


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _files() -> Iterator[tuple[str, Path]]:
    for package in ("gpushare", "gpushare_cli"):
        for path in (ROOT / package).rglob("*"):
            name = str(path.relative_to(ROOT))
            if path.is_file() and not _UNUSED.search(name):
                yield name, path
    for distribution in python_image.closure(_requirements()):
        for file in distribution.files or ():
            name, path = str(file), Path(str(distribution.locate_file(file)))
            if not name.startswith(("..", "/")) and not _UNUSED.search(name) and path.is_file():
                yield name, path


def _requirements() -> Iterable[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["cli"]]


def main(argv: Sequence[str] | None = None) -> int:
    """Write both files, and say where they are."""
    parser = argparse.ArgumentParser(prog="python -m localcluster.krew", description=__doc__)
    parser.add_argument("url", help="from where users will get the archive")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "krew")
    given = parser.parse_args(argv)
    for path in build(given.directory, given.url):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
