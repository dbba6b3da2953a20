"""What pages say is what the code, the manifests and the measurements say, or make."""

import json
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jsonpatch
import pytest
import yaml

from controller.settings import Settings as ControllerSettings
from deviceplugin import inventory as factors
from deviceplugin.limits import node as limits
from deviceplugin.settings import Settings as PluginSettings
from gpushare import names, units
from gpushare.identity import NodeName
from gpushare.model.gpu import Limit, NodeInventory
from gpushare.model.request import DEFAULT_POLICY, Policy
from gpushare.placement import explain
from gpushare.placement.policies import LEARNING
from gpushare.units import GIB
from gpushare.wire import frameworks
from gpushare.wire.frameworks import Framework
from gpushare_cli import __main__ as cli, scheduler_config
from gpushare_cli.__main__ import command_line
from gpushare_cli.doctor import checks_admission, checks_conflicts
from gpushare_cli.simulate.command import Options
from release import manifests
from release.pages import architecture, chart, doctor, escapes, generate, pod_way, top_picture
from release.pages.escapes import OUTCOMES, SECTIONS
from testing import pages
from testing.builders import make_gpu, make_mig
from testing.cli import doctor_cluster
from testing.fakes.paths import Target
from testing.manifests import helm, tree
from testing.pages import ROOT, blocks, section, text
from testing.tenant import escape_table
from testing.tenant.attempts import Ends
from testing.tenant.escapes import BASELINE

README = text("README.md")
INSTALL, LIMITS, UPGRADE, SECURITY = (text(f"docs/{name}.md") for name in ("install", "limits", "upgrade", "security"))
LIMITS, OVERSUBSCRIPTION = LIMITS.split("\n## Oversubscription\n")


def test_the_words_beside_the_plot_have_its_figures() -> None:
    drawn = text("docs/allocation.svg")
    [said] = re.findall(r"!\[([^]]*)\]\(docs/allocation\.svg\)", README)
    ends = dict(re.findall(r"([a-z][^:;.]*): ([0-9.]+) %", drawn.partition("At the end ")[2].partition("</desc>")[0]))
    assert set(ends) == {"dense", "fgd", "binpack", "no ranking (Aliyun's)"}
    assert sorted(re.findall(r"[0-9]+\.[0-9]", said)) == sorted(ends.values())


CALLED: Final = {Limit.MIG: "MIG", Limit.CGROUP: "cgroups", Limit.MPS: "MPS", Limit.HAMI_CORE: "HAMi-core"} | {
    Limit.WATCHDOG: "watchdog",
    Limit.ADVISORY: "variables",
}
ROWS: Final[dict[str, str]] = dict(re.findall(r"^\| `([\w-]+)` \|(.*)\|$", LIMITS, re.MULTILINE))


@pytest.mark.parametrize("limit", Limit)
def test_what_holds_limits_and_how_well_is_on_the_first_screen_and_on_its_page(limit: Limit) -> None:
    rows = [row for row in README.split("\n```yaml\n")[0].splitlines() if row.startswith("| ") and CALLED[limit] in row]
    assert ["whatever the container does" in row for row in rows] == [limit.enforced]
    assert ROWS[limit.value].split("|")[0].strip(" *") == limit.strength.value


@pytest.mark.parametrize("framework", Framework)
def test_every_framework_has_its_row_with_its_variable(framework: Framework) -> None:
    assert re.findall(r"`(\w+)`", ROWS[framework.value])[0] == frameworks.FRAMEWORK_VARIABLES[framework][0]


def test_every_order_of_limits_is_understood() -> None:
    labels = re.findall(rf"{names.LABEL_LIMITS}=([\w.-]+)", LIMITS)
    assert {limits.wanted_order(limits.order(limits.AUTO), label)[1] for label in labels} == {""}
    assert limits.order("cgroup,advisory")
    assert "such as `cgroup,advisory`" in LIMITS
    assert {failure.value for failure in limits.OnFailure} == {"refuse", "next"}


