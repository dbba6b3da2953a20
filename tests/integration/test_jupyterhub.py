"""The pods of the page on JupyterHub, as the real KubeSpawner makes them: admitted, and placed on the GPUs meant."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

import pytest
import yaml

from gpushare import names
from gpushare.identity import NodeName
from gpushare.model.ledger import NodeLedger
from gpushare.units import ResourceConfig
from gpushare.wire import profile as profile_wire
from gpushare_cli import kube_scores
from gpushare_cli.__main__ import main
from testing import granted, notebooks, reviews
from testing.notebooks import Json
from testing.pages import blocks, text
from testing.reviews import rules

RULES: Final = rules(resource_config=ResourceConfig())
NODE: Final = NodeName("node-a")
SIZES: Final = (2, 4, 8)
TRAITS: Final = {"namespace": "jhub", "image": "jupyter", "start_timeout": 60}
T4: Final = yaml.safe_load(text("testing/profiles/t4x2.yaml"))
MIXED: Final = {"gpus": [{"model": "NVIDIA A30", "memoryMiB": 24576, "count": 2}, *T4["gpus"]]}
SHM: Final = {
    "volumes": {"shm": {"name": "shm-volume", "emptyDir": {"medium": "Memory"}}},
    "volume_mounts": {"shm": {"name": "shm-volume", "mountPath": "/dev/shm"}},
    "environment": {"NVIDIA_VISIBLE_DEVICES": "all"},
}


def from_the_python_block() -> Json:
    [block] = blocks(notebooks.NAME, "python")
    spawner = SimpleNamespace()
    exec(block, {"c": SimpleNamespace(KubeSpawner=spawner)})  # as in jupyterhub_config.py
    return vars(spawner)


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Json]:
    """By profile, from the chart's values; `python` from the other block."""
    profiles = notebooks.profiles()
    slugs = [profile["slug"] for profile in profiles]
    servers = [{"user": "ana", "profile": slug} for slug in slugs]
    directory = tmp_path_factory.mktemp("hub")
    made = notebooks.pods({**TRAITS, **SHM, "profile_list": profiles}, servers, directory)
    others = [{"user": "ana", "profile": f"gpu-{gib}"} for gib in SIZES]
    written = notebooks.pods({**TRAITS, **from_the_python_block()}, others, directory)
    return dict(zip([*slugs, *(f"python-{gib}" for gib in SIZES)], [*made, *written], strict=True))


def container_of(pod: Json) -> Json:
    [container] = pod["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("gib", SIZES)
@pytest.mark.parametrize("block", ["gpu", "python"])
def test_a_profile_is_a_share(pods: Mapping[str, Json], block: str, gib: int) -> None:
    decision = reviews.admitted(pods[f"{block}-{gib}"], RULES)
    container = container_of(decision.pod)
    assert container["resources"]["limits"] == container["resources"]["requests"] == {names.GPU_MEM: str(gib)}
    assert decision.pod["spec"]["schedulerName"] == names.SCHEDULER
    assert [told for told in decision.warnings if names.ENV_VISIBLE_DEVICES not in told] == []


def test_a_server_without_a_gpu_sees_none_and_stays_with_its_scheduler(pods: Mapping[str, Json]) -> None:
    pod = reviews.admitted(pods["cpu"], RULES).pod
    environment = granted.resolved(container_of(pod), {})
    assert environment[names.ENV_VISIBLE_DEVICES] == names.VISIBLE_DEVICES_NONE
    assert pod["spec"].get("schedulerName") != names.SCHEDULER


def grants(pods: Mapping[str, Json], profile: Json, *which: str) -> Iterator[Any]:
    """One after another on one node: what each gets."""
    ledger = NodeLedger.of(profile_wire.inventory(profile, NODE, RULES.resource_config.unit), [])
    for number, name in enumerate(which):
        pod = reviews.admitted(pods[name], RULES).pod
        pod = {**pod, "metadata": {**pod["metadata"], "uid": f"u{number}", "namespace": "jhub"}}
        allocation = granted.allocation(pod, ledger, RULES.resource_config)
        ledger = ledger.with_allocation(allocation)
        [grant] = allocation.grants
        yield grant


def test_the_three_sizes_share_one_t4(pods: Mapping[str, Json]) -> None:
    """Seed 004: JupyterLab on several T4 cards; 14 GiB are what CUDA can give of each."""
    found = list(grants(pods, T4, *(f"gpu-{gib}" for gib in reversed(SIZES))))
    assert [grant.memory_mib for grant in found] == [gib * 1024 for gib in reversed(SIZES)]
    assert len({grant.gpus for grant in found}) == 1


def test_a_jupyterlab_that_wants_a_t4_gets_one_where_there_are_others(pods: Mapping[str, Json]) -> None:
    """Seed 004, on a node that has other cards too."""
    inventory = profile_wire.inventory(MIXED, NODE, RULES.resource_config.unit)
    assert len({gpu.model for gpu in inventory.gpus}) > 1
    [grant] = grants(pods, MIXED, "t4")
    assert ["T4" in inventory.by_uuid[uuid].model for uuid in grant.gpus] == [True]
    assert grant.memory_mib == 7 * 1024


def test_the_user_scheduler_has_what_our_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    [command] = [line for line in notebooks.PAGE.split("`") if line.startswith("gpushare scheduler-config ")]
    assert main(command.split()[1:]) == 0
    printed, page = yaml.safe_load(capsys.readouterr().out), notebooks.user_scheduler()
    [profile] = page.pop("profiles")
    assert [{"schedulerName": profile["schedulerName"]}] == printed.pop("profiles")
    assert page == printed


def test_its_weight_outvotes_the_charts_plugins_but_preferred_nodes() -> None:
    page = notebooks.user_scheduler()
    [profile] = page["profiles"]
    [extender] = page["extenders"]
    score = profile["plugins"]["score"]
    disabled = {each["name"] for each in score["disabled"]}
    weights = {**kube_scores.UNASKED, **kube_scores.PREFERENCES}
    weights = {name: weight for name, weight in weights.items() if name not in disabled}
    weights |= {each["name"]: each["weight"] for each in score["enabled"]}
    lead = 10 * kube_scores.LEAD * extender["weight"]
    preferred = weights.pop("NodeAffinity")
    assert 100 * sum(weights.values()) < lead < 100 * preferred
    assert 100 * weights["NodeResourcesFit"] > 10 * kube_scores.LEAD * kube_scores.needed(kube_scores.UNASKED)
