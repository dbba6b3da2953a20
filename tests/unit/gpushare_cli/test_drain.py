"""`gpushare drain`, `cordon` and `uncordon`: who is evicted, who is not and why, and which GPUs take no new pods."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpushare import names
from gpushare.cluster.node_records import Cordon
from gpushare.errors import SettingsError, UnknownGpuError
from gpushare.identity import GpuUuid, NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import NodeInventory
from gpushare.units import GIB
from gpushare_cli import console
from gpushare_cli.console import Streams
from gpushare_cli.evict import drain as command, evictable
from gpushare_cli.evict.gpu_cordon import GpuName
from testing.builders import Json, make_gpu, make_grant, make_inventory, make_mig, make_node
from testing.cli.draining import (
    Change,
    allows,
    annotated,
    before,
    budget,
    cluster,
    cordons_of,
    drain,
    end,
    fails,
    left,
    nothing,
    owned,
    seeded,
)
from testing.cli.explaining import kube_of
from testing.cli.podding import bound, changed
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube
from tests.unit.gpushare_cli import findings

NODE, NODE_B = make_node(make_inventory(15, 15)), make_node(make_inventory(4, node="node-b"))
WEB = {"app": "web"}
TWO = {"app": "web", "tier": "a"}


def on(gpu: int, name: str, *, gib: int = 3, **fields: Any) -> Json:
    return owned(bound(name, make_grant(gpu, gib=gib), **fields))


def one(**fields: Any) -> Json:
    return on(0, "one", labels=WEB, **fields)


def ranked(name: str, priority: int, day: int) -> Json:
    pod = changed(on(0, name, labels=WEB), "spec", priority=priority)
    return changed(pod, "metadata", creationTimestamp=f"2026-01-0{day}T00:00:00Z")


def comes(pod: Json) -> Change:
    return lambda api: api.seed("/api/v1/namespaces/default/pods", pod)


def lists(node: Json) -> Change:
    """The node has these GPUs from now on, by their inventory."""
    return annotated(node["metadata"]["annotations"])


def opened_by_others(api: FakeKube) -> None:
    api.edit("/api/v1/nodes/node-a", lambda node: node["metadata"]["annotations"].pop(names.ANNOTATION_CORDON))
    comes(on(0, "new"))(api)


@dataclass(frozen=True, kw_only=True)
class Case:
    there: Sequence[Json]
    gpu: str = "node-a/0"
    options: Mapping[str, Any] = field(default_factory=dict)
    first: Change = nothing
    at: Mapping[float, Change] = field(default_factory=dict)
    ends: bool = True  # pods do, a moment after they are asked to


def story(case: Case) -> list[str]:
    """What is said, and what is left."""
    api = cluster(NODE, make_node(name="cpu"), *case.there)
    case.first(api)

    def passes(seconds: float) -> None:
        if case.ends:
            end(api)
        case.at.get(seconds, nothing)(api)

    clock = ManualClock(0, passes)
    found = drain(api, case.gpu, clock, **case.options)
    return [*found.lines, f"{left(api)} in {clock.at:.0f} s"]


SMALL = make_node(replace(make_inventory(15, 15), gpus=make_inventory(15, 15).gpus[:1]))
SHIFTED = make_node(replace(make_inventory(15, 15), gpus=(replace(make_inventory(15, 15).gpus[1], index=0),)))
SHARE = replace(make_grant(1, gib=0), memory_percent=20, compute_percent=20)
PART = owned(bound("part", SHARE, labels=WEB))
PART["spec"]["containers"][0]["resources"]["limits"] = {names.GPU_PERCENT: "20"}
WRITES = changed(
    on(0, "writes"), "spec", volumes=[{"name": "cache", "emptyDir": {}}, {"name": "code", "configMap": {}}]
)
BARE = bound("bare", make_grant(0))
LEAVING = changed(on(0, "leaving"), "metadata", deletionTimestamp="2026-01-01T00:00:00Z")
CLOSED = budget("web", 0, **WEB)
DRY, AGREED = {"dry_run": True}, {"delete_emptydir_data": True}
AWAY = kube.UnreachableError("connection refused")
HELD = dict.fromkeys((names.ANNOTATION_CORDON, names.ANNOTATION_HELD), "GPU-0")


CASES: dict[str, Case] = {
    "the pods of one GPU leave and no others": Case(there=[on(0, "here"), on(1, "there")]),
    "a pod on both GPUs leaves with either": Case(there=[owned(bound("both", make_grant(0, 1)))], gpu="node-a/1"),
    "a dry run changes nothing and says what would happen": Case(
        there=[on(0, "here"), BARE, on(1, "there")], options=DRY
    ),
    "programs are told the GPU and its pods": Case(there=[on(0, "one")], options=DRY | {"output": "yaml"}),
    "a pod that nothing recreates stays": Case(there=[BARE]),
    "unless it is evicted by force": Case(there=[BARE], options={"force": True}),
    "a pod with data of its own would stay": Case(there=[WRITES], options=DRY),
    "it would leave if the data may be lost": Case(there=[WRITES], options=DRY | AGREED),
    "and leaves": Case(there=[WRITES], options=AGREED),
    "a mirror pod is not passed over": Case(there=[on(0, "odd", annotations={"kubernetes.io/config.mirror": "x"})]),
    "nor one that cannot be read": Case(there=[on(0, "odd", annotations={names.ANNOTATION_ALLOCATION: "{"})]),
    "a budget is waited for until it allows the next": Case(
        there=[one(), on(0, "two", labels=WEB), budget("web", 1, **WEB)], at={20: allows(1)}
    ),
    "when time is up it says who is left and why": Case(there=[one(), CLOSED], options={"timeout": 30}),
    "a pod with two budgets cannot be evicted by anyone": Case(
        there=[on(0, "one", labels=TWO), budget("web", 5, app="web"), budget("a", 5, tier="a")]
    ),
    # Its binding was on its way.
    "a pod that came after the cordon leaves as well": Case(there=[], at={6: comes(on(0, "late"))}),
    "the least important pods leave first, and of these the youngest": Case(
        there=[ranked("old", 0, 1), ranked("young", 0, 9), ranked("high", 5, 9), budget("web", 1, **WEB)],
        options={"timeout": 0},
        ends=False,
    ),
    # A GPU that fails drops out of the list, and the next one takes its number.
    "a number that becomes another GPU's evicts none of its pods": Case(
        there=[on(0, "here", labels=WEB), on(1, "there"), CLOSED], at={4: lists(SHIFTED), 8: allows(1)}
    ),
    "nothing is evicted any more once others let new pods in": Case(
        there=[one(), CLOSED], at={4: opened_by_others}, ends=False
    ),
    "an eviction that is forbidden is not tried forever": Case(
        there=[one()], first=fails("/eviction", kube.ForbiddenError("pods/eviction is forbidden"), 9), ends=False
    ),
    # The eviction API asks no budget then.
    "a pod that waits to start would not be protected by a budget": Case(
        there=[one(phase="Pending"), CLOSED], options=DRY
    ),
    # What it holds is a part of a GPU whose size is not known any more.
    "a pod on a GPU that has dropped out meanwhile is not passed over": Case(
        there=[on(0, "other"), PART, CLOSED], gpu="node-a/1", options={"timeout": 20}, at={4: lists(SMALL)}, ends=False
    ),
    "an eviction without an answer is asked for again": Case(
        there=[on(0, "here")], first=fails("/eviction", kube.UnreachableError("refused"), 6)
    ),
    "so is one that the server could not answer": Case(
        there=[on(0, "here")], first=fails("/eviction", kube.ServerFaultError("etcd has no leader"), 6)
    ),
    "a pod that ended by itself was not evicted": Case(
        there=[on(0, "here")], first=before("/eviction", lambda api: api.vanish("/api/v1/namespaces/default/pods/here"))
    ),
    "a missing right to cordon is told and nothing is evicted": Case(
        there=[on(0, "here")], first=fails("", kube.ForbiddenError("nodes is forbidden"), verb="patch")
    ),
    "a drain takes a GPU over from a defragmentation": Case(there=[on(0, "here")], first=annotated(HELD)),
    "a GPU that is not there is told": Case(there=[], gpu="node-a/7"),
    "so is a node": Case(there=[], gpu="none/0"),
    "and one without GPUs": Case(there=[], gpu="cpu/0"),
    "a device plugin that leaves during a drain is told": Case(
        there=[one(), CLOSED], at={4: annotated({names.ANNOTATION_INVENTORY: None})}, ends=False
    ),
    "budgets that may not be read are told and obeyed": Case(
        there=[one(), CLOSED],
        options={"timeout": 4},
        first=fails("poddisruptionbudgets", kube.ForbiddenError("no"), 99),
    ),
    "an older server is asked in its version": Case(
        there=[on(0, "one")], first=lambda api: setattr(api, "evictions", "policy/v1beta1")
    ),
    "a pod that is leaving already would be awaited": Case(there=[LEAVING], options=DRY),
    "it is, and not evicted": Case(there=[LEAVING]),
    # GPU 1 has 5 GiB left and node-b 4, so one of three of 4 GiB has no place.
    "a dry run says whether each pod fits elsewhere": Case(
        there=[NODE_B, *(on(0, f"p{i}", gib=4) for i in range(3)), on(1, "x", gib=10)], options=DRY
    ),
    "where pods fit is left out if the cluster may not be read": Case(
        there=[on(0, "here")],
        options=DRY,
        first=fails("/nodes", kube.ForbiddenError("nodes is forbidden"), 9, verb="list"),
    ),
    "a server that is away for a moment ends no drain": Case(there=[on(0, "here")], at={2: fails("/node-a", AWAY)}),
    "one that stays away does": Case(
        there=[on(0, "here")], options={"timeout": 10}, at={2: fails("", AWAY, 99, "list")}
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_drain_says_and_does(case: str) -> None:
    assert story(CASES[case]) == findings.golden("drain", case)


def test_an_interrupt_says_that_the_gpu_stays_cordoned() -> None:
    api, err = seeded(kube_of([NODE, on(0, "one", labels={"a": "b"})]), budget("web", 0, a="b")), io.StringIO()

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    streams = Streams(out=io.StringIO(), err=err)
    with pytest.raises(KeyboardInterrupt):
        command.run(api, streams, command.Options(gpu=GpuName.parse("node-a/0")), ManualClock(0, interrupted))
    how = "gpushare uncordon node-a/0 lets new pods in, gpushare drain node-a/0 goes on"
    assert err.getvalue().splitlines()[-1] == f"note: node-a/0 stays cordoned; {how}"


MIG = NodeInventory(node=NodeName("node-a"), gpus=(make_gpu(1), make_mig(0, 0), make_mig(0, 1)), unit=GIB)
PLAIN = make_inventory(15, 15)


def test_what_is_cordoned_together_with_others_is_not_opened_alone() -> None:
    with pytest.raises(SettingsError, match=r"^GPU '0:1' is cordoned together with 0:0, by '0'; uncordon that$"):
        Cordon(gpus="0").opened(MIG, "0:1")


FOR_A_WHILE = Cordon(gpus="1,GPU-0,MIG-0-1", held="GPU-0,MIG-0-1")


def test_a_gpu_is_added_once_and_removed_however_it_was_written_and_each_takes_back_its_own_cordon() -> None:
    for found, expected in (
        (Cordon().closed(PLAIN, "0"), Cordon(gpus="GPU-0")),
        (Cordon().closed(PLAIN, "GPU-1"), Cordon(gpus="GPU-1")),
        (Cordon(gpus="1").closed(PLAIN, "0"), Cordon(gpus="1,GPU-0")),
        (Cordon(gpus="0").closed(PLAIN, "0"), Cordon(gpus="0")),
        (Cordon(gpus=" 0 ,GPU-9").closed(PLAIN, "GPU-0"), Cordon(gpus=" 0 ,GPU-9")),
        (Cordon().closed(MIG, "0:1"), Cordon(gpus="MIG-0-1")),
        (Cordon().closed(MIG, "0"), Cordon(gpus="0")),
        (Cordon(gpus="0:0").closed(MIG, "0"), Cordon(gpus="0:0,0")),
        (Cordon(gpus="0:0,0:1").closed(MIG, "0"), Cordon(gpus="0:0,0:1")),
        (Cordon(gpus="GPU-0").opened(PLAIN, "0"), Cordon()),
        (Cordon(gpus="0").opened(PLAIN, "GPU-0"), Cordon()),
        (Cordon(gpus="0,1, GPU-0").opened(PLAIN, "0"), Cordon(gpus="1")),
        (Cordon(gpus="GPU-9,1").opened(PLAIN, "GPU-9"), Cordon(gpus="1")),
        (Cordon(gpus="GPU-9").opened(None, "GPU-9"), Cordon()),
        (Cordon(gpus="0:0,0").opened(MIG, "0"), Cordon()),
        (Cordon(gpus="MIG-0-1,0:0").opened(MIG, "0:1"), Cordon(gpus="0:0")),
        (Cordon(gpus="1").holding([GpuUuid("GPU-0")]), Cordon(gpus="1,GPU-0", held="GPU-0")),
        (Cordon().holding([GpuUuid("GPU-0"), GpuUuid("GPU-1")]), Cordon(gpus="GPU-0,GPU-1", held="GPU-0,GPU-1")),
        (FOR_A_WHILE.released([GpuUuid("GPU-0")]), Cordon(gpus="1,MIG-0-1", held="MIG-0-1")),
        (FOR_A_WHILE.released([GpuUuid("GPU-1")]), FOR_A_WHILE),
        (Cordon(gpus="GPU-0").released([GpuUuid("GPU-0")]), Cordon(gpus="GPU-0")),
        (Cordon(gpus="GPU-0", held="GPU-0").closed(PLAIN, "0"), Cordon(gpus="GPU-0")),
        (Cordon(gpus="GPU-0", held="GPU-0").closed(PLAIN, "1"), Cordon(gpus="GPU-0,GPU-1", held="GPU-0")),
        (Cordon(gpus="MIG-0-1", held="MIG-0-1").closed(MIG, "0"), Cordon(gpus="MIG-0-1,0")),
        (Cordon(gpus="GPU-0,GPU-1", held="GPU-0,GPU-1").opened(PLAIN, "0"), Cordon(gpus="GPU-1", held="GPU-1")),
        (Cordon(gpus="0", held="GPU-1").opened(PLAIN, "0"), Cordon()),
    ):
        assert found == expected
    # Held while no one has opened or closed one.
    both = [GpuUuid("GPU-0"), GpuUuid("GPU-1")]
    cordons_and_held = ("GPU-0,GPU-1", "GPU-0,GPU-1"), ("GPU-0,GPU-1", "GPU-0"), ("GPU-0", "GPU-0,GPU-1"), ("", "")
    holds = [Cordon(gpus=gpus, held=held).holds(both) for gpus, held in cordons_and_held]
    assert holds == [True, False, False, False]


def run(api: FakeKube, gpu: str, *, undo: bool = False) -> tuple[int, str]:
    err = io.StringIO()
    streams = Streams(out=err, err=err)
    act = command.uncordon if undo else command.cordon
    return console.answered(streams, lambda: act(api, streams, GpuName.parse(gpu))), err.getvalue()


def test_a_cordon_is_written_and_taken_back() -> None:
    api = kube_of([NODE])
    assert run(api, "node-a/1") == (0, "node-a/1: cordoned; new pods stay away from it\n")
    assert cordons_of(api) == "GPU-1"
    assert run(api, "node-a/1") == (0, "node-a/1: was cordoned before; new pods stay away from it\n")
    assert run(api, "node-a/1", undo=True) == (0, "node-a/1: uncordoned; it takes new pods\n")
    assert names.ANNOTATION_CORDON not in api.read("/api/v1/nodes/node-a")["metadata"]["annotations"]
    assert run(api, "node-a/1", undo=True) == (0, "node-a/1: was not cordoned; it takes new pods\n")


def test_a_gpu_that_claims_share_is_cordoned_as_another_and_not_drained() -> None:
    known = make_inventory(15, 15)
    api = kube_of([make_node(replace(known, gpus=known.gpus[:1], dra=known.gpus[1:]))])
    assert run(api, "node-a/1") == (0, "node-a/1: cordoned; new pods stay away from it\n")
    assert cordons_of(api) == "GPU-1"
    assert run(api, "node-a/1", undo=True) == (0, "node-a/1: uncordoned; it takes new pods\n")
    with pytest.raises(UnknownGpuError, match="GPU node-a/1 is shared by ResourceClaims"):
        evictable.on_gpu(api, GpuName.parse("node-a/1"), evictable.Permissions())


@pytest.mark.parametrize("undo", [False, True])
def test_who_names_no_gpu_of_a_node_is_told_those_that_are_there(undo: bool) -> None:
    api = kube_of([NODE, make_node(name="cpu")])
    told = "error: node node-a has no GPU '7'; its GPUs: 0 (GPU-0), 1 (GPU-1)\n"
    assert run(api, "node-a/7", undo=undo) == (1, told)
    code, message = run(api, "cpu/0", undo=undo)
    assert (code, "reports no GPUs" in message) == (1, True)


def test_what_another_writes_at_the_same_time_is_kept() -> None:
    api = kube_of([NODE])
    before("/node-a", annotated({names.ANNOTATION_CORDON: "0"}))(api)
    assert run(api, "node-a/1")[0] == 0
    assert cordons_of(api) == "0,GPU-1"
    api.fail_next(lambda call: call.verb == "patch", kube.ConflictError("changed"), times=5)
    assert "node node-a was changed by others 5 times" in run(api, "node-a/1", undo=True)[1]


@pytest.mark.parametrize("undo", [False, True])
def test_who_names_no_node_or_may_not_write_it_is_told_so(undo: bool) -> None:
    node = make_node(make_inventory(15, 15))
    node["metadata"]["annotations"][names.ANNOTATION_CORDON] = "1"
    api = kube_of([node])
    api.fail_next(lambda call: call.verb == "patch", kube.ForbiddenError("nodes is forbidden"))
    assert run(api, "none/0", undo=undo) == (1, "error: there is no node none\n")
    told = "error: not allowed: nodes is forbidden; patching nodes is needed\n"
    assert run(api, "node-a/1" if undo else "node-a/0", undo=undo) == (1, told)


@pytest.mark.parametrize("text", ["node-a", "/0", "node-a/", "a/b/c", "a/0,1"])
def test_what_names_no_gpu_is_a_wrong_argument(text: str) -> None:
    with pytest.raises(SettingsError) as error:
        GpuName.parse(text)
    assert str(error.value) == f"GPU {text!r}: write NODE/GPU, such as node-a/0, node-a/0:1 or node-a/GPU-UUID"