def test_the_page_on_autoscalers_has_the_message_that_is_said_and_our_resources() -> None:
    said = explain.by_sum([NodeName("node-1"), NodeName("node-2")])
    assert [each.strip() for each in blocks("docs/autoscalers.md", "text")] == [said]
    written = map(yaml.safe_load, blocks("docs/autoscalers.md", "yaml"))
    [overlay] = [found for found in written if "kind" in found]
    assert set(overlay["spec"]["capacity"]) == {names.GPU_MEM, names.GPU_PERCENT}


def test_the_patch_takes_away_what_the_plugin_wrote_into_the_status_of_a_node() -> None:
    [patch] = re.findall(r"--subresource=status --type=json --patch '(.+)'", UPGRADE)
    status = {"status": {"capacity": {"cpu": "4", names.GPU_COUNT: "2", names.GPU_CORE: "200"}}}
    assert jsonpatch.apply_patch(status, patch) == {"status": {"capacity": {"cpu": "4"}}}


def test_what_administrators_write_on_nodes_is_removed_with_everything_else() -> None:
    commands = section("docs/upgrade.md", "### Remove: what is left on nodes").partition("```\n")[0]
    assert {word[:-1] for word in commands.split() if word.endswith("-")} == {
        *(names.LABEL_SHARES, names.LABEL_LIMITS, names.LABEL_HAND_OVER, names.LABEL_NVIDIA_DEFAULT),
        *(names.LABEL_OVERSUBSCRIPTION, names.ANNOTATION_INVENTORY, names.ANNOTATION_CORDON, names.ANNOTATION_HELD),
    }


def test_going_back_deletes_what_the_former_overlay_does_not_name() -> None:
    """All that only components bring, and what the controller writes; `kubectl apply` deletes nothing."""
    step = UPGRADE.split("\n### Go back: what the former")[1].split("\n### ")[0]
    [deleted] = re.findall(r" delete --ignore-not-found (.*)", step)
    components = ("limits/cgroup", "limits/mps", "usage", "watchdog-evict", "watchdog-kill")
    added = [each for name in components for each in tree.objects(name)]
    told = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in added}
    new = {f"configmap/{names.HAND_OVER}", f"poddisruptionbudget/{names.CONTROLLER}"}
    assert set(deleted.split()) == told | new


@pytest.mark.parametrize("sample", ["quota", "limits"])
def test_the_quota_page_shows_the_samples(sample: str) -> None:
    shown = map(yaml.safe_load, blocks("docs/quota.md", "yaml"))
    assert yaml.safe_load(text(f"manifests/samples/quota/{sample}.yaml")) in shown


def test_the_migration_page_names_our_objects_as_the_manifests_do() -> None:
    typed = "\n".join(blocks("docs/migrate.md", "sh"))
    assert set(re.findall(r"-n (gpushare-\S+)", typed)) == {names.NAMESPACE}
    plugin = tree.one(tree.installed(), "DaemonSet", names.PLUGIN)["spec"]["template"]
    [label] = set(re.findall(r"app\.kubernetes\.io/name=([\w-]+)", typed))
    assert plugin["metadata"]["labels"]["app.kubernetes.io/name"] == label
    assert f"mutatingwebhookconfiguration,validatingwebhookconfiguration {names.MUTATING_WEBHOOK}" in typed
    assert names.MUTATING_WEBHOOK == names.VALIDATING_WEBHOOK


POLICIES: Final = "|".join(policy.value for policy in Policy)
DEFAULT: Final = re.compile(
    rf"`?\b({POLICIES})\b`?, the default\b|\bdefault policy,? (?:is )?`?({POLICIES})\b|\(default: ({POLICIES})\)"
    rf"|`GPUSHARE_GPU_POLICY` \| `({POLICIES})`|instead of the (fullest)"
)


