"""The version before this one on a test cluster, from the repository's history."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from gpushare import names
from localcluster import installation
from localcluster.installation import Tree
from tests.e2e import former
from tests.e2e.conftest import CONFIG, PROFILE
from tests.e2e.system import System

COMMIT: Final = os.environ.get("UPGRADE_FROM", "1e2162766c65adda28ddfd84ff66ad204b803236")
"""By default the last one that knew neither CDI nor limits that hold."""
TAG: Final = "former"
WORKLOADS: Final = "deployments,daemonsets"


def tree(directory: Path) -> Tree:
    """Its sources. Without the repository's history there is no test here; CI has it."""
    argv = ["git", "-C", str(installation.ROOT), "archive", COMMIT]
    archived = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    if archived.returncode != 0:
        problem = f"no commit {COMMIT} here (git fetch --unshallow brings it): {archived.stderr.decode().strip()}"
        if "UPGRADE_FROM" in os.environ:
            pytest.fail(problem)
        pytest.skip(problem)
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archived.stdout, timeout=60, check=True)
    return Tree(directory, f"{installation.IMAGE.rpartition(':')[0]}:{TAG}")


def give_image(system: System, of: Tree) -> None:
    """Its image on all nodes."""
    archive = installation.build_image(system.cluster, of)
    system.cluster.import_image(archive)
    archive.unlink()


def remove(system: System) -> None:
    """This project, so that the former version is installed on a cluster that has never seen this one."""
    kubectl = system.cluster.kubectl
    kubectl("delete", former.WEBHOOKS, "gpushare-webhook")
    kubectl("delete", "-k", str(system.cluster.workdir / "kustomization"), "--ignore-not-found", timeout_s=300)
    nodes = [node.name for node in system.cluster.nodes]
    kubectl("annotate", "nodes", *nodes, f"{names.ANNOTATION_INVENTORY}-")


def overlay(system: System, of: Tree, config: Mapping[str, str] | None = None, profile: str = PROFILE) -> str:
    """A user's kustomization with this version."""
    return str(installation.kustomization(system.cluster, {**CONFIG, **(config or {})}, profile, of))


def apply(system: System, of: Tree, config: Mapping[str, str] | None = None, profile: str = PROFILE) -> None:
    """Install it, whatever was there."""
    system.cluster.kubectl("apply", "-k", overlay(system, of, config, profile), timeout_s=300)


def wait_rolled(system: System, of: Tree) -> None:
    """Until every part runs in this version and in no other, and answers."""

    def others() -> list[str]:
        pods = system.pods(names.NAMESPACE)
        return [
            f"{pod['metadata']['name']}: {container['image']}"
            for pod in pods
            for container in pod["spec"]["containers"]
            if container["image"].rpartition("/")[2].startswith("gpushare:")
            and container["image"].rpartition(":")[2] != of.image.rpartition(":")[2]
        ]

    system.eventually("no pod of another version", lambda: not others())
    installation.wait_ready(system.cluster)
    former.webhooks_work(system)
