"""The manifests as Python objects, and what an overlay makes of them."""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from localcluster import provision

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
SERVERS = sorted(path.name for path in (MANIFESTS / "servers").iterdir())


class _Strict(yaml.CSafeLoader):
    """Refuses a key that is there twice, of which YAML else keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise ValueError(f"{node.start_mark}: a key is there twice")
        return super().construct_mapping(node, deep)


def documents(path: Path) -> list[Json]:
    return [document for document in yaml.load_all(path.read_text(), _Strict) if document]  # safe: a SafeLoader


def is_json_patch(path: Path) -> bool:
    """Whether the file is one that a kustomization applies by `patchesJson6902`."""
    beside = path.parent / "kustomization.yaml"
    if not beside.is_file():
        return False
    [kustomization] = documents(beside)
    return path.name in [patch["path"] for patch in kustomization.get("patchesJson6902", ())]


@functools.cache
def _files(directory: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in directory.rglob("*.yaml") if path.name != "kustomization.yaml"))


def objects(directory: str) -> list[Json]:
    """All objects below a directory of the manifests."""
    return [found for path in _files(MANIFESTS / directory) for found in documents(path)]


def one(found: list[Json], kind: str, name: str) -> Json:
    [match] = [each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return match


def workloads(found: list[Json]) -> Iterator[tuple[str, Json]]:
    """Name and pod spec of everything that runs pods."""
    for each in found:
        if each["kind"] in {"Deployment", "DaemonSet", "StatefulSet"}:
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def build(overlay: str, kubectl: Path, manifests: Path = MANIFESTS) -> list[Json]:
    """What `kubectl apply -k` of this kubectl sends."""
    argv = [str(kubectl), "kustomize", str(manifests / "overlays" / overlay)]
    built = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return [document for document in yaml.load_all(built.stdout, _Strict) if document]  # safe: a SafeLoader


def with_components(
    kubectl: Path, directory: Path, *components: str, bases: Sequence[str] = ("gpus/nvidia", "servers/1.30")
) -> list[Json]:
    """What this kubectl makes of an overlay with optional components; kubectl 1.20 gets them as copies of their files.

    Args:
        kubectl: which one.
        directory: an empty one.
        components: directories of the manifests.
        bases: what the overlay is put together from.
    """
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
    if has_components(kubectl):
        overlay["components"] = [f"../../{name}" for name in components]
    else:
        overlay |= _copied(mine, components)
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    return build("mine", kubectl, directory)


def _copied(overlay: Path, components: Iterable[str]) -> dict[str, list[str]]:
    """As manifests/README.md says for kubectl 1.20."""
    lists: dict[str, list[str]] = {"patchesStrategicMerge": [], "resources": []}
    for component in components:
        [kustomization] = documents(MANIFESTS / component / "kustomization.yaml")
        for kind, names in lists.items():
            for file in kustomization.get(kind, ()):
                if (component, file) == ("watchdog-kill", "capability.yaml") and "limits/cgroup" in components:
                    continue
                names.append(f"{component.replace('/', '-')}-{file}")
                shutil.copy(MANIFESTS / component / file, overlay / names[-1])
    return lists


def has_components(kubectl: Path) -> bool:
    """Whether this kubectl is 1.21 or newer."""
    return "kubernetes-1.20" not in str(kubectl)


def listed(directory: str) -> list[Json]:
    """The objects of all files that a kustomization rests on, unpatched."""
    return [found for path in kustomized(MANIFESTS / directory) for found in documents(path)]


def kustomized(directory: Path) -> Iterator[Path]:
    """The resource files of a kustomization and of all that it rests on."""
    [kustomization] = documents(directory / "kustomization.yaml")
    for base in kustomization.get("bases", ()):
        yield from kustomized((directory / base).resolve())
    yield from (directory / name for name in kustomization.get("resources", ()))


def kubectls() -> list[Path]:
    """Every kubectl on this machine: of the test cluster's Kubernetes, and the user's own."""
    assets = os.environ.get(provision.ASSETS_VARIABLE)
    found = [Path(assets) / "kubectl"] if assets else []
    found += sorted(provision.cache_directory().glob("kubernetes-*/kubectl"))
    if own := shutil.which("kubectl"):
        found.append(Path(own))
    return [path for path in found if os.access(path, os.X_OK)]


def settings_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container.get("env", ())}
