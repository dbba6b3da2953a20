"""What the doctor says of pods without GPUs on nodes that share."""

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import Reply
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import METRICS, Change, DoctorKube

CONTROLLER = names.CONTROLLER_SERVICE
ASKED = "gpushare_extender_requests_total"
WHAT = (
    "also take pods without GPUs, and no scheduler has asked the controller where these cost the least: by default"
    " kube-scheduler spreads them, and GPUs stay free for want of CPU and memory | have the scheduler that decides"
    " about them ask it (gpushare scheduler-config --rank-others), or keep these nodes for GPU pods by a taint:"
    " docs/scheduling.md says what each costs and brings"
)


def never_asked(count: str = "0.0") -> DoctorKube:
    api = world.healthy()
    page = METRICS[CONTROLLER].replace("} 7.0", "} " + count)
    page += f'{ASKED}{{outcome="fits",verb="filter"}} 9.0\n{ASKED}{{outcome="gpu",verb="{names.OTHERS_VERB}"}} 9.0\n'
    api.says(CONTROLLER, "metrics", Reply(status=200, text=page))
    return api


def taint(*nodes: str, key: str = names.GPU_MEM, effect: str = "NoSchedule") -> Change:
    def change(api: DoctorKube) -> None:
        taints = [{"key": key, "effect": effect}]
        for name in nodes:
            world.edit(api, "Node", name, lambda node: node.setdefault("spec", {}).update(taints=taints))

    return change


@pytest.mark.parametrize("count", ["0.0", "many"])
def test_pods_without_gpus_that_no_one_ranks_are_pointed_out(count: str) -> None:
    assert world.lines(never_asked(count)) == [f"ok other-pods nodes | 2 of 2 nodes that share {WHAT}"]


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_nodes_that_are_kept_for_gpu_pods_are_right(effect: str) -> None:
    api = never_asked()
    taint("node-a", effect=effect)(api)
    assert world.lines(api) == [f"ok other-pods node/node-b | 1 of 2 nodes that share {WHAT}"]
    taint("node-b", effect=effect)(api)
    assert world.lines(api) == []


@pytest.mark.parametrize(
    "change",
    [
        taint("node-a", "node-b", effect="PreferNoSchedule"),
        taint("node-a", "node-b", key="node.kubernetes.io/unreachable"),
        taint("node-a", "node-b", key="node.cloudprovider.kubernetes.io/uninitialized"),
    ],
)
def test_taints_that_keep_no_pod_away_for_good_do_not_count(change: Change) -> None:
    api = never_asked()
    change(api)
    assert world.lines(api) == [f"ok other-pods nodes | 2 of 2 nodes that share {WHAT}"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (kube.ForbiddenError("no rights"), "the controller's metrics cannot be read"),
        (Reply(status=200, text="gpushare_ready 1.0\n"), "no scheduler has asked the controller anything yet"),
    ],
)
def test_nothing_is_said_where_no_one_can_tell(answer: Reply | kube.KubeError, why: str) -> None:
    api = never_asked()
    api.says(CONTROLLER, "metrics", answer)
    [result] = [each for each in world.diagnosis(api).results if each.check.id == "other-pods"]
    assert (result.findings, result.skipped) == ((), why)
