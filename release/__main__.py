"""`make image` and `make wheels`."""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import gpushare
from gpushare.runtime import options
from release import builders, contents
from release.builders import Wanted

ROOT: Final = Path(__file__).resolve().parents[1]
LOCK_FILE: Final = ROOT / "requirements" / "image.txt"
BUILD_S: Final = 3600


def main(argv: Sequence[str]) -> int:
    """Run one command; 0 if all is well."""
    given = _parser().parse_args(argv)
    try:
        return _image(given) if given.command == "image" else _wheels(given)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="release", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    image = commands.add_parser("image", help="build the image as an OCI archive", allow_abbrev=False)
    image.add_argument("--builder", choices=builders.BUILDERS, help="by default the first one that works")
    image.add_argument("--name", default=f"gpushare:{gpushare.__version__}", help="registry, name and tag")
    image.add_argument("--python-image", default="", help="base image; by default the Dockerfile's")
    image.add_argument("--output", type=Path, default=ROOT / "dist", help="directory of the archive")
    wheels = commands.add_parser("wheels", help="fetch what the image needs into wheels/", allow_abbrev=False)
    wheels.add_argument("--python-version", default=_python_version(), help="of Python in the base image")
    for command in (image, wheels):
        text = "may be given more than once; by default the machine's own"
        command.add_argument("--platform", action="append", choices=builders.PLATFORMS, default=[], help=text)
    return parser


def _image(given: argparse.Namespace) -> int:
    builder = given.builder or builders.choose(_works)
    if builder is None:
        print(f"release: none of {', '.join(builders.BUILDERS)} works here; install buildah", file=sys.stderr)
        return 1
    given.output.mkdir(parents=True, exist_ok=True)
    archive = given.output.resolve() / f"gpushare-{gpushare.__version__}.oci.tar"
    archive.unlink(missing_ok=True)
    wanted = Wanted(
        name=given.name,
        sources=ROOT,
        machine=_own_platform(),
        platforms=given.platform,
        python_image=given.python_image,
        epoch=_epoch(),
        archive=archive,
    )
    for command in builders.commands(builder, wanted):
        print("+", *command, flush=True)
        subprocess.run(command, check=True, timeout=BUILD_S)
    bill = given.output / f"gpushare-{gpushare.__version__}.cdx.json"
    bill.write_text(contents.bill(gpushare.__version__, LOCK_FILE.read_text(), given.python_image or _base_image()))
    print(f"{archive}: {digest(archive)}\n{bill}")
    return 0


def _wheels(given: argparse.Namespace) -> int:
    for platform in given.platform or [_own_platform()]:
        command = builders.wheels(with_pip(), LOCK_FILE, ROOT / "wheels", platform, given.python_version)
        subprocess.run(command, check=True, timeout=BUILD_S)
    return 0


def with_pip() -> str:
    """An interpreter that has pip: the environment of uv lacks it, but not the one below."""
    return sys.executable if importlib.util.find_spec("pip") else f"{sys.base_prefix}/bin/python3"


def digest(archive: Path) -> str:
    """The digest by which a registry knows the image of an OCI archive."""
    with tarfile.open(archive) as opened:
        index = json.loads(b"".join(opened.extractfile("index.json") or ()))
    return str(index["manifests"][0]["digest"])


def _works(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _epoch() -> int:
    """When the sources were committed, unless SOURCE_DATE_EPOCH says another time."""
    if given := options.environment("SOURCE_DATE_EPOCH"):
        if not given.isdecimal():
            raise OSError(f"SOURCE_DATE_EPOCH is {given!r}; write seconds since 1970")
        return int(given)
    argv = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode or not done.stdout.strip():
        said = done.stderr.strip() or "there is no commit"
        raise OSError(f"{ROOT}: git does not say when it was committed: {said}; set SOURCE_DATE_EPOCH")
    return int(done.stdout)


def _base_image() -> str:
    found = re.search(r"^ARG PYTHON_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return found[1] if found else ""


def _python_version() -> str:
    found = re.search(r"python:(\d+\.\d+)", _base_image())
    return found[1] if found else ""


def _own_platform() -> str:
    return {"aarch64": "linux/arm64"}.get(os.uname().machine, "linux/amd64")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
