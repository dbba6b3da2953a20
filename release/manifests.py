"""What kubectl takes, rendered from the chart: base/, gpus/, servers/, whole-gpus/ and the optional components.

`make docs` writes the files, and a test compares them. What a kustomization is put together from is written by hand.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from testing.manifests import helm
from testing.manifests.tree import MANIFESTS, SERVERS, Json

GPUS: Final = ("nvidia", "simulated")
NEWEST: Final = SERVERS[-1]
COMPONENTS: Final[Mapping[str, Json]] = {
    "usage": {"watchdog": "report"},
    "watchdog-evict": {"watchdog": "evict"},
    "watchdog-kill": {"watchdog": "kill"},
    "limits/cgroup": {"limits": {"cgroup": True}},
    "limits/mps": {"limits": {"mps": True}},
    "dashboard": {"dashboard": {"enabled": True}},
    "placeholders": {"placeholders": 10},
    "dra": {"dra": {"enabled": True}, "kubeVersion": "1.36.0"},
    "openshift": {"openshift": {"enabled": True}},
    "monitoring": {
        "monitoring": {kind: {"enabled": True} for kind in ("podMonitor", "serviceMonitor", "rules", "dashboards")},
        "networkPolicy": {"prometheusNamespaces": ["monitoring"]},
    },
}
"""Optional components, with the values of the chart that stand for each."""
HEAD: Final = "# Rendered from manifests/chart by `make docs`; do not edit it, but patch it in an overlay.\n"
_MERGED_BY: Final = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}

Key = tuple[str, str, str]
Objects = Mapping[Key, Json]


def rendered(values: Json) -> dict[Key, Json]:
    """Objects by kind, namespace and name, in the chart's order, without what only Helm needs."""
    shared: Json = {
        "kubeVersion": f"{NEWEST}.0",
        "namespace": {"create": True},
        "scheduler": {"image": {"tag": f"v{NEWEST}.0"}},  # overlays write another
    }
    found = helm.without_helms_own(helm.render(helm.merged(shared, values), namespace="default"))
    return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in found}


def split() -> dict[str, list[Json]]:
    """Path of a file -> its objects: what is always the same in base/, else by what it depends on.

    Raises:
        ValueError: An object depends on the kind of GPUs, and on the server or whole GPUs as well.
    """
    on = {
        (server, gpus, whole): rendered({"kubeVersion": f"{server}.0", "gpus": gpus, "wholeGpus": whole})
        for server, gpus, whole in itertools.product(SERVERS, GPUS, (False, True))
    }
    files: dict[str, list[Json]] = {}
    for key in dict.fromkeys(key for objects in on.values() for key in objects):
        found = {where: objects.get(key) for where, objects in on.items()}
        by_gpus = _depends(found, lambda where: where[1])
        by_server = _depends(found, lambda where: (where[0], where[2]))
        if by_gpus is not None:
            places = {f"gpus/{gpus}/{_file_of_gpus(key)}": each for gpus, each in by_gpus.items()}
            if len({repr(each) for each in by_gpus.values()}) == 1:
                places = {
                    f"base/{'scheduler' if 'scheduler' in key[2] else 'gpushare'}.yaml": next(iter(by_gpus.values()))
                }
        elif by_server is not None:
            places = {
                f"{'whole-gpus' if whole else 'servers'}/{s}/objects.yaml": o for (s, whole), o in by_server.items()
            }
        else:
            raise ValueError(
                f"{key}: depends on the kind of GPUs, and on the server or whole GPUs: there is no file for it"
            )
        for path, each in places.items():
            if each is not None:
                files.setdefault(path, []).append(each)
    return files


def _depends(found: Mapping[Any, Json | None], on: Any) -> dict[Any, Json | None] | None:
    """The object by what it depends on, if that decides it."""
    by: dict[Any, Json | None] = {}
    for where, each in found.items():
        if by.setdefault(on(where), each) != each:
            return None
    return by


def _file_of_gpus(key: Key) -> str:
    return {"RuntimeClass": "runtimeclass.yaml", "ConfigMap": "profile.yaml"}.get(key[0], "device-plugin.yaml")


def component(name: str) -> tuple[list[Json], list[Json]]:
    """Objects that a component adds, and strategic merge patches of those that it changes.

    Raises:
        ValueError: It removes something, which no such patch can.
    """
    before, after = rendered({}), rendered(dict(COMPONENTS[name]))
    added = [each for key, each in after.items() if key not in before]
    patches = []
    for key, each in before.items():
        if change := difference(each, after[key]):
            named = {"apiVersion": each["apiVersion"], "kind": key[0]}
            metadata = {"name": key[2]} | ({"namespace": key[1]} if key[1] else {})
            patches += [named | helm.merged({"metadata": metadata}, part) for part in _apart(change)]
    return added, patches


def _apart(change: Json) -> Iterator[Json]:
    """Capabilities in a patch of their own: two components may add some, and the last list replaces the others."""
    containers = change.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    contexts = [
        {"name": each["name"], "securityContext": each.pop("securityContext")}
        for each in containers
        if "securityContext" in each
    ]
    yield change
    if contexts:
        yield {"spec": {"template": {"spec": {"containers": contexts}}}}


def difference(before: Json, after: Json) -> Json:
    """What a strategic merge must add to the one to make the other of it."""
    if before.keys() - after.keys():
        raise ValueError(f"a component cannot remove {sorted(before.keys() - after.keys())}")
    found: Json = {}
    for key, value in after.items():
        old = before.get(key)
        if value == old:
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            found[key] = difference(old, value)
        elif isinstance(value, list) and isinstance(old, list) and key in _MERGED_BY:
            found[key] = list(_items(old, value, _MERGED_BY[key]))
        else:
            found[key] = value
    return found


def _items(before: Sequence[Json], after: Sequence[Json], by: str) -> Iterator[Json]:
    old = {each[by]: each for each in before}
    for each in after:
        if change := difference(old.get(each[by], {}), each):
            yield {by: each[by]} | change


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block; what is there twice is written twice."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _dump(value: Json) -> str:
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))


def _documents(objects: Sequence[Json]) -> str:
    return HEAD + "---\n".join(_dump(each) for each in objects)


def _kustomization(objects: Sequence[Json], patches: Sequence[Json]) -> str:
    found: Json = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
    if objects:
        found["resources"] = ["objects.yaml"]
    if patches:
        found["patchesStrategicMerge"] = [_dump(each) for each in patches]
    return HEAD + _dump(found)


def files() -> dict[Path, str]:
    """All files that are rendered."""
    found = {MANIFESTS / path: _documents(objects) for path, objects in split().items()}
    for name in COMPONENTS:
        objects, patches = component(name)
        found[MANIFESTS / name / "kustomization.yaml"] = _kustomization(objects, patches)
        if objects:
            found[MANIFESTS / name / "objects.yaml"] = _documents(objects)
    return found
