"""What each builder of images has to be told, so that the same sources give the same image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BUILDAH: Final = "buildah"
PODMAN: Final = "podman"
DOCKER: Final = "docker"
BUILDERS: Final = (BUILDAH, PODMAN, DOCKER)
PLATFORMS: Final = ("linux/amd64", "linux/arm64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One image."""

    name: str
    """With its tag."""
    sources: Path
    machine: str
    """The builder's own platform, such as linux/amd64."""
    platforms: Sequence[str] = ()
    """What the image is for; none: the builder's own."""
    python_image: str = ""
    """The base image; empty: the Dockerfile's."""
    epoch: int
    """Seconds since 1970 that files and history are dated with."""
    archive: Path
    """The OCI archive to write."""


def choose(works: Callable[[Sequence[str]], bool]) -> str | None:
    """The first builder that answers; docker only if its daemon does.

    Args:
        works: whether a command ends well.
    """
    probes = {BUILDAH: [BUILDAH, "--version"], PODMAN: [PODMAN, "--version"], DOCKER: [DOCKER, "info"]}
    return next((builder for builder in BUILDERS if works(probes[builder])), None)


def commands(builder: str, wanted: Wanted) -> list[list[str]]:
    """What to run, one after another."""
    common = [f"--build-arg=PYTHON_IMAGE={wanted.python_image}"] if wanted.python_image else []
    if builder == DOCKER:
        common += [f"--platform={','.join(wanted.platforms)}"] if wanted.platforms else []
        # Attestations hold the time of the build.
        common += [f"--build-arg=SOURCE_DATE_EPOCH={wanted.epoch}", "--provenance=false", "--sbom=false"]
        output = f"--output=type=oci,dest={wanted.archive},name={wanted.name},rewrite-timestamp=true"
        return [[DOCKER, "buildx", "build", *common, output, str(wanted.sources)]]
    # Only newer ones know by themselves where they run.
    common.append(f"--build-arg=BUILDPLATFORM={wanted.machine}")
    common += ["--layers=false", f"--timestamp={wanted.epoch}", "--format=oci"]
    target = f"oci-archive:{wanted.archive}:{wanted.name}"
    if len(wanted.platforms) < 2:
        one = [f"--platform={each}" for each in wanted.platforms]
        build = [builder, "build", *common, *one, f"--tag={wanted.name}", str(wanted.sources)]
        return [build, [builder, "push", wanted.name, target]]
    # One after another: a single command lists them in the order in which they end, after those of an older list.
    tags = {platform: f"{wanted.name}-{platform.rpartition('/')[2]}" for platform in wanted.platforms}
    builds = [
        [builder, "build", *common, f"--platform={platform}", f"--tag={tag}", str(wanted.sources)]
        for platform, tag in tags.items()
    ]
    listed = f"{wanted.name}-list"
    create = [builder, "manifest", "create", listed, *tags.values()]
    return [
        *builds,
        create,
        [builder, "manifest", "push", "--all", listed, target],
        [builder, "manifest", "rm", listed],
    ]


def wheels(python: str, requirements: Path, directory: Path, platform: str, version: str) -> list[str]:
    """What fetches the distributions that an image of a platform needs, with the hashes of the lock file.

    Args:
        python: an interpreter with pip.
        requirements: the lock file.
        directory: where they go.
        platform: linux/amd64 or linux/arm64.
        version: of Python in the base image, such as 3.12.
    """
    machine = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[platform]
    tags = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (36, 34, 31, 28, 27, 26, 24, 17)]
    tags.append(f"--platform=manylinux2014_{machine}")
    argv = [python, "-m", "pip", "download", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
    return [
        *argv,
        "--only-binary=:all:",
        f"--python-version={version}",
        *tags,
        f"--dest={directory}",
        f"-r{requirements}",
    ]
