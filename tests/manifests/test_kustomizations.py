"""The kustomizations' files, of which kubectl makes what Helm makes of the chart."""

import functools
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from gpushare import names
from release.manifests import COMPONENTS, GPUS
from testing import pages
from testing.manifests import helm, tree
from testing.manifests.tree import MANIFESTS, OVERLAYS, SERVERS, Json
from tests.manifests.conftest import Kubectl

KUSTOMIZATIONS = sorted(MANIFESTS.rglob("kustomization.yaml"), key=str)
OLD_FIELDS = {"apiVersion", "kind", "bases", "resources", "patchesStrategicMerge", "images"}
ALL = [each for name in ("base", "gpus", "servers", "whole-gpus", *COMPONENTS) for each in tree.objects(name)]


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: str(path.parent.relative_to(MANIFESTS)))
def test_a_kustomization_uses_every_file_beside_it_and_only_fields_that_kubectl_1_20_knows(path: Path) -> None:
    [found] = tree.documents(path)
    assert set(found) <= OLD_FIELDS
    assert "patches:" not in path.read_text()  # kubectl 1.20 replaces this text wherever it stands
    assert sorted(found.get("resources", ())) == sorted(
        each.name for each in path.parent.glob("*.yaml") if each != path
    )
    assert all(
        (path.parent / base / "kustomization.yaml").is_file()
        for base in [*found.get("bases", ()), *found.get("components", ())]
    )


def test_what_is_left_out_is_left_out_by_the_patches_that_the_pages_show(
    kubectls: list[Kubectl], tmp_path: Path
) -> None:
    shown = [each for page in ("install", "gpu-operator") for each in pages.blocks(f"docs/{page}.md", "yaml")]
    patches = [each for text in shown if "$patch" in text for each in yaml.safe_load(text)["patchesStrategicMerge"]]
    changed = Path(shutil.copytree(MANIFESTS, tmp_path / "manifests"))
    for overlay in (overlay for overlay in OVERLAYS if overlay.startswith("production")):
        path = changed / "overlays" / overlay / "kustomization.yaml"
        [kustomization] = tree.documents(path)
        (path.parent / "patches.yaml").write_text("\n---\n".join(patches), encoding="utf-8")  # a file, for kubectl 1.20
        path.write_text(yaml.safe_dump(kustomization | {"patchesStrategicMerge": ["patches.yaml"]}), encoding="utf-8")
        for kubectl in kubectls:
            objects = kubectl.build(overlay, changed)
            built = dict(tree.workloads(objects))
            assert set(built) == {names.CONTROLLER, names.WEBHOOK, names.PLUGIN}
            assert "RuntimeClass" not in {each["kind"] for each in objects}
            assert "runtimeClassName" not in built[names.PLUGIN]
            pods = tree.one(objects, "DaemonSet", names.PLUGIN)["spec"]["template"]["metadata"]
            assert pods["annotations"] == {"nvidia.cdi.k8s.io/container.device-plugin": "management.nvidia.com/gpu=all"}


def test_servers_have_overlays_for_both_kinds_of_gpus_that_add_nothing() -> None:
    suffixes = ["" if server == "1.30" else f"-{server}" for server in SERVERS]
    assert {f"{kind}{suffix}" for kind in ("production", "simulated") for suffix in suffixes} == set(OVERLAYS)
    for overlay in OVERLAYS:
        assert [path.name for path in (MANIFESTS / "overlays" / overlay).iterdir()] == ["kustomization.yaml"]


def test_api_versions_fit_the_servers() -> None:
    for server in SERVERS:
        version = "policy/v1beta1" if server == "1.20" else "policy/v1"
        budgets = [each for each in tree.listed(f"servers/{server}") if each["kind"] == "PodDisruptionBudget"]
        assert {each["apiVersion"] for each in budgets} == {version}


def test_every_port_names_its_protocol_for_server_side_apply_of_old_servers() -> None:
    """Ports are told apart by number and protocol, and servers before 1.23 fill in no default there."""
    specs = dict(tree.workloads(ALL))
    assert specs.keys() >= {names.WEBHOOK, names.CONTROLLER, names.SCHEDULER, names.PLUGIN}
    ports = [port for _, spec in tree.workloads(ALL) for each in spec["containers"] for port in each.get("ports", ())]
    ports += [port for each in ALL if each["kind"] == "Service" for port in each["spec"]["ports"]]
    assert ports
    assert {port.get("protocol") for port in ports} == {"TCP"}


def test_every_object_has_the_recommended_labels_and_no_selector_has_more_than_the_name() -> None:
    """Selectors cannot be changed: with another one neither `kubectl apply` nor `helm upgrade` would go through."""
    for each in ALL:
        found = each["metadata"]["labels"]
        assert found.keys() >= {f"app.kubernetes.io/{key}" for key in ("name", "part-of", "version")}, each["metadata"]
        if "template" in (spec := each.get("spec", {})):
            assert spec["selector"] == {"matchLabels": {"app.kubernetes.io/name": each["metadata"]["name"]}}
            labels = spec["template"]["metadata"]["labels"]
            assert set(labels) == {"app.kubernetes.io/name", "app.kubernetes.io/part-of"}


def test_what_the_controller_writes_into_its_config_map_survives_another_apply() -> None:
    assert "data" not in tree.one(ALL, "ConfigMap", names.HAND_OVER)


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


@pytest.mark.parametrize(
    ("gpus", "servers", "components"),
    [
        *((GPUS[i % 2], f"whole-gpus/{server}", ()) for i, server in enumerate(SERVERS)),
        *(("nvidia", "servers/1.30", (each,)) for each in COMPONENTS),
        ("nvidia", "servers/1.30", ("watchdog-kill", "limits/cgroup")),
        ("nvidia", "whole-gpus/1.25", TOGETHER),
    ],
)
def test_the_same_with_whole_gpus_and_components(
    gpus: str, servers: str, components: Sequence[str], kubectls: list[Kubectl]
) -> None:
    kind, _, server = servers.partition("/")
    values: Json = {"kubeVersion": f"{server}.0", "gpus": gpus, "wholeGpus": kind == "whole-gpus"}
    values |= {"scheduler": {"image": {"tag": "v1.30.0"}}}  # what base/ has; an overlay writes another
    values = functools.reduce(helm.merged, (COMPONENTS[each] for each in components), values)
    bases = (f"gpus/{gpus}", servers)
    same(values, *(kubectl.with_components(*components, bases=bases) for kubectl in kubectls))


def test_every_kustomization_has_a_counterpart_among_the_values() -> None:
    """One that is new needs a value, a row in `release.manifests.COMPONENTS`, and its place in the tests above."""
    compared = {"base", *COMPONENTS, *(f"gpus/{gpus}" for gpus in GPUS)}
    compared |= {f"{kind}/{server}" for kind in ("servers", "whole-gpus") for server in SERVERS}
    found = {path.parent.relative_to(tree.MANIFESTS) for path in tree.MANIFESTS.rglob("kustomization.yaml")}
    assert compared == {str(path) for path in found if path.parts[0] != "overlays"}
