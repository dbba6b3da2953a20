"""What Helm refuses, and that it finds nothing wrong with the chart itself."""

import functools
import re
from pathlib import Path

import helm_python
import pytest

import gpushare
from gpushare import names
from release.pages import chart
from testing.manifests import helm, tree
from testing.manifests.helm import BASE, objects
from testing.manifests.tree import Json

RELEASES = (("gpushare", 1), ("gpus", 7))
WRONG: list[tuple[str, Json]] = [
    ("/kubeVersion", {"kubeVersion": "1.19.3"}),
    ("/image/registry", {"image": {"registry": "https://registry.example.com"}}),
    ("/image/repository", {"image": {"repository": "gpushare:0.1.0"}}),
    ("/image/tag", {"image": {"tag": "not a tag"}}),
    ("/image/digest", {"image": {"digest": "sha256:abc"}}),
    ("'tags'", {"image": {"tags": "0.1.0"}}),
    ("/imagePullSecrets/0", {"imagePullSecrets": [{"name": "secret"}]}),
    ("/simulatedGpus", {"simulatedGpus": []}),
    ("/wholeGpus", {"wholeGpus": "yes"}),
    ("/settings/memoryUnit", {"settings": {"memoryUnit": "GB"}}),
    ("'gpuPolicy'", {"settings": {"gpuPolicy": "spread"}}),
    ("/runtimeClass/handler", {"runtimeClass": {"handler": "Nvidia"}}),
    ("/runtimeClass/mode", {"runtimeClass": {"mode": "sometimes"}}),
    ("/exemptNamespaces/0", {"exemptNamespaces": ["No_Name"]}),
    ("/certificates/caBundle", {"certificates": {"caBundle": "-----BEGIN CERTIFICATE-----"}}),
    ("certificates.caBundle", {"certificates": {"source": "files"}}),
    ("'name' required", {"certificates": {"issuerRef": {"kind": "ClusterIssuer"}}}),
    ("/networkPolicy/controlPlane/0", {"networkPolicy": {"controlPlane": ["10.0.0.1"]}}),
    ("/monitoring/podMonitor/labels/release", {"monitoring": {"podMonitor": {"labels": {"release": 1}}}}),
    ("/webhook/replicas", {"webhook": {"replicas": 0}}),
    ("/webhook/settings/certLeafDays", {"webhook": {"settings": {"certLeafDays": "ninety"}}}),
    ("/controller/settings/gpuPolicy", {"controller": {"settings": {"gpuPolicy": "tight"}}}),
    ("'app.kubernetes.io/name'", {"controller": {"podLabels": {"app.kubernetes.io/name": "mine"}}}),
    ("'port'", {"controller": {"settings": {"port": 80}}}),
    ("'cpu'", {"controller": {"resources": {"cpu": 1}}}),
    ("/devicePlugin/kubeletDirectory", {"devicePlugin": {"kubeletDirectory": "var/lib/kubelet"}}),
    ("/devicePlugin/settings/handOver", {"devicePlugin": {"settings": {"handOver": "nri"}}}),
    ("/devicePlugin/env/0", {"devicePlugin": {"env": ["HTTP_PROXY"]}}),
]


@pytest.mark.parametrize(("field", "values"), WRONG, ids=[field for field, _ in WRONG])
def test_a_wrong_value_is_refused_with_its_name(field: str, values: Json) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(f"{field}")):
        helm.render({**BASE, **values})


def test_null_is_the_default_or_refused_with_its_name() -> None:
    """As in a file of values in which all lines below a key are comments, and in an older version's values."""
    paths = {".".join(value.path.split(".")[:depth]) for value in chart.values() for depth in (1, 2, 3)}
    nulls = {path: null(path) for path in sorted(paths) if path not in BASE and ".settings." not in path}
    harmless: Json = functools.reduce(helm.merged, (nulls.pop(path) for path in [*nulls] if may_be_null(path)))
    assert helm.render(helm.merged(BASE, harmless)) == objects()
    for path, values in nulls.items():
        with pytest.raises(helm_python.HelmError, match=f"missing property '{path.rpartition('.')[2]}'"):
            helm.render({**BASE, **values})
    assert nulls.keys() >= {"controller", "networkPolicy.enabled", "image.repository", "exemptNamespaces"}


def null(path: str) -> Json:
    """Values that say so of one."""
    *parents, key = path.split(".")
    values: Json = {key: None}
    for parent in reversed(parents):
        values = {parent: values}
    return values


def may_be_null(path: str) -> bool:
    """Whether the default says nothing."""
    defaults = [value.default for value in chart.values() if value.path == path]
    return path.endswith(".settings") or (bool(defaults) and defaults[0] in (None, "", [], {}))


def test_what_another_chart_says_of_this_one_is_admitted() -> None:
    assert objects(**{"enabled": True, "global": {"image": "theirs"}}) == objects()


def test_the_chart_has_the_projects_version_and_helm_finds_nothing_to_improve() -> None:
    [said] = tree.documents(helm.CHART / "Chart.yaml")
    assert said["version"] == said["appVersion"] == gpushare.__version__
    assert helm_python.lint(helm.CHART, strict=True) == {"total_charts_linted": 1, "messages": [], "errors": []}


def test_the_namespace_of_the_release_itself_cannot_be_one_of_its_objects() -> None:
    with pytest.raises(helm_python.HelmError, match=r"namespace\.create"):
        helm.render({**BASE, "namespace": {"create": True}}, namespace=names.NAMESPACE)
    assert not [each for each in objects() if each["kind"] == "Namespace"]
    assert not [each for each in objects(namespace={"quota": False}) if each["kind"] == "ResourceQuota"]


def test_rendering_again_changes_nothing() -> None:
    """As tools do that compare with the cluster; none of them need give the templates access to it."""
    loaded = helm_python.Chart.load(helm.CHART)
    first, later = (loaded.render(BASE, name=name, namespace=names.NAMESPACE, revision=n) for name, n in RELEASES)
    assert helm.documents(first) == helm.documents(later)
    templates = "".join(path.read_text(encoding="utf-8") for path in (helm.CHART / "templates").iterdir())
    assert not re.findall(r"\b(?:gen[A-Z]\w+|rand\w+|uuidv4|lookup|now|\.Release\.Is\w+)\b", templates)


def test_a_package_renders_as_the_directory_does_and_has_no_links(tmp_path: Path) -> None:
    assert not [path for path in tree.MANIFESTS.rglob("*") if path.is_symlink()]
    archive = helm_python.package(helm.CHART, destination=tmp_path)
    with helm_python.Chart.load(archive) as packed:
        rendered = packed.render(BASE, name="gpushare", namespace=names.NAMESPACE)
    assert helm.documents(rendered) == objects()
