"""The manifests as Python objects."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
SERVERS = ("1.20", "1.23", "1.25", "1.30")
"""The oldest Kubernetes of each range that has manifests of its own."""


class _Strict(yaml.CSafeLoader):
    """Refuses a key that is there twice, of which YAML else keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise ValueError(f"{node.start_mark}: a key is there twice")
        return super().construct_mapping(node, deep)


def documents(path: Path) -> list[Json]:
    return read(path.read_text())


def read(text: str) -> list[Json]:
    return [document for document in yaml.load_all(text, _Strict) if document]  # safe: a SafeLoader


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


def installed(server: str = "1.30", gpus: str = "nvidia", *, whole_gpus: bool = False) -> list[Json]:
    """All objects of an installation without optional components."""
    return listed(f"gpus/{gpus}") + listed(f"{'whole-gpus' if whole_gpus else 'servers'}/{server}")


def patches(component: str) -> list[Json]:
    """What an optional component changes."""
    [kustomization] = documents(MANIFESTS / component / "kustomization.yaml")
    return [patch for text in kustomization.get("patchesStrategicMerge", ()) for patch in read(text)]


def listed(directory: str) -> list[Json]:
    """The objects of all files that a kustomization rests on, unpatched."""
    return [found for path in kustomized(MANIFESTS / directory) for found in documents(path)]


def kustomized(directory: Path) -> Iterator[Path]:
    """The resource files of a kustomization and of all that it rests on."""
    [kustomization] = documents(directory / "kustomization.yaml")
    for base in kustomization.get("bases", ()):
        yield from kustomized((directory / base).resolve())
    yield from (directory / name for name in kustomization.get("resources", ()))


def settings_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container.get("env", ())}
