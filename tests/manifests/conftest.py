"""Every kubectl of this machine, and what its `apply -k` sends."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml

from localcluster import provision
from localcluster.provision import Version
from testing.manifests import tree
from testing.manifests.tree import MANIFESTS, Json

COMPONENTS_SINCE: Final = Version(1, 21)


@dataclass(frozen=True)
class Kubectl:
    """One kubectl of this machine."""

    path: str
    version: Version

    def build(self, overlay: str, manifests: Path = MANIFESTS) -> list[Json]:
        """The objects of an overlay."""
        return self._rendered(manifests / "overlays" / overlay)

    def with_components(self, *components: str, bases: Sequence[str] = ("gpus/nvidia", "servers/1.30")) -> list[Json]:
        """What it makes of an overlay of `bases` with optional components, which are directories of the manifests.

        kubectl 1.20, whose kustomize knows no components, gets them as copies of their files.
        """
        with tempfile.TemporaryDirectory() as directory:
            is_known = self.version >= COMPONENTS_SINCE
            return self._rendered(_overlay(Path(directory), components, bases, has_components=is_known))

    def _rendered(self, overlay: Path) -> list[Json]:
        argv = [self.path, "kustomize", str(overlay)]
        return tree.read(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout)


def _overlay(directory: Path, components: Sequence[str], bases: Sequence[str], *, has_components: bool) -> Path:
    for path in MANIFESTS.iterdir():
        if path.is_dir() and path.name not in {"overlays", "chart"}:
            (directory / path.name).symlink_to(path)
    mine = directory / "overlays/mine"
    mine.mkdir(parents=True)
    overlay: Json = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    overlay["bases"] = [f"../../{base}" for base in bases]
    if has_components:
        overlay["components"] = [f"../../{name}" for name in components]
    else:
        overlay |= _copied(mine, components)
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    return mine


def _copied(overlay: Path, components: Iterable[str]) -> dict[str, list[str]]:
    """As manifests/README.md says for kubectl 1.20."""
    lists: dict[str, list[str]] = {"patchesStrategicMerge": [], "resources": []}
    for component in components:
        name = component.replace("/", "-")
        [kustomization] = tree.documents(MANIFESTS / component / "kustomization.yaml")
        for number, patch in enumerate(kustomization.get("patchesStrategicMerge", ())):
            if "SYS_ADMIN" in patch or "KILL" not in patch or "limits/cgroup" not in components:
                lists["patchesStrategicMerge"].append(f"{name}-{number}.yaml")
                (overlay / lists["patchesStrategicMerge"][-1]).write_text(patch, encoding="utf-8")
        for file in kustomization.get("resources", ()):
            lists["resources"].append(f"{name}-{file}")
            shutil.copy(MANIFESTS / component / file, overlay / lists["resources"][-1])
    return lists


@pytest.fixture(scope="session")
def kubectls() -> list[Kubectl]:
    """At least one: of the test cluster's Kubernetes, and the user's own."""
    assets = os.environ.get(provision.ASSETS_VARIABLE)
    found = [Path(assets) / "kubectl"] if assets else []
    found += sorted(provision.cache_directory().glob("kubernetes-*/kubectl"))
    if own := shutil.which("kubectl"):
        found.append(Path(own))
    if not (programs := [str(path) for path in found if os.access(path, os.X_OK)]):
        pytest.skip("there is no kubectl: python -m localcluster.provision")
    return [Kubectl(path, Version.parse(provision.output([path, "version", "--client"]))) for path in programs]
