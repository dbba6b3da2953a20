"""What docs/operate.md tells those who come from a version whose default policy was binpack."""

from pathlib import Path

import yaml

from controller.settings import Settings
from gpushare.model.request import DEFAULT_POLICY, Policy
from gpushare.runtime import options

ROOT = Path(__file__).parents[2]
SECTION = (
    (ROOT / "docs" / "operate.md")
    .read_text(encoding="utf-8")
    .partition("### From a version whose default policy was `binpack`\n")[2]
    .partition("\n### ")[0]
)


def _settings(environ: dict[str, str]) -> Settings:
    return options.load(Settings, [], prog="controller", environ=environ)


def test_the_setting_on_the_page_keeps_the_former_default() -> None:
    line = next(part for part in SECTION.split("`") if part.startswith("GPUSHARE_"))
    setting, _, value = line.partition(": ")

    assert f"placed by `{DEFAULT_POLICY.value}` now" in SECTION
    assert _settings({}).gpu_policy is DEFAULT_POLICY
    assert _settings({setting: value}).gpu_policy is Policy.BINPACK


def test_the_right_on_the_page_is_one_of_the_controllers() -> None:
    (rule,) = yaml.safe_load(SECTION.partition("```yaml\n")[2].partition("```")[0])
    objects = yaml.safe_load_all((ROOT / "manifests" / "base" / "controller.yaml").read_text(encoding="utf-8"))
    (role,) = (each for each in objects if each["kind"] == "ClusterRole")

    assert rule in role["rules"]
