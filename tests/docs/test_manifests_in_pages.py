"""What pages show of manifests is what the manifests say, and commands that people copy can be typed."""

import re
from pathlib import Path

import pytest
import yaml

from gpushare import names
from testing.manifests import tree

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
QUOTA = (ROOT / "docs" / "quota.md").read_text(encoding="utf-8")
MIGRATE = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
SHELL = re.findall(r"^```sh\n(.*?)^```$", MIGRATE, flags=re.MULTILINE | re.DOTALL)


def test_going_back_deletes_what_the_former_overlay_does_not_name() -> None:
    """All that only components bring, and what the controller writes; `kubectl apply` deletes nothing."""
    step = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8").split("\n### Go back: what the former")[1]
    [deleted] = re.findall(r" delete --ignore-not-found (.*)", step.split("\n### ")[0])
    components = ("limits/cgroup", "limits/mps", "usage", "watchdog-evict", "watchdog-kill")
    added = [each for name in components for file in tree.kustomized(MANIFESTS / name) for each in tree.documents(file)]
    told = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in added}
    assert set(deleted.split()) == told | {f"configmap/{names.HAND_OVER}"}


@pytest.mark.parametrize("sample", ["quota", "limits"])
def test_the_quota_page_shows_the_samples(sample: str) -> None:
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", QUOTA, flags=re.DOTALL)]
    assert yaml.safe_load((MANIFESTS / "samples" / "quota" / f"{sample}.yaml").read_text(encoding="utf-8")) in shown


def test_the_migration_page_names_our_objects_as_the_manifests_do() -> None:
    plugin = (MANIFESTS / "base" / "device-plugin.yaml").read_text(encoding="utf-8")
    typed = "\n".join(SHELL)
    assert set(re.findall(r"-n (gpushare-\S+)", typed)) == {names.NAMESPACE}
    assert set(re.findall(r"app\.kubernetes\.io/name=([\w-]+)", typed)) == {"gpushare-device-plugin"}
    assert "app.kubernetes.io/name: gpushare-device-plugin" in plugin
    assert 'gpushare: "true"' in plugin
    assert f"mutatingwebhookconfiguration,validatingwebhookconfiguration {names.MUTATING_WEBHOOK}" in typed
    assert names.MUTATING_WEBHOOK == names.VALIDATING_WEBHOOK
