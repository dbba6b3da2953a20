"""Whole GPUs beside shared ones: what changes when an administrator gives nvidia.com/gpu to this project."""

import pytest

from gpushare import names
from gpushare.runtime import options
from testing.manifests import helm
from testing.manifests.tree import SERVERS
from webhook.settings import Settings


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
        added, known = webhooks[0][:2]
        own = {"name": "whole.gpushare.dev", "matchConditions": added["matchConditions"]}
        assert added == known | own
        assert webhooks[0][1:] == webhooks[1]
