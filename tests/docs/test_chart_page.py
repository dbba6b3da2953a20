"""What the page on installation says of the Helm chart's values is so."""

import re
from typing import Final

import yaml

from release.pages import chart
from testing.manifests import helm, tree
from testing.pages import text

SECTION: Final = text("docs/install.md").split("\n## Install with Helm\n")[1].split("\n## ")[0]


def test_every_value_that_the_page_names_exists() -> None:
    table = SECTION.split("\n### What is often set\n")[1]
    named = set(re.findall(r"`([a-z][A-Za-z]+(?:\.[A-Za-z]+)+)[:`]", table)) | set(
        re.findall(r"`(watchdog|kubeVersion)`", table)
    )
    assert len(named) > 10
    assert named <= {value.path for value in chart.values()}


def test_helm_admits_the_file_that_the_page_shows() -> None:
    [shown] = re.findall(r"```yaml\n(.*?)```", SECTION, flags=re.DOTALL)
    images = {spec["containers"][0]["image"] for _, spec in tree.workloads(helm.objects(**yaml.safe_load(shown)))}
    assert any(image.startswith("REGISTRY/gpushare:") for image in images)
