"""The page on limits says what the code does."""

import re
from dataclasses import replace
from typing import Final

import pytest

from deviceplugin.limits import choose, node, variables
from deviceplugin.limits.cgroup import CgroupBackend
from deviceplugin.limits.hami_core import HamiCoreBackend
from deviceplugin.limits.mps import MpsBackend
from deviceplugin.settings import Settings
from gpushare import names
from gpushare.model.gpu import Limit
from gpushare.runtime import options
from gpushare.wire import frameworks
from gpushare.wire.frameworks import Framework
from gpushare_cli.doctor.checks import CHECKS
from testing.builders import make_gpu
from testing.pages import ROOT, text

PAGE: Final = text("docs/limits.md")
ROWS: Final = re.findall(r"^\| `([\w-]+)` \|(.*)\|$", PAGE, re.MULTILINE)


def test_every_means_has_its_row_from_the_strongest_down() -> None:
    assert [name for name, _ in ROWS if name in {limit.value for limit in Limit}] == [limit.value for limit in Limit]
    assert choose.order(choose.AUTO) == tuple(limit for limit in Limit if limit is not Limit.WATCHDOG)


@pytest.mark.parametrize("limit", Limit)
def test_a_means_is_called_enforced_where_it_is(limit: Limit) -> None:
    strength = dict(ROWS)[limit.value].split("|")[0].strip()
    assert (strength == "**enforced**") == limit.enforced
    assert strength in {"**enforced**", "bypassable", "afterwards", "none"}


def test_that_a_part_of_a_mig_instance_is_not_held_is_told_where_one_chooses() -> None:
    instance = replace(make_gpu(gib=10), limit=Limit.MIG)
    assert (instance.limit_of(10 * 1024), instance.limit_of(5 * 1024)) == (Limit.MIG, Limit.ADVISORY)
    chosen = PAGE.split("\n## Choose\n")[1].split("\n2. ")[0]
    assert "asks for all of an instance" in chosen


def test_it_is_told_which_means_need_mounts_in_containers() -> None:
    needs = {name: cells.split("|")[2] for name, cells in ROWS if name in {limit.value for limit in Limit}}
    assert [name for name, text in needs.items() if "`cdi` or `volume-mounts`," in text] == ["mps", "hami-core"]
    assert (MpsBackend.needs_edits, HamiCoreBackend.needs_edits, CgroupBackend.needs_edits) == (True, True, False)


def test_where_it_is_shown_exists() -> None:
    assert {"limits", "limit-strength"} <= {check.id for check in CHECKS}
    assert re.findall(r"`(gpushare_plugin_\w+)`", PAGE) == ["gpushare_plugin_gpu_limit_info", "gpushare_plugin_gpus"]
    assert '"gpushare_plugin_gpu_limit_info"' in (ROOT / "deviceplugin/metrics.py").read_text(encoding="utf-8")


def test_every_setting_and_name_exists() -> None:
    flags = {options.flag_names(name)[index] for name in Settings.__dataclass_fields__ for index in (0, 1)}
    assert set(re.findall(r"`(--[\w-]+)`", PAGE)) <= flags
    assert set(re.findall(r"`(GPUSHARE_\w+)`", PAGE)) <= flags
    for name in (names.LABEL_LIMITS, names.ANNOTATION_LIMIT, names.ANNOTATION_FRAMEWORK_VARIABLES, names.MPS):
        assert name in PAGE


def test_every_order_in_the_page_is_understood() -> None:
    setting = choose.order(choose.AUTO)
    labels = re.findall(rf"{names.LABEL_LIMITS}=([\w.-]+)", PAGE)
    assert {choose.wanted(setting, label)[1] for label in labels} == {""}
    assert choose.order("cgroup,advisory")
    assert "such as `cgroup,advisory`" in PAGE
    assert {failure.value for failure in node.OnFailure} == {"refuse", "next"}


def test_every_directory_of_manifests_exists() -> None:
    for name in re.findall(r"`(?:manifests|\.\./\.\.)/(limits/\w+)`", PAGE):
        assert (ROOT / "manifests" / name / "kustomization.yaml").is_file()


@pytest.mark.parametrize("framework", Framework)
def test_every_framework_has_its_row_with_its_variable(framework: Framework) -> None:
    cells = dict(ROWS)[framework.value]
    assert re.findall(r"`(\w+)`", cells)[0] == variables.NAMES[framework][0]


def test_the_defaults_are_those_of_the_code() -> None:
    assert [framework.value for framework in frameworks.read(None)] == ["jax", "paddle", "cupy"]
    assert "Without it: `jax`, `paddle` and `cupy`." in PAGE
    assert f"tried every {node.PROVE_S:.0f} seconds" in PAGE
