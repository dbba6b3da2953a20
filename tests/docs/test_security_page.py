"""The pages on installation and security name what the manifests have."""

import re
from pathlib import Path

import pytest

from gpushare import names
from tests.manifests import tree

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


def test_what_is_refused_as_shipped_is_told() -> None:
    shipped = tree.one(tree.objects("servers/1.30"), "ConfigMap", names.RUNTIME_CLASS_POLICY)["data"]["refuse"]
    assert f"| `{shipped}` (as shipped) |" in SECURITY
    assert "the policy [`gpushare-runtime-class`](#refuse-nvidias-runtimeclasses), as shipped |" in SECURITY


@pytest.mark.parametrize("resource", names.PLUGIN_RESOURCES)
def test_the_resources_that_are_left_to_their_plugins_are_told(resource: str) -> None:
    assert f"`{resource}`" in SECURITY