def test_pages_samples_and_programs_name_the_default_policy_that_is() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("manifests/**/*.*")]
    said = {
        (str(path.relative_to(ROOT)), next(filter(None, found.groups())))
        for path in files
        if path.suffix in {".md", ".yaml"} and path.name != "CHANGELOG.md"
        for found in DEFAULT.finditer(path.read_text(encoding="utf-8"))
    }
    assert said
    assert {each for each in said if each[1] != DEFAULT_POLICY.value} == set()
    assert ControllerSettings.__dataclass_fields__["gpu_policy"].default is DEFAULT_POLICY
    assert Options(files=()).policies == (DEFAULT_POLICY.value,)
    assert command_line().parse_args(["simulate", "-f", "-"]).policies == (DEFAULT_POLICY.value,)


def test_which_policies_learn_from_pods_is_told() -> None:
    assert {policy.value for policy in LEARNING} == {"dense", "fgd"}
    assert "The policies `dense` and `fgd` learn from all pods" in SECURITY
    assert "`binpack` or `spread`, which learn from no pod" in SECURITY


def test_what_is_exempt_and_what_is_refused_as_shipped_is_told() -> None:
    [told] = [line for line in INSTALL.splitlines() if line.startswith("The webhook and the policies leave")]
    assert re.findall(r"`([^`]+)`", told) == [*names.ADDON_NAMESPACES, "kube-system", names.NAMESPACE]
    shipped = tree.one(tree.objects("servers/1.30"), "ConfigMap", names.RUNTIME_CLASS_POLICY)["data"]["refuse"]
    assert f"| `{shipped}` (as shipped) |" in SECURITY
    assert "the policy [`gpushare-runtime-class`](#refuse-nvidias-runtimeclasses), as shipped |" in SECURITY


def test_what_the_installation_changes_is_told() -> None:
    told = section("docs/install.md", "## What the installation changes")
    found = tree.installed()
    kinds = Counter((each["kind"], each["metadata"].get("namespace", "")) for each in found)
    assert not kinds["CustomResourceDefinition", ""]
    assert (kinds["Role", "kube-system"], kinds["RoleBinding", "kube-system"]) == (1, 2)
    assert "in `kube-system` one Role and two RoleBindings" in told
    assert (kinds["MutatingWebhookConfiguration", ""], kinds["ValidatingWebhookConfiguration", ""]) == (1, 1)
    assert kinds["ValidatingAdmissionPolicy", ""] == 5
    assert "from Kubernetes 1.30 on five ValidatingAdmissionPolicies" in told
    requests: dict[str, Counter[str]] = {"DaemonSet": Counter(), "Deployment": Counter()}
    limits: dict[str, set[str]] = {"DaemonSet": set(), "Deployment": set()}
    for each in found:
        if each["kind"] in requests:
            for container in each["spec"]["template"]["spec"]["containers"]:
                for resource, amount in container["resources"]["requests"].items():
                    number = int(re.sub(r"(?<=\d)(m|Mi)$", "", amount))
                    requests[each["kind"]][resource] += number * each["spec"].get("replicas", 1)
                limits[each["kind"]].add(container["resources"]["limits"]["memory"])
    on_nodes, others = requests["DaemonSet"], requests["Deployment"]
    [on_node] = limits["DaemonSet"]
    assert f"Each such node gives {on_nodes['cpu']}m CPU and {on_nodes['memory']}Mi (limit {on_node})" in told
    assert limits["Deployment"] == {"1Gi", "2Gi"}
    assert "limit](operate.md#memory) of each is 1 or 2 GiB" in told
    assert sum(each["spec"].get("replicas", 1) for each in found if each["kind"] == "Deployment") == 6
    assert f"six pods request {others['cpu']}m and {others['memory']}Mi together" in told
    costs = f"{others['cpu']}m CPU and {others['memory']}Mi of memory in the cluster, and {on_nodes['cpu']}m"
    assert f"{costs} and {on_nodes['memory']}Mi on each GPU node" in README


def test_limits_that_need_a_choice_are_off_as_installed() -> None:
    assert "As installed, only MIG enforces them: on most nodes nothing does." in README
    values = yaml.safe_load(text("manifests/chart/values.yaml"))
    assert values["limits"] == {"cgroup": False, "mps": False}
    assert (values["watchdog"], PluginSettings().hami_core_dir) == ("none", None)


