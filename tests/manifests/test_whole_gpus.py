"""Whole GPUs beside shared ones: what changes when an administrator gives nvidia.com/gpu to this project."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from gpushare import names
from gpushare.runtime import options
from gpushare_cli import schedconfig
from gpushare_cli.schedconfig import Options, ServerVersion
from testing.manifests import tree
from testing.manifests.tree import MANIFESTS, OVERLAYS, SERVERS, Json
from tests.manifests.kustomize import Kubectl
from webhook.settings import Settings

DIRECTORY = MANIFESTS / "whole-gpus"


def test_the_added_webhook_is_that_of_the_other_resources_with_another_condition() -> None:
    [operation] = yaml.safe_load((DIRECTORY / "1.30" / "webhooks.yaml").read_text(encoding="utf-8"))
    assert (operation["op"], operation["path"]) == ("add", "/webhooks/0")
    configuration = tree.one(tree.objects("servers/1.30"), "MutatingWebhookConfiguration", names.MUTATING_WEBHOOK)
    assert operation["value"] == {
        **configuration["webhooks"][0],
        "name": "whole.gpushare.dev",
        "matchConditions": operation["value"]["matchConditions"],
    }


@pytest.mark.parametrize("server", SERVERS)
def test_the_second_scheduler_asks_the_extender_about_whole_gpus(server: str) -> None:
    [found] = tree.documents(DIRECTORY / server / "scheduler.yaml")
    configuration = yaml.safe_load(found["data"]["scheduler.yaml"])
    options = Options(server=ServerVersion.parse(server), whole_gpus=True)
    assert configuration == yaml.safe_load(schedconfig.configuration(options))
    managed = [each["name"] for each in configuration["extenders"][0]["managedResources"]]
    assert managed == [*names.SHARED_RESOURCES, names.GPU]


def test_there_is_a_counterpart_for_every_directory_that_overlays_rest_on() -> None:
    counterparts = {path.name for path in DIRECTORY.iterdir()}
    assert counterparts == {path.name for kind in ("gpus", "servers") for path in (MANIFESTS / kind).iterdir()}


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifests after the edit of the overlays that the README describes."""
    manifests = tmp_path_factory.mktemp("whole") / "manifests"
    shutil.copytree(MANIFESTS, manifests)
    for path in manifests.glob("overlays/*/kustomization.yaml"):
        text, count = re.subn(r"\.\./\.\./(gpus|servers)/", "../../whole-gpus/", path.read_text())
        assert count == 2
        path.write_text(text)
    return manifests


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_kubectl_builds_the_same_with_two_lines_of_an_overlay_changed(
    overlay: str, edited: Path, kubectls: list[Kubectl]
) -> None:
    for kubectl in kubectls:
        before, after = kubectl.build(overlay), kubectl.build(overlay, edited)
        changed = [(old["kind"], old["metadata"]["name"]) for old, new in pairs(before, after) if old != new]
        hooks = [("MutatingWebhookConfiguration", names.MUTATING_WEBHOOK)] if "-" not in overlay else []
        configs = [("ConfigMap", "gpushare-config"), ("ConfigMap", "gpushare-scheduler")]
        assert sorted(changed) == [*configs, *hooks]
        config = tree.one(after, "ConfigMap", "gpushare-config")["data"]
        assert options.load(Settings, [], prog="x", environ=config).resource_config.whole_gpus
        if hooks:
            listed = tree.one(after, *hooks[0])["webhooks"]
            assert [each["name"] for each in listed] == [
                "whole.gpushare.dev",
                "gpu.gpushare.dev",
                "limit.gpushare.dev",
                "isolation.gpushare.dev",
            ]


def pairs(before: list[Json], after: list[Json]) -> list[tuple[Json, Json]]:
    """The same objects in both."""
    assert len(before) == len(after)
    by_name = {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]): each for each in after}
    return [
        (each, by_name[each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]]) for each in before
    ]
