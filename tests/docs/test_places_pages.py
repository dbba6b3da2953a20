"""What the pages on OpenShift, the edge and distributions show is what the manifests and the commands take."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import names
from gpushare_cli import __main__ as cli
from gpushare_cli import scheduler_config
from testing import pages
from testing.manifests import helm, tree

PAGES = {name: pages.text(f"docs/{name}.md") for name in ("edge", "openshift")}
DISTRIBUTIONS = pages.section("docs/install.md", "## Distributions")


def blocks(page: str) -> list[Any]:
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
    [rule] = next(each for each in blocks("edge") if isinstance(each, dict) and each.get("kind") == "Role")["rules"]

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
    [patch] = [each for each in blocks("install") if each.get("kind") == "DaemonSet"]
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
