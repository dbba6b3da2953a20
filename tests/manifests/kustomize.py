"""What `kubectl apply -k` sends: rendered once for each kubectl and each content of the manifests."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from localcluster import provision
from localcluster.provision import Version
from testing.manifests import tree
from testing.manifests.tree import MANIFESTS, Json

COMPONENTS_SINCE: Final = Version(1, 21)


@dataclass(frozen=True)
class Kubectl:
    """One kubectl of this machine."""

    path: Path
    version: Version
    renders: Path
    """A directory that outlives the run; what is in it is named by all that it depends on."""

    @property
    def has_components(self) -> bool:
        """Whether its kustomize knows components."""
        return self.version >= COMPONENTS_SINCE

    def build(self, overlay: str, manifests: Path = MANIFESTS) -> list[Json]:
        """The objects of an overlay."""
        return self._rendered(overlay, manifests, lambda _: manifests / "overlays" / overlay)

    def with_components(self, *components: str, bases: Sequence[str] = ("gpus/nvidia", "servers/1.30")) -> list[Json]:
        """What it makes of an overlay with optional components; kubectl 1.20 gets them as copies of their files.

        Args:
            components: directories of the manifests.
            bases: what the overlay is put together from.
        """

        def overlay(directory: Path) -> Path:
            return _overlay(directory, components, bases, has_components=self.has_components)

        return self._rendered(f"{components} on {bases}", MANIFESTS, overlay)

    def _rendered(self, what: str, manifests: Path, overlay: Callable[[Path], Path]) -> list[Json]:
        kept = (
            self.renders / hashlib.sha256(b"\0".join([*self._maker(), what.encode(), *_content(manifests)])).hexdigest()
        )
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=self.renders) as directory:
                argv = [str(self.path), "kustomize", str(overlay(Path(directory)))]
                built = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
                (written := Path(directory) / "objects").write_text(
                    json.dumps(tree.read(built.stdout)), encoding="utf-8"
                )
                written.replace(kept)
        found: list[Json] = json.loads(kept.read_text(encoding="utf-8"))
        return found

    def _maker(self) -> Iterable[bytes]:
        facts = self.path.stat()
        yield from (f"{self.path} {facts.st_size} {facts.st_mtime_ns}".encode(), Path(__file__).read_bytes())


def _content(manifests: Path) -> Iterable[bytes]:
    for path in sorted(manifests.rglob("*")):
        if path.is_file() and "chart" not in (name := path.relative_to(manifests)).parts:
            yield from (str(name).encode(), path.read_bytes())


def _overlay(directory: Path, components: Sequence[str], bases: Sequence[str], *, has_components: bool) -> Path:
    for path in MANIFESTS.iterdir():
        if path.is_dir() and path.name not in {"overlays", "chart"}:
            (directory / path.name).symlink_to(path)
    mine = directory / "overlays/mine"
    mine.mkdir(parents=True)
    overlay: Json = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "bases": [f"../../{base}" for base in bases],
    }
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


def kubectls(renders: Path) -> list[Kubectl]:
    """Every kubectl on this machine: of the test cluster's Kubernetes, and the user's own."""
    assets = os.environ.get(provision.ASSETS_VARIABLE)
    found = [Path(assets) / "kubectl"] if assets else []
    found += sorted(provision.cache_directory().glob("kubernetes-*/kubectl"))
    if own := shutil.which("kubectl"):
        found.append(Path(own))
    return [
        Kubectl(path, Version.parse(provision.output([str(path), "version", "--client"])), renders)
        for path in found
        if os.access(path, os.X_OK)
    ]
