"""The pages on installation and security name what the manifests have."""

import re
from pathlib import Path

import pytest

from gpushare import names
from tests.unit.webhook.builders import RULES, Json, asking, container, pod
from webhook import mutation
from webhook.mutation import Mutated

DOCS = Path(__file__).parents[2] / "docs"
INSTALL = (DOCS / "install.md").read_text(encoding="utf-8")
TROUBLESHOOT = (DOCS / "troubleshoot.md").read_text(encoding="utf-8")
SECURITY = (DOCS / "security.md").read_text(encoding="utf-8")


def test_the_namespaces_that_are_left_alone_are_all_told() -> None:
    [told] = [line for line in INSTALL.splitlines() if line.startswith("The webhook and the policies exempt")]
    assert re.findall(r"`([^`]+)`", told) == ["kube-system", *names.ADDON_NAMESPACES]


@pytest.mark.parametrize("policy", names.POLICIES)
def test_every_policy_is_told(policy: str) -> None:
    assert f"`{policy}`" in SECURITY
    assert f"ValidatingAdmissionPolicy '{policy}' ... denied request`" in TROUBLESHOOT


@pytest.mark.parametrize(
    "value",
    [
        pod(container(resources={"limits": {"aliyun.com/gpu-memory": "1"}})),
        pod(asking("a", mem=1), schedulerName="volcano"),
        pod(container(volumeMounts=[{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}])),
        pod(asking("a", mem=1), volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
    ],
)
def test_every_warning_is_explained(value: Json) -> None:
    """As far as it says the same of every pod."""
    decision = mutation.mutate(value, RULES)
    assert isinstance(decision, Mutated)
    [warning] = decision.warnings
    told = re.findall(r"`([^`]+)`", "\n".join(each for each in TROUBLESHOOT.splitlines() if "warning" in each))
    assert any(re.search(".*".join(map(re.escape, each.split("..."))), warning) for each in told if "..." in each)


@pytest.mark.parametrize("resource", names.PLUGIN_RESOURCES)
def test_the_resources_that_are_left_to_their_plugins_are_told(resource: str) -> None:
    assert f"`{resource}`" in SECURITY
