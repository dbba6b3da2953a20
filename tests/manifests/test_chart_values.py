"""The chart's values: what they change in the components, and which Helm refuses."""

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

import gpushare
from gpushare import names
from gpushare.runtime import options
from release.pages import chart
from release.pages.chart import FIXED, PATTERNS, SETTINGS, SHARED, WORDS, camel
from testing.manifests import helm, tree
from testing.manifests.helm import BASE, objects, pod, variables
from testing.manifests.tree import SERVERS, Json


def test_shared_settings_have_the_programs_defaults() -> None:
    given: dict[str, set[str]] = {camel(name): set() for name in SHARED}
    for cls in SETTINGS.values():
        for field in dataclasses.fields(cls):
            if field.name in SHARED:
                given[camel(field.name)].add(options.written(field.default))
    defaults = {value.path.partition(".")[2]: {value.default} for value in chart.values() if "settings." in value.path}
    assert defaults == given


def test_the_page_names_the_components_whose_settings_are_values() -> None:
    named = re.findall(r"`(\w+\.settings)`", chart.page().partition("\n| value |")[0])
    assert named == [f"{component}.settings" for component in SETTINGS if any(chart.fields(component))]
    assert {*named} == {value.path for value in chart.values() if value.path.endswith(".settings")}


def test_every_setting_is_a_value_or_left_to_the_manifests() -> None:
    known = {field.name for cls in SETTINGS.values() for field in dataclasses.fields(cls) if "help" in field.metadata}
    given = {field.name for component in SETTINGS for field in chart.fields(component)}
    assert given | FIXED | set(SHARED) == known
    assert given & FIXED == set()


@pytest.mark.parametrize("component", [name for name in SETTINGS if any(chart.fields(name))])
def test_defaults_of_settings_are_admitted_and_arrive_as_the_components_variables(component: str) -> None:
    fields = [field for field in chart.fields(component) if options.written(field.default)]
    values = [value for value in chart.settings(component) if value.default != ""]
    given: Json = {value.path.rpartition(".")[2]: value.default for value in values}
    found = objects(limits={"mps": True}, **{component: {"settings": given}})
    arrived = variables(found, names.PLUGIN if component == "devicePlugin" else f"gpushare-{component}")
    for field in fields:
        written = arrived[options.flag_names(field.name)[1]]
        assert field.metadata["parse"](written) == field.default, field.name
    assert set(given) == {camel(field.name) for field in fields}


@pytest.mark.parametrize("name", WORDS)
def test_the_words_of_a_setting_are_those_that_it_takes(name: str) -> None:
    found = [field for cls in SETTINGS.values() for field in dataclasses.fields(cls) if field.name == name]
    assert found
    for field in found:
        for word in WORDS[name]:
            field.metadata["parse"](word)
        with pytest.raises(ValueError, match=r"write .*" + WORDS[name][-1]):
            field.metadata["parse"]("other")


@pytest.mark.parametrize("name", PATTERNS.keys() - {"unified_memory"})
def test_the_chart_takes_of_a_setting_what_the_program_takes(name: str) -> None:
    [field] = [each for cls in SETTINGS.values() for each in dataclasses.fields(cls) if each.name == name]
    taken = {
        "foreign_resources": ["", "nvidia.com/gpu", "a.io/gpu, b.io/gpu-*"],
        "limits": ["auto", "cgroup", "mig, hami-core,advisory", "mps,cgroup"],
        "oversubscription": ["1", "1.5", "T4=1.25", "1, Tesla T4=1.5,A100-SXM4-80GB=2", " 2 "],
    }
    refused = {
        "foreign_resources": ["gpu", "a.io/", "a.io/*-gpu"],
        "limits": ["", "none", "auto,mps", "mps,"],
        "oversubscription": ["", "abc", "T4", "1,2", "T4=", "-1"],
    }
    for text in taken[name]:
        assert re.search(PATTERNS[name], text)
        field.metadata["parse"](text)
    for text in refused[name]:
        assert not re.search(PATTERNS[name], text)
        with pytest.raises(ValueError, match="write"):
            field.metadata["parse"](text)