def test_oversubscription_is_off_by_default_and_its_settings_can_be_read() -> None:
    assert "**Off by default.**" in OVERSUBSCRIPTION
    inventory = NodeInventory(node=NodeName("node-a"), gpus=(make_gpu(0), make_mig(1, 0)), unit=GIB)
    assert factors.oversubscribed(inventory, PluginSettings().oversubscription, "")[0] == inventory
    written = r'`"([^"`]+)"`|GPUSHARE_OVERSUBSCRIPTION: "([^"]+)"|oversubscription: "([^"]+)"'
    found = ["".join(each) for each in re.findall(written, OVERSUBSCRIPTION)]
    assert len(found) == 4
    for setting in found:
        assert str(factors.parse_factors(setting)) in {setting, f"1,{setting}"}
    assert re.findall(rf"{names.LABEL_OVERSUBSCRIPTION}=([\d.]+)", OVERSUBSCRIPTION) == ["1.5"]
    assert [units.parse_factor(factor) for factor in ("1", "10")] == [100, 1000]


MEASURED: Final = {
    "ranked": "`--rank-others`",
    "default": "as kube-scheduler spreads them",
    "most-allocated": "`--most-allocated`",
    "most-allocated-ranked": "`--most-allocated --rank-others`",
}
ALIKE: Final = {"95": 2.0, "100": 0.6, "130": 0.6}
"""By load: how far a figure may be from the mean."""


@pytest.mark.parametrize("row", MEASURED)
def test_the_page_on_scheduling_agrees_with_what_was_measured_through_a_controller(row: str) -> None:
    cells = rf"^\| {re.escape(MEASURED[row])} \|" + r" ([0-9.]+) \|" * 6 + "$"
    [told] = re.findall(cells, text("docs/scheduling.md"), flags=re.MULTILINE)
    rows: list[dict[str, Any]] = json.loads(text("docs/benchmarks/trace_scheduled.json"))["rows"]
    meant = {"trace": "default", "policy": "dense", "row": row, "owned": False}
    found = [one["at"] for one in rows if {key: one[key] for key in meant} == meant]
    assert found
    for (load, distance), figure in zip(ALIKE.items(), told[:3], strict=True):
        assert abs(statistics.mean(at[load] for at in found) - float(figure)) <= distance


def test_the_rights_that_the_doctors_page_names_are_those_that_it_uses() -> None:
    api, inside = doctor_cluster.healthy(), "the installation's namespace"
    doctor_cluster.diagnosis(api)
    used = {("pods", "create", "default"), ("services/proxy", "get", inside), ("pods/proxy", "get", inside)}
    for call in api.calls:
        target = Target.parse(call.path)
        group = "" if target.group == "/api/v1" else f"{target.group.split('/')[2]}/"
        where = {names.NAMESPACE: inside}.get(target.namespace, target.namespace) or "cluster"
        used.add((f"{group}{target.resource}", call.verb, where))
    told = [(resources.split(", "), verbs.split(", "), where) for resources, verbs, where in doctor.RIGHTS]
    assert {(resource, verb, where) for many, verbs, where in told for resource in many for verb in verbs} == used


def test_every_row_of_escapes_says_what_stops_it_and_none_comes_twice() -> None:
    rows = escapes.rows()
    assert [row.what for row in rows if not row.by] == []
    assert len({row.what for row in rows}) == len(rows)
    assert {outcome for row in rows for outcome in row.outcomes} <= {*OUTCOMES.values(), "unchanged"}
    assert "|" not in "".join(row.what + row.by for section in SECTIONS.values() for row in section)
    page = escapes.page()
    assert [row.what for row in rows for code in re.findall(r"`[^`]+`", row.what) if code not in page] == []


def test_what_escapes_is_nothing_that_pod_security_admits() -> None:
    every = escape_table.all_attempts("node-1")
    escaping = [each for each in every if Ends.ESCAPES in {each.ends, each.old_ends, *each.on.values()}]
    assert escaping
    assert [each.name for each in escaping if each.is_baseline or BASELINE not in each.by or not each.prints] == []


