"""The Helm chart renders to the objects of the kustomizations."""

from pathlib import Path

import pytest

from testing.manifests import helm, tree
from testing.manifests.tree import SERVERS, Json

KUBECTLS = tree.kubectls()
WATCHDOGS = {"none": (), "report": ("usage",), "evict": ("watchdog-evict",), "kill": ("watchdog-kill",)}
GPUS = ("nvidia", "simulated")
OTHERS: dict[str, Json] = {
    "dashboard": {"dashboard": {"enabled": True}},
    "placeholders": {"placeholders": 10},
    "openshift": {"openshift": {"enabled": True}},
}
NO_PARTS = {"chart", "overlays", "samples"}
LIMITS: list[tuple[str, ...]] = [(), ("cgroup",), ("mps",), ("mps", "cgroup")]


def same(values: Json, kubectl: Path, directory: Path, *components: str, bases: tuple[str, ...]) -> None:
    built = tree.with_components(kubectl, directory, *components, bases=bases)
    rendered = helm.without_helms_own(helm.render(values, namespace="default"))
    assert helm.normal(rendered) == helm.normal(built)


@pytest.mark.skipif(not KUBECTLS, reason="there is no kubectl to compare with")
@pytest.mark.parametrize("whole", [False, True], ids=["shared", "whole"])
@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize("server", SERVERS)
def test_helm_and_kubectl_make_the_same_objects(server: str, gpus: str, whole: bool, tmp_path: Path) -> None:
    values = {"kubeVersion": f"{server}.0", "gpus": gpus, "wholeGpus": whole, "namespace": {"create": True}}
    values["scheduler"] = {"image": {"tag": "v1.30.0"}}  # what base/ has; an overlay writes another
    bases = (f"whole-gpus/{gpus}", f"whole-gpus/{server}") if whole else (f"gpus/{gpus}", f"servers/{server}")
    same(values, KUBECTLS[-1], tmp_path, bases=bases)


@pytest.mark.skipif(not KUBECTLS, reason="there is no kubectl to compare with")
@pytest.mark.parametrize("limits", LIMITS, ids=",".join)
@pytest.mark.parametrize("watchdog", WATCHDOGS)
def test_the_same_with_components(watchdog: str, limits: tuple[str, ...], tmp_path: Path) -> None:
    values: Json = {"kubeVersion": "1.30.0", "watchdog": watchdog, "namespace": {"create": True}}
    values["limits"] = dict.fromkeys(limits, True)
    components = [*WATCHDOGS[watchdog], *(f"limits/{each}" for each in limits)]
    same(values, KUBECTLS[-1], tmp_path, *components, bases=("gpus/nvidia", "servers/1.30"))


@pytest.mark.skipif(not KUBECTLS, reason="there is no kubectl to compare with")
@pytest.mark.parametrize("component", OTHERS)
def test_the_same_with_what_has_one_value(component: str, tmp_path: Path) -> None:
    values: Json = {"kubeVersion": "1.30.0", "namespace": {"create": True}} | OTHERS[component]
    same(values, KUBECTLS[-1], tmp_path, component, bases=("gpus/nvidia", "servers/1.30"))


@pytest.mark.skipif(not KUBECTLS, reason="there is no kubectl to compare with")
def test_the_same_with_everything_at_once(tmp_path: Path) -> None:
    values: Json = {"kubeVersion": "1.25.0", "namespace": {"create": True}, "wholeGpus": True, "watchdog": "kill"}
    values |= {"limits": {"mps": True, "cgroup": True}, "scheduler": {"image": {"tag": "v1.30.0"}}}
    for each in OTHERS.values():
        values |= each
    components = ["watchdog-kill", "limits/mps", "limits/cgroup", *OTHERS]
    same(values, KUBECTLS[-1], tmp_path, *components, bases=("whole-gpus/nvidia", "whole-gpus/1.25"))


def test_the_chart_reaches_every_directory_of_the_manifests() -> None:
    links = {path.name: path.resolve() for path in (helm.CHART / "files").iterdir()}
    assert links == {
        path.name: path for path in tree.MANIFESTS.iterdir() if path.is_dir() and path.name not in NO_PARTS
    }


def test_every_kustomization_has_a_counterpart_among_the_values() -> None:
    """One that is new needs a value, a line in `templates/objects.yaml`, and its place in the tests above."""
    compared = {"base", *OTHERS, *(f"gpus/{gpus}" for gpus in GPUS), *(f"servers/{server}" for server in SERVERS)}
    compared |= {f"whole-gpus/{each}" for each in (*GPUS, *SERVERS)}
    compared |= {f"limits/{each}" for each in sum(LIMITS, ())} | {*sum(WATCHDOGS.values(), ())}
    compared |= {"monitoring"}  # in test_monitoring.py
    found = {path.parent.relative_to(tree.MANIFESTS) for path in tree.MANIFESTS.rglob("kustomization.yaml")}
    assert compared == {str(path) for path in found if path.parts[0] not in NO_PARTS}
