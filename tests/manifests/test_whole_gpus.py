"""Whole GPUs beside shared ones: what changes when an administrator gives nvidia.com/gpu to this project."""

import re

import pytest
import yaml

from gpushare import names
from gpushare.runtime import options
from testing.manifests import helm, tree
from testing.manifests.tree import MANIFESTS, SERVERS
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


def test_an_overlay_has_two_lines_of_which_each_has_a_counterpart() -> None:
    counterparts = {path.name for path in DIRECTORY.iterdir()}
    assert counterparts == {path.name for kind in ("gpus", "servers") for path in (MANIFESTS / kind).iterdir()}
    for path in MANIFESTS.glob("overlays/*/kustomization.yaml"):
        assert len(re.findall(r"\.\./\.\./(?:gpus|servers)/", path.read_text(encoding="utf-8"))) == 2


@pytest.mark.parametrize("server", SERVERS)
def test_settings_the_scheduler_and_the_webhooks_change_alone(server: str) -> None:
    """As Helm renders them; test_chart.py says that kubectl does too."""
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
    assert options.load(Settings, [], prog="x", environ=config).resource_config.whole_gpus
    if server == "1.30":
        webhooks = [after[hook]["webhooks"], before[hook]["webhooks"]]
        assert webhooks[0][0]["name"] == "whole.gpushare.dev"
        assert webhooks[0][1:] == webhooks[1]