def test_images_come_from_the_registry_that_is_named() -> None:
    digest = f"sha256:{'0' * 64}"
    ours = {"registry": "registry.example.com:5000", "pullPolicy": "Always"}
    theirs = {"registry": "mirror.example.com", "digest": digest}
    more: Json = {"limits": {"mps": True}, "dashboard": {"enabled": True}}
    found = objects(image=ours, imagePullSecrets=["one", {"name": "two"}], scheduler={"image": theirs}, **more)
    images = {name: spec["containers"][0]["image"] for name, spec in tree.workloads(found)}
    assert images.pop(names.SCHEDULER) == f"mirror.example.com/kube-scheduler@{digest}"
    assert set(images.values()) == {f"registry.example.com:5000/gpushare:{gpushare.__version__}"}
    for _, spec in tree.workloads(found):
        assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
        assert spec["containers"][0]["imagePullPolicy"] == "Always"


@pytest.mark.parametrize(
    ("version", "tag"),
    [("v1.31.5-eks-a1b2c3", "v1.31.5"), ("1.30.2+k3s1", "v1.30.2"), ("1.22.0", "v1.22.0"), ("v1.36", "v1.36.0")],
)
def test_the_second_scheduler_has_the_version_of_the_servers(version: str, tag: str) -> None:
    found = objects(kubeVersion=version)
    assert pod(found, names.SCHEDULER)["containers"][0]["image"] == f"registry.k8s.io/kube-scheduler:{tag}"


@pytest.mark.parametrize("component", ["webhook", "controller", "scheduler", "devicePlugin", "mps", "dashboard"])
def test_what_every_component_has(component: str) -> None:
    toleration = {"key": "gpu", "operator": "Exists"}
    weight: Json = {"nodeAffinity": {}}
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    given: Json = {"priorityClassName": "mine", "nodeSelector": {"zone": "a"}, "tolerations": [toleration]}
    given |= {"affinity": weight, "topologySpreadConstraints": spread, "env": [{"name": "HTTP_PROXY", "value": "p"}]}
    given |= {"resources": {"limits": {"memory": "3Gi"}}, "podLabels": {"team": "ml"}, "podAnnotations": {"a": "b"}}
    name = names.PLUGIN if component == "devicePlugin" else f"gpushare-{component}"
    on: Json = {"limits": {"mps": True}, "dashboard": {"enabled": True}}
    before = pod(objects(**on), name)
    found = objects(**on | {component: on.get(component, {}) | given})
    [workload] = [each for each in found if each["metadata"]["name"] == name and "template" in each.get("spec", {})]
    spec, metadata = workload["spec"]["template"]["spec"], workload["spec"]["template"]["metadata"]
    assert (spec["priorityClassName"], spec["tolerations"], spec["affinity"]) == ("mine", [toleration], weight)
    assert spec["nodeSelector"] == before.get("nodeSelector", {}) | {"zone": "a"}
    assert spec["topologySpreadConstraints"] == spread
    assert spec["containers"][0]["env"][-1] == {"name": "HTTP_PROXY", "value": "p"}
    asked = spec["containers"][0]["resources"]
    assert asked["requests"] == before["containers"][0]["resources"]["requests"]
    assert asked["limits"] == before["containers"][0]["resources"].get("limits", {}) | {"memory": "3Gi"}
    assert metadata["labels"].items() >= workload["spec"]["selector"]["matchLabels"].items()
    assert (metadata["labels"]["team"], metadata["annotations"]["a"]) == ("ml", "b")


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_single_pod_has_no_budget_that_keeps_its_node_from_being_drained(replicas: int) -> None:
    names_of = [names.WEBHOOK, names.CONTROLLER, names.SCHEDULER]
    found = objects(**{name.removeprefix("gpushare-"): {"replicas": replicas} for name in names_of})
    made = {each["metadata"]["name"]: each["spec"]["replicas"] for each in found if each["kind"] == "Deployment"}
    assert made == dict.fromkeys(names_of, replicas)
    budgets = {each["metadata"]["name"] for each in found if each["kind"] == "PodDisruptionBudget"}
    assert budgets == (set(names_of) if replicas > 1 else set())


