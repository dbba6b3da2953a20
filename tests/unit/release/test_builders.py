"""What builders of images are told."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from release import builders, contents
from release.builders import BUILDAH, DOCKER, PODMAN, Wanted

ROOT = Path(__file__).parents[3]
LOCK_FILE = (ROOT / "requirements" / "image.txt").read_text()
ONE = Wanted(
    name="gpushare:1", sources=Path("/src"), machine="linux/amd64", epoch=1700000000, archive=Path("/out/image.tar")
)
BOTH = replace(ONE, platforms=builders.PLATFORMS, python_image="mirror/python:3.12")


@pytest.mark.parametrize(
    ("working", "chosen"),
    [((BUILDAH, PODMAN, DOCKER), BUILDAH), ((PODMAN, DOCKER), PODMAN), ((DOCKER,), DOCKER), ((), None)],
)
def test_the_first_builder_that_works_is_taken(working: Sequence[str], chosen: str | None) -> None:
    assert builders.choose(lambda command: command[0] in working) == chosen


def test_docker_counts_only_if_its_daemon_answers() -> None:
    assert builders.choose(lambda command: list(command) == ["docker", "--version"]) is None
    assert builders.choose(lambda command: list(command) == ["docker", "info"]) == DOCKER


@pytest.mark.parametrize("builder", [BUILDAH, PODMAN])
def test_buildah_and_podman_date_everything_alike(builder: str) -> None:
    [build, save] = builders.commands(builder, ONE)
    assert build[:2] == [builder, "build"]
    assert {"--layers=false", "--timestamp=1700000000", "--format=oci", "--tag=gpushare:1"} <= set(build)
    assert save == [builder, "push", "gpushare:1", "oci-archive:/out/image.tar:gpushare:1"]
    [amd64, arm64, create, push, remove] = builders.commands(builder, BOTH)
    assert {"--platform=linux/amd64", "--tag=gpushare:1-amd64"} <= set(amd64)
    assert {"--platform=linux/arm64", "--tag=gpushare:1-arm64"} <= set(arm64)
    assert {"--build-arg=PYTHON_IMAGE=mirror/python:3.12", "--build-arg=BUILDPLATFORM=linux/amd64"} <= set(arm64)
    assert create == [builder, "manifest", "create", "gpushare:1-list", "gpushare:1-amd64", "gpushare:1-arm64"]
    assert push[:5] == [builder, "manifest", "push", "--all", "gpushare:1-list"]
    assert remove == [builder, "manifest", "rm", "gpushare:1-list"]


def test_docker_rewrites_times_and_leaves_out_what_holds_one() -> None:
    [build] = builders.commands(DOCKER, BOTH)
    assert {"--build-arg=SOURCE_DATE_EPOCH=1700000000", "--provenance=false", "--sbom=false"} <= set(build)
    assert "--output=type=oci,dest=/out/image.tar,name=gpushare:1,rewrite-timestamp=true" in build
    assert "--platform=linux/amd64,linux/arm64" in build


@pytest.mark.parametrize(("platform", "machine"), [("linux/amd64", "x86_64"), ("linux/arm64", "aarch64")])
def test_wheels_are_fetched_for_the_platform_with_the_hashes_of_the_lock_file(platform: str, machine: str) -> None:
    argv = builders.wheels("python3", Path("image.txt"), Path("wheels"), platform, "3.12")
    assert {"--require-hashes", "--only-binary=:all:", "--python-version=3.12", "-rimage.txt"} <= set(argv)
    tags = [each for each in argv if each.startswith("--platform=")]
    assert tags
    assert all(each.endswith(machine) for each in tags)


def test_the_bill_lists_what_the_image_has_and_not_what_builds_it() -> None:
    found = json.loads(contents.bill("0.1.0", LOCK_FILE, "python:3.12"))
    listed = {each["name"]: each.get("version") for each in found["components"]}
    assert listed.pop("python:3.12") is None
    assert listed["flask"]
    assert "setuptools" not in listed
    assert len(listed) == LOCK_FILE.count("==") - 1
    assert sorted(each["bom-ref"] for each in found["components"]) == sorted(found["dependencies"][0]["dependsOn"])
    assert contents.bill("0.1.0", LOCK_FILE, "python:3.12") == json.dumps(found, indent=1) + "\n"


def test_no_program_of_the_images_own_platform_is_run_to_build_it() -> None:
    _, first, last = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert first.startswith("--platform=$BUILDPLATFORM ")
    assert "\nRUN " in first
    assert "\nRUN " not in last