PAGE = text("docs/gpu-operator.md")


def test_the_patch_names_the_container_of_the_device_plugin() -> None:
    [patch] = [yaml.safe_load(block) for block in blocks("docs/gpu-operator.md", "yaml") if "capabilities" in block]
    found = tree.one(tree.installed(), patch["kind"], names.PLUGIN)
    assert patch["metadata"] == {key: found["metadata"][key] for key in ("name", "namespace")}
    [patched], [container] = (each["spec"]["template"]["spec"]["containers"] for each in (patch, found))
    assert patched["name"] == container["name"]
    assert f"nvidia.cdi.k8s.io/container.{container['name']}:" in PAGE


def test_the_webhook_that_it_takes_out_is_that_for_pods_without_gpus() -> None:
    [found] = [block for block in blocks("docs/gpu-operator.md", "yaml") if "patchesJson6902" in block]
    [patched] = yaml.safe_load(found)["patchesJson6902"]
    operations = yaml.safe_load(patched["patch"])
    config = tree.one(tree.objects("servers/1.30"), patched["target"]["kind"], patched["target"]["name"])
    left = jsonpatch.apply_patch(config, operations)["webhooks"]
    assert [each for each in config["webhooks"] if each not in left] == [
        each for each in config["webhooks"] if each["name"] == checks_admission.ISOLATION
    ]
    whole = tree.one(tree.objects("whole-gpus/1.30"), config["kind"], config["metadata"]["name"])
    assert [each["name"] for each in whole["webhooks"]].index(checks_admission.ISOLATION) == 3
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(whole, operations)


def labelled(labels: dict[str, str], command: str) -> dict[str, str]:
    """The labels of a node after `kubectl label node NODE ...`."""
    changes = [word for word in shlex.split(command)[4:] if word != "--overwrite"]
    gone = {word[:-1] for word in changes if word.endswith("-")}
    added = dict(word.split("=") for word in changes if "=" in word)
    assert len(gone) + len(added) == len(changes)
    return {key: value for key, value in labels.items() if key not in gone} | added


def test_its_steps_are_what_the_doctor_asks_for() -> None:
    """A node on which the operator's plugin shares by MPS, as the operator and its feature discovery label it."""
    cluster = doctor_cluster.healthy()
    node = dict.fromkeys((checks_conflicts.KEPT_OFF, checks_conflicts.MPS_CAPABLE), "true")
    node |= {checks_conflicts.CONFIG: "shared"}

    def conflicts() -> list[str]:
        label = {"labels": node}
        doctor_cluster.edit(cluster, "Node", "node-b", lambda found: found["metadata"].update(label))
        return [line for line in doctor_cluster.lines(cluster) if "nvidia-sharing" in line]

    steps = section("docs/gpu-operator.md", "## Step by step")
    commands = re.findall(r"\$ (kubectl label node NODE .*)", steps)
    node = labelled(node, next(command for command in commands if "gpushare=true" in command))
    assert len(conflicts()) == 1
    for command in commands:
        node = labelled(node, command)
    assert conflicts() == []
    assert node == {names.LABEL_SHARES: "true", checks_conflicts.KEPT_OFF: "false"}
    node |= {names.LABEL_HAND_OVER: "cdi", names.LABEL_LIMITS: "mps", names.LABEL_NVIDIA_DEFAULT: "true"}
    for command in re.findall(r"\$ (kubectl label node NODE .*)", PAGE.split("\n## Back\n")[1]):
        node = labelled(node, command)
    assert node == {checks_conflicts.KEPT_OFF: "true"}


PAGES = {name: pages.text(f"docs/{name}.md") for name in ("edge", "openshift")}
DISTRIBUTIONS = pages.section("docs/install.md", "## Distributions")


def documents(page: str) -> list[Any]:
    """All YAML documents of a page."""
    return [document for block in pages.blocks(f"docs/{page}.md", "yaml") for document in yaml.safe_load_all(block)]