def test_pods_restart_exactly_when_their_settings_change() -> None:
    def configured(**values: Any) -> dict[str, str]:
        return {
            each["metadata"]["name"]: each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for each in objects(**values)
            if "template" in each.get("spec", {})
        }

    before = configured()
    assert configured(networkPolicy={"enabled": False}) == before
    changed = {name for name, sums in configured(settings={"logLevel": "debug"}).items() if sums != before[name]}
    assert changed == {names.WEBHOOK, names.CONTROLLER, names.PLUGIN}
    whole = {name for name, sums in configured(wholeGpus=True).items() if sums != before[name]}
    assert whole == {names.WEBHOOK, names.CONTROLLER, names.PLUGIN, names.SCHEDULER}
    profiles = [configured(gpus="simulated", simulatedGpus={"gpus": [{"count": n}]}) for n in (1, 2)]
    assert {name for name in profiles[0] if profiles[0][name] != profiles[1][name]} == {names.PLUGIN}


def test_the_kubelet_may_have_another_directory() -> None:
    """With another `--root-dir` only its socket for pod resources is elsewhere; that for device plugins stays."""
    directory = "/var/lib/k0s/kubelet"
    spec = pod(objects(devicePlugin={"kubeletDirectory": directory}), names.PLUGIN)
    paths = [each["hostPath"]["path"] for each in spec["volumes"]]
    assert paths == ["/var/lib/kubelet/device-plugins", f"{directory}/pod-resources", "/var/run/cdi", "/etc/cdi"]
    assert spec["containers"][0]["volumeMounts"][0]["mountPath"] == "/var/lib/kubelet/device-plugins"


def test_simulated_gpus_are_those_of_the_values() -> None:
    profile = {"gpus": [{"model": "Tesla T4", "memoryMiB": 15360, "count": 2}]}
    found = objects(gpus="simulated", simulatedGpus=profile)
    assert yaml.safe_load(tree.one(found, "ConfigMap", "gpushare-simulated-gpus")["data"]["profile.yaml"]) == profile


@pytest.mark.parametrize("server", SERVERS)
def test_with_whole_gpus_settings_the_scheduler_and_the_webhooks_change_alone(server: str) -> None:
    """Where an administrator gives nvidia.com/gpu to this project."""
    before, after = (
        helm.normal(helm.without_helms_own(helm.render({"kubeVersion": f"{server}.0", "wholeGpus": whole})))
        for whole in (False, True)
    )
    assert before.keys() == after.keys()
    hook = ("MutatingWebhookConfiguration", "", names.MUTATING_WEBHOOK)
    configs = [("ConfigMap", names.NAMESPACE, name) for name in (names.CONFIG, names.SCHEDULER)]
    assert sorted(key for key in before if before[key] != after[key]) == [
        *configs,
        *([hook] if server == "1.30" else []),
    ]
    config = after["ConfigMap", names.NAMESPACE, names.CONFIG]["data"]
    assert options.load(SETTINGS["webhook"], [], prog="x", environ=config).resource_config.whole_gpus
    if server == "1.30":
        webhooks = [after[hook]["webhooks"], before[hook]["webhooks"]]
        added, known = webhooks[0][:2]
        own = {"name": "whole.gpushare.dev", "matchConditions": added["matchConditions"]}
        assert added == known | own
        assert webhooks[0][1:] == webhooks[1]


