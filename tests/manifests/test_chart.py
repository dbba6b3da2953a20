"""kubectl makes of the kustomizations what Helm makes of the chart."""

import functools
from collections.abc import Sequence

import pytest

from release.manifests import COMPONENTS, GPUS
from testing.manifests import helm, tree
from testing.manifests.tree import SERVERS, Json
from tests.manifests.kustomize import Kubectl

TOGETHER = ("watchdog-kill", "limits/mps", "limits/cgroup", "dashboard", "placeholders", "openshift")
"""All that can be: the watchdog has one policy."""


def same(values: Json, *built: list[Json]) -> None:
    given = {"kubeVersion": "1.30.0", "namespace": {"create": True}} | values
    rendered = helm.normal(helm.without_helms_own(helm.render(given, namespace="default")))
    for objects in built:
        assert rendered == helm.normal(objects)
        assert len(rendered) == len(objects), "an object is there twice"


@pytest.mark.parametrize("overlay", tree.OVERLAYS)
def test_helm_makes_the_objects_of_an_overlay(overlay: str, kubectls: list[Kubectl]) -> None:
    kind, _, server = overlay.partition("-")
    values = {"kubeVersion": f"{server or '1.30'}.0", "gpus": "simulated" if kind == "simulated" else "nvidia"}
    same(values, *(kubectl.build(overlay) for kubectl in kubectls))


def same_on(bases: Sequence[str], values: Json, kubectls: list[Kubectl], *components: str) -> None:
    values = {**values, "scheduler": {"image": {"tag": "v1.30.0"}}}  # what base/ has; an overlay writes another
    same(values, *(kubectl.with_components(*components, bases=bases) for kubectl in kubectls))


@pytest.mark.parametrize(("server", "gpus"), [(server, GPUS[i % 2]) for i, server in enumerate(SERVERS)])
def test_the_same_with_whole_gpus(server: str, gpus: str, kubectls: list[Kubectl]) -> None:
    values = {"kubeVersion": f"{server}.0", "gpus": gpus, "wholeGpus": True}
    same_on((f"gpus/{gpus}", f"whole-gpus/{server}"), values, kubectls)


@pytest.mark.parametrize(
    "components", [*((each,) for each in COMPONENTS), ("watchdog-kill", "limits/cgroup")], ids="+".join
)
def test_the_same_with_components(components: Sequence[str], kubectls: list[Kubectl]) -> None:
    values = functools.reduce(helm.merged, (COMPONENTS[each] for each in components))
    same_on(("gpus/nvidia", "servers/1.30"), values, kubectls, *components)


def test_the_same_with_everything_at_once(kubectls: list[Kubectl]) -> None:
    values = functools.reduce(helm.merged, (COMPONENTS[each] for each in TOGETHER))
    values |= {"kubeVersion": "1.25.0", "wholeGpus": True}
    same_on(("gpus/nvidia", "whole-gpus/1.25"), values, kubectls, *TOGETHER)


def test_every_kustomization_has_a_counterpart_among_the_values() -> None:
    """One that is new needs a value, a row in `release.manifests.COMPONENTS`, and its place in the tests above."""
    compared = {"base", *COMPONENTS, *(f"gpus/{gpus}" for gpus in GPUS)}
    compared |= {f"{kind}/{server}" for kind in ("servers", "whole-gpus") for server in SERVERS}
    found = {path.parent.relative_to(tree.MANIFESTS) for path in tree.MANIFESTS.rglob("kustomization.yaml")}
    assert compared == {str(path) for path in found if path.parts[0] != "overlays"}