def test_the_extender_through_the_proxy_is_named_alike_in_the_right_and_in_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    monkeypatch.chdir(tmp_path)
    [typed] = re.findall(r"\$ gpushare (scheduler-config .*?) > ", PAGES["edge"].replace("\\\n", " "))
    assert cli.main(shlex.split(typed)) == 0
    [extender] = yaml.safe_load(capsys.readouterr().out)["extenders"]
    [rule] = next(each for each in documents("edge") if isinstance(each, dict) and each.get("kind") == "Role")["rules"]

    [reached] = rule["resourceNames"]
    assert f"/namespaces/{names.NAMESPACE}/services/{reached}/proxy{names.EXTENDER_PREFIX}" in extender["urlPrefix"]
    assert reached == f"{names.CONTROLLER_SERVICE}:{scheduler_config.CONTROLLER_PORT}"
    assert (rule["resources"], rule["verbs"]) == (["services/proxy"], ["create"])
    assert {"certFile", "keyFile"} < set(extender["tlsConfig"])


def test_the_values_that_the_table_of_distributions_names_are_admitted_and_do_what_it_says() -> None:
    given = dict(re.findall(r"`(\w+\.\w+): (\S+?)`", DISTRIBUTIONS))
    values: dict[str, Any] = {"kubeVersion": "1.30.0"}
    for path, value in given.items():
        first, second = path.split(".")
        values.setdefault(first, {})[second] = yaml.safe_load(value)
    assert set(given) == {"runtimeClass.create", "devicePlugin.kubeletDirectory", "openshift.enabled"}
    rendered = tree.one(helm.render(values), "DaemonSet", names.PLUGIN)
    [patch] = [each for each in documents("install") if each.get("kind") == "DaemonSet"]
    [moved] = patch["spec"]["template"]["spec"]["volumes"]
    assert moved in rendered["spec"]["template"]["spec"]["volumes"]


def test_what_is_written_onto_the_namespace_by_hand_is_what_the_component_writes() -> None:
    [namespace] = [each for each in tree.patches("openshift") if each["kind"] == "Namespace"]
    base = tree.one(tree.objects("base"), "Namespace", names.NAMESPACE)["metadata"]["labels"]
    [labels] = re.findall(r"oc label namespace gpushare-system --overwrite (.*)", PAGES["openshift"])
    [notes] = re.findall(r"oc annotate namespace gpushare-system --overwrite (.*)", PAGES["openshift"])
    typed = dict(each.split("=", 1) for each in labels.split())
    assert typed.items() <= {**base, **namespace["metadata"]["labels"]}.items()
    assert namespace["metadata"]["labels"].items() <= typed.items()
    assert dict(each.split("=", 1) for each in notes.split()) == namespace["metadata"]["annotations"]


Files = Mapping[Path, str]
MADE: Final[Mapping[str, Callable[[], Files]]] = {
    "reference": lambda: {ROOT / "docs" / name: page for name, page in generate.pages().items()},
    "chart": lambda: {helm.CHART / name: file for name, file in chart.written().items()},
    "manifests": manifests.files,
    "architecture": lambda: {architecture.PAGE: architecture.page()},
    "a pod's way": lambda: {pod_way.PICTURE: pod_way.svg(pod_way.table())},
    "top": lambda: {top_picture.PICTURE: top_picture.made()},
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_files_are_those_that_are_made(made: Callable[[], Files]) -> None:
    files = made()
    assert {path: path.read_text(encoding="utf-8") for path in files} == files, "run `make docs architecture`"


def test_the_picture_of_a_pods_way_has_the_steps_of_the_code() -> None:
    steps = {step: who for step, who, _ in pod_way.table()}
    assert steps.keys() - pod_way.SHORT == {names.OTHERS_VERB}  # for pods without GPUs
    assert {*pod_way.SHORT} <= steps.keys()
    written = scheduler_config.configuration(scheduler_config.Options(server=scheduler_config.ServerVersion(1, 30)))
    [extender] = yaml.safe_load(written)["extenders"]
    verbs = {value for key, value in extender.items() if key.endswith("Verb")}
    assert {step for step, who in steps.items() if who == "controller"} == verbs | {names.OTHERS_VERB, "end"}