RELEASES = (("gpushare", 1), ("gpus", 7))
WRONG = (Path(__file__).parent / "golden/wrong_values.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_refused_with_its_name(case: str) -> None:
    field, _, values = case.partition(" <= ")
    with pytest.raises(helm_python.HelmError, match=re.escape(field)):
        helm.render({**BASE, **json.loads(values)})


def test_null_is_the_default_or_refused_with_its_name() -> None:
    """As in a file of values in which all lines below a key are comments, and in an older version's values."""
    paths = {".".join(value.path.split(".")[:depth]) for value in chart.values() for depth in (1, 2, 3)}
    nulls = {path: null(path) for path in sorted(paths) if path not in BASE and ".settings." not in path}
    harmless: Json = functools.reduce(helm.merged, (nulls.pop(path) for path in [*nulls] if may_be_null(path)))
    assert helm.render(helm.merged(BASE, harmless)) == objects()
    for path, values in nulls.items():
        with pytest.raises(helm_python.HelmError, match=f"missing property '{path.rpartition('.')[2]}'|{path}: "):
            helm.render({**BASE, **values})
    assert nulls.keys() >= {"controller", "networkPolicy.enabled", "image.repository", "exemptNamespaces"}


def null(path: str) -> Json:
    """Values that say so of one."""
    values: Json | None = None
    for key in reversed(path.split(".")):
        values = {key: values}
    return values or {}


def may_be_null(path: str) -> bool:
    """Whether the default says nothing."""
    defaults = [value.default for value in chart.values() if value.path == path]
    if path == "image.registry":
        return False
    return path.endswith(".settings") or (bool(defaults) and defaults[0] in (None, "", [], {}))


def test_what_another_chart_says_of_this_one_is_admitted() -> None:
    assert objects(**{"enabled": True, "global": {"image": "theirs"}}) == objects()


def test_the_chart_has_the_projects_version_and_helm_finds_nothing_to_improve() -> None:
    [said] = tree.documents(helm.CHART / "Chart.yaml")
    assert said["version"] == said["appVersion"] == gpushare.__version__
    assert helm_python.lint(helm.CHART, strict=True) == {"total_charts_linted": 1, "messages": [], "errors": []}


def test_a_release_that_is_elsewhere_says_who_makes_the_namespace() -> None:
    with pytest.raises(helm_python.HelmError, match="--namespace gpushare-system"):
        helm.render(BASE, namespace="default")
    assert helm.render({**BASE, "namespace": {"exists": True}}, namespace="default")
    assert not [each for each in objects() if each["kind"] == "Namespace"]
    assert not [each for each in objects(namespace={"quota": False}) if each["kind"] == "ResourceQuota"]


def test_all_objects_have_the_labels_that_are_asked_for_and_further_ones_are_rendered() -> None:
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}
    found = objects(commonLabels={"team": "ml"}, extraObjects=[extra], dashboard={"enabled": True}, placeholders=1)
    assert [each["metadata"]["name"] for each in found if "labels" not in each["metadata"]] == ["gpushare-x"]
    labels = [each["metadata"]["labels"] for each in found if "labels" in each["metadata"]]
    assert {(each["team"], each["app.kubernetes.io/instance"]) for each in labels} == {("ml", "gpushare")}
    assert not any("team" in spec.get("matchLabels", {}) for _, spec in tree.workloads(found))


def test_rendering_again_changes_nothing() -> None:
    """As tools do that compare with the cluster; none of them need give the templates access to it."""
    loaded = helm_python.Chart.load(helm.CHART)
    first, later = (loaded.render(BASE, name=name, namespace=names.NAMESPACE, revision=n) for name, n in RELEASES)
    assert helm.without_helms_own(helm.documents(first)) == helm.without_helms_own(helm.documents(later))
    templates = "".join(path.read_text(encoding="utf-8") for path in (helm.CHART / "templates").iterdir())
    assert not re.findall(r"\b(?:gen[A-Z]\w+|rand\w+|uuidv4|now|\.Release\.Is\w+)\b", templates)
    assert templates.count("lookup") == 1, "of the RuntimeClass, which is made where nothing is found"


def test_a_package_renders_as_the_directory_does_and_has_no_links(tmp_path: Path) -> None:
    assert not [path for path in tree.MANIFESTS.rglob("*") if path.is_symlink()]
    archive = helm_python.package(helm.CHART, destination=tmp_path)
    with helm_python.Chart.load(archive) as packed:
        rendered = packed.render(BASE, name="gpushare", namespace=names.NAMESPACE)
    assert helm.documents(rendered) == objects()
