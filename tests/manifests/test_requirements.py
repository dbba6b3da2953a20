"""Lock files and the image: what is installed is written down, with hashes and without addresses."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]
FILES = {
    "dev.txt": ["build", "cli", "controller", "device-plugin", "webhook", "dev"],
    "image.txt": ["build", "controller", "device-plugin", "webhook"],
}


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / name).read_text()
    return {found[1].lower(): found[2] for found in re.finditer(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE)}


@pytest.mark.parametrize("name", [*FILES, "jupyterhub.txt"])
def test_a_lock_file_has_a_hash_for_every_version_and_no_address(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    blocks = [block for block in re.split(r"\n(?=\S)", text) if not block.startswith("#")]
    assert len(blocks) == len(pins(name))
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text
    assert "--find-links" not in text


@pytest.mark.parametrize("name", FILES)
def test_a_lock_file_holds_what_the_project_asks_for(name: str) -> None:
    locked = pins(name)
    wanted = EXTRAS["dependencies"] + [each for extra in FILES[name] for each in EXTRAS["optional-dependencies"][extra]]
    for requirement in map(Requirement, wanted):
        if requirement.name != "gpushare":
            assert requirement.specifier.contains(locked[requirement.name.lower()]), f"{requirement}: run make lock"


def test_kubespawner_is_locked_apart_from_what_the_project_uses() -> None:
    [requirement] = map(Requirement, PROJECT["dependency-groups"]["jupyterhub"])
    assert requirement.specifier.contains(pins("jupyterhub.txt")[requirement.name])
    assert requirement.name not in pins("dev.txt")


def test_the_page_on_jupyterhub_names_the_versions_that_are_tried() -> None:
    locked = pins("jupyterhub.txt")
    told = f"KubeSpawner {locked['jupyterhub-kubespawner']} with JupyterHub {locked['jupyterhub']}"
    assert told in (ROOT / "docs" / "jupyterhub.md").read_text(encoding="utf-8")


def test_the_image_and_the_development_environment_have_the_same_versions() -> None:
    dev = pins("dev.txt")
    assert {name: dev[name] for name in pins("image.txt")} == pins("image.txt")


def test_the_image_leaves_out_the_client_library_that_only_kubeconfigs_need() -> None:
    assert "kubernetes" not in pins("image.txt")


def test_the_base_image_has_an_exact_tag_and_its_digest_is_an_argument() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+$", dockerfile, re.MULTILINE)
    assert re.findall(r"^FROM (?:--platform=\S+ )?(\S+)", dockerfile, re.MULTILINE) == ["${PYTHON_IMAGE}"] * 2
    assert "COPY requirements/image.txt wheels* wheels/" in dockerfile
    assert "--require-hashes --requirement wheels/image.txt" in dockerfile
