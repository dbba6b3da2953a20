"""The chart as Helm renders it, and as kubectl makes the same from the kustomizations."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import helm_python
import yaml

from testing.manifests import tree
from testing.manifests.tree import MANIFESTS, Json

CHART = MANIFESTS / "chart"
NAMESPACE = "gpushare-system"
NO_REGISTRY = "docker.io/library"  # what a container runtime takes where no registry is named


def render(values: Json, namespace: str = NAMESPACE, chart: Path = CHART) -> list[Json]:
    """All objects, from all templates.

    Raises:
        helm_python.HelmError: Helm refuses the values.
    """
    loaded, values = _loaded(chart), merged({"image": {"registry": NO_REGISTRY}}, values)
    loaded.validate_schema(values)
    return documents(loaded.render(values, name="gpushare", namespace=namespace))


@functools.cache
def _loaded(chart: Path) -> helm_python.Chart:
    return helm_python.Chart.load(chart)


def documents(rendered: Mapping[str, str]) -> list[Json]:
    """The objects of what Helm has rendered, by template."""
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def normal(objects: list[Json]) -> dict[tuple[str, str, str], Json]:
    """By kind, namespace and name; lists of named things in the order of names, which is all that may differ."""
    return {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): _sorted(each)
        for each in objects
    }


def _sorted(value: Any) -> Any:
    match value:
        case dict():
            return {key: _by_name(key, _sorted(each)) for key, each in value.items()}
        case list():
            return [_sorted(each) for each in value]
        case _:
            return value


def _by_name(key: str, value: Any) -> Any:
    by = {"env": "name", "volumes": "name", "volumeMounts": "mountPath"}.get(key)
    is_named = bool(by) and isinstance(value, list) and all(isinstance(each, dict) for each in value)
    return sorted(value, key=lambda each: str(each[by])) if is_named else value


def without_helms_own(objects: list[Json]) -> list[Json]:
    """The same without the labels and the two annotations that only Helm needs, and without a registry."""
    for each in objects:
        metadata = each["metadata"]
        for label in ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"):
            metadata.get("labels", {}).pop(label, None)
        if metadata.get("annotations") == {"helm.sh/resource-policy": "keep"}:
            del metadata["annotations"]
        for container in each.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            container["image"] = container["image"].removeprefix(f"{NO_REGISTRY}/")
        template = each.get("spec", {}).get("template", {}).get("metadata", {})
        if template.get("annotations", {}).pop("checksum/config", None) and not template["annotations"]:
            del template["annotations"]
    return objects


def merged(one: Json, other: Json) -> Json:
    """The values of both."""
    both = {key: merged(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(one[key], dict)}
    return {**one, **other, **both}


BASE: Final[Json] = {"kubeVersion": "1.36.0", "image": {"registry": NO_REGISTRY}}


def objects(**values: Any) -> list[Json]:
    """With these values, for a new cluster."""
    return render({**BASE, **values})


def notes(**values: Any) -> str:
    """What Helm prints after an installation with these values."""
    rendered = _loaded(CHART).render({**BASE, **values}, name="gpushare", namespace=NAMESPACE)
    return str(rendered["gpushare/templates/NOTES.txt"])


def pod(found: list[Json], name: str) -> Json:
    """The pod spec of a workload."""
    return dict(tree.workloads(found))[name]


def variables(found: list[Json], name: str) -> dict[str, str]:
    """Of its container."""
    return tree.settings_of(pod(found, name)["containers"][0])
