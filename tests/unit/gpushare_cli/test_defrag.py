"""`gpushare defrag`: what it proposes, what it refuses, and that it then does just that."""

import io
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.wire import allocations
from gpushare_cli import __main__
from gpushare_cli.console import Streams
from gpushare_cli.evict import defrag as command, drain as drains, move_search
from gpushare_cli.evict.gpu_cordon import GpuName
from gpushare_cli.reading import Target
from testing.builders import Json, make_allocation, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.defragging import defrag
from testing.cli.draining import (
    Change,
    allows,
    annotated,
    before,
    budget,
    cluster,
    cordons_of,
    end,
    fails,
    left,
    nothing,
    owned,
    pods,
)
from testing.cli.explaining import kube_of
from testing.cli.podding import bound, changed, mutated
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told

A, B = make_node(make_inventory(15, 15)), make_node(make_inventory(15, node="node-b"))
POD = "/api/v1/namespaces/default/pods"
Passing = Callable[[FakeKube, float], object]
FORBIDDEN = kube.ForbiddenError("no")
AWAY = kube.UnreachableError("connection refused")


def on(gpu: int, name: str, gib: int, *, node: str = "node-a", **fields: Any) -> Json:
    return owned(bound(name, make_grant(gpu, gib=gib), node=node, **fields), uid=f"rs-{name}")


def waits(gib: int = 15, name: str = "large", **spec: Any) -> Json:
    return changed(mutated(make_pod(make_container(gpu_mem=gib), name=name)), "spec", **spec)


def small(gib: int = 3, **fields: Any) -> Json:
    return on(0, "small", gib, **fields)


BIG, GUEST = on(1, "big", 13), on(0, "guest", 7, node="node-b")
FULL = (small(), BIG, GUEST)
"""15 GiB fit nowhere; without `small`, which fits on node-b, they do."""
BARE = [bound("big", make_grant(1, gib=13)), bound("guest", make_grant(0, gib=7), node="node-b")]
"""The same without controllers that would recreate them."""


def lives(api: FakeKube, seconds: float, *, places: bool = True) -> None:
    """The rest of the cluster: pods end, their owners make others, and the scheduler places them where it can."""
    leaving = [pod for pod in api.objects("/api/v1/pods") if pod["metadata"].get("deletionTimestamp")]
    end(api)
    for pod in leaving if places else ():
        again = bound(f"{pod['metadata']['name']}-again", make_grant(0, gib=3), node="node-b")
        api.seed(POD, owned(again, uid=pod["metadata"]["ownerReferences"][0]["uid"]))
    waiting = [pod for pod in api.objects(POD) if not pod["spec"].get("nodeName")]
    for pod in waiting if not cordons_of(api) and "small-again" in pods(api) else ():
        api.edit(f"{POD}/{pod['metadata']['name']}", bind)


alone: Passing = partial(lives, places=False)
"""No successor finds a place."""


def bind(pod: Json) -> None:
    pod["spec"]["nodeName"] = "node-a"
    text = allocations.encode(make_allocation("large", make_grant(0, gib=15)))
    pod["metadata"].setdefault("annotations", {})[names.ANNOTATION_ALLOCATION] = text


def placing(api: FakeKube, seconds: float) -> None:
    """The pod gets its room also where a cordon stays."""
    lives(api, seconds)
    if "small-again" in pods(api):
        api.edit(f"{POD}/large", bind)


def late(api: FakeKube, seconds: float) -> None:
    if seconds > 20:
        lives(api, seconds)


def of_two(happens: Change) -> Passing:
    """Something happens when the first of two pods that have to move has gone."""

    def meanwhile(api: FakeKube, seconds: float) -> None:
        leaving = [pod for pod in api.objects(POD) if pod["metadata"].get("deletionTimestamp")]
        end(api)
        for pod in leaving:
            is_first = {"one", "two"} & pods(api)
            uid = pod["metadata"]["ownerReferences"][0]["uid"]
            api.seed(POD, owned(bound(f"again-{uid}", make_grant(0, gib=5), node="node-b"), uid=uid))
            if is_first:
                happens(api)

    return meanwhile


def at(when: float, change: Change, rest: Passing = lambda _api, _seconds: None) -> Passing:
    """After so many seconds, beside the rest of the cluster."""

    def meanwhile(api: FakeKube, seconds: float) -> None:
        rest(api, seconds)
        if seconds == when:
            change(api)

    return meanwhile


def of_node(change: Callable[[Json], object]) -> Change:
    return lambda api: api.edit("/api/v1/nodes/node-a", change)


def replaced(api: FakeKube) -> None:
    api.vanish(f"{POD}/large")
    api.seed(POD, changed(waits(), "metadata", uid="another"))


def gone_and_allowed(api: FakeKube) -> None:
    api.vanish(f"{POD}/large")
    allows(1)(api)


def away(api: FakeKube) -> None:
    fails("/nodes", AWAY, 2)(api)
    api.vanish(f"{POD}/guest")


def run_cordon(gpu: str) -> Change:
    """An administrator takes a GPU out of service."""
    streams = Streams(out=io.StringIO(), err=io.StringIO())
    return lambda api: drains.cordon(api, streams, GpuName.parse(gpu))


@dataclass(frozen=True, kw_only=True)
class Case:
    there: Sequence[Json] = (A, B, *FULL)
    pod: Json = field(default_factory=waits)
    options: Mapping[str, Any] = field(default_factory=dict)
    first: Change = nothing
    meanwhile: Passing = lambda _api, _seconds: None


def story(case: Case) -> list[str]:
    """What is said, and what is left."""
    api = cluster(*case.there, case.pod)
    case.first(api)
    found = defrag(api, ManualClock(0, partial(case.meanwhile, api)), **case.options)
    return [*found.lines, left(api)]


YES: dict[str, Any] = {"yes": True}
SAFE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
NOT_OWNED = bound("small", make_grant(0, gib=3))
LEAVING = changed(small(), "metadata", deletionTimestamp="2026-01-01T00:00:00Z")
WEB, TWO = {"app": "web"}, {"app": "web", "tier": "a"}
TAINTED = make_node(make_inventory(15, node="node-b"))
TAINTED["spec"] = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
CORDONED = make_node(make_inventory(15, 15))
CORDONED["metadata"]["annotations"][names.ANNOTATION_CORDON] = "1"
NEW = make_pod(make_container(gpu_mem=15), name="new") | {"status": {}}
del NEW["metadata"]["uid"]
PAIR = (A, B, on(0, "one", 5), on(0, "two", 5), on(1, "big", 15), bound("guest", make_grant(0, gib=4), node="node-b"))
RIVALS = [waits(name="a", schedulingGates=[{"name": "x"}]), *(waits(name=name) for name in "bcd")]
WORKLOAD = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {"replicas": 2, "template": {"spec": {"containers": [make_container(gpu_mem=3)]}}},
}
ASKED = [
    *(A, *FULL, make_pod(make_container(), name="cpu")),
    changed(make_pod(name="leaves"), "metadata", deletionTimestamp="2026-01-01T00:00:00Z"),
    changed(make_pod(name="gated"), "spec", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
]


def stays(pod: Json) -> Case:
    """A pod that may not come back."""
    return Case(there=[A, B, pod, *BARE])


def asked(**options: Any) -> Case:
    return Case(there=ASKED, options=options)


def deployed(api: FakeKube) -> None:
    path = "/apis/apps/v1/namespaces/default/deployments"
    api.seed(path, changed(WORKLOAD, "spec", selector={"matchLabels": WEB}))


def meanwhile(happens: Change) -> Case:
    """The first of two pods has moved."""
    return Case(there=PAIR, options=YES, meanwhile=of_two(happens))


CASES: dict[str, Case] = {
    "the one eviction that makes room is named, with where the pod goes": Case(options={"max_moves": 1, "timeout": 1}),
    "a pod that fits as it is moves no one": Case(pod=waits(8)),
    "a pod whose victim would wait moves no one": Case(there=[A, B, small(9), BIG, GUEST], options=YES),
    "a pod without a controller stays": stays(NOT_OWNED),
    "so does one that its author keeps": stays(small(annotations=SAFE)),
    "one with a volume": stays(
        changed(small(), "spec", volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}])
    ),
    "one of a group": stays(changed(small(), "spec", schedulingGroup={"podGroupName": "gang"})),
    "one of Volcano's groups": stays(small(annotations={"scheduling.k8s.io/group-name": "gang"})),
    "one that its budget protects": Case(there=[A, B, small(labels=WEB), *BARE, budget("web", 0, **WEB)]),
    "but not if the budget allows it": Case(there=[A, B, small(labels=WEB), *BARE, budget("web", 1, **WEB)]),
    # The API server evicts no such pod.
    "one with two budgets": Case(
        there=[A, B, small(labels=TWO), BIG, GUEST, budget("web", 5, app="web"), budget("a", 5, tier="a")],
        pod=waits(14),
    ),
    "no pod moves for one that has room as soon as others have ended": Case(
        there=[A, B, LEAVING, BIG, GUEST], options=YES
    ),
    "which programs are told": Case(there=[A, B, LEAVING, BIG, GUEST], options={"output": "json"}),
    "unless that room is not enough": Case(there=[A, B, LEAVING, *BARE, bound("more", make_grant(0, gib=4))]),
    "other pods that may take the room are told": Case(there=[A, B, *FULL, *RIVALS], options={"dry_run": True}),
    "a tainted node is no place for the evicted pod": Case(there=[A, TAINTED, small(), BIG]),
    "a manifest is answered like a pod": Case(options={"file": "-", "stdin": json.dumps(NEW)}),
    "room is made for it": Case(options=YES | {"file": "-", "stdin": json.dumps(NEW)}, meanwhile=lives),
    "a cordon that was there before stays": Case(there=[CORDONED, B, *FULL], options=YES, meanwhile=placing),
    "it stops if a successor finds no place": Case(options=YES | {"timeout": 20}, meanwhile=alone),
    "programs are told who was evicted": Case(options=YES | {"timeout": 20, "output": "json"}, meanwhile=alone),
    "no further pod moves once the one that needs room is gone": meanwhile(lambda api: api.vanish(f"{POD}/large")),
    "nor once another has its name": meanwhile(replaced),
    "nor once it is placed": meanwhile(lambda api: api.edit(f"{POD}/large", bind)),
    "nor once its node takes no pods": meanwhile(of_node(lambda node: node.update(spec={"unschedulable": True}))),
    "nor once a rival has the successor's place": meanwhile(
        lambda api: api.seed(POD, bound("rival", make_grant(0, gib=8), node="node-b"))
    ),
    "nor once an administrator cordons its GPUs": meanwhile(run_cordon("node-a/1")),
    "nor once another has made room": meanwhile(lambda api: api.vanish(f"{POD}/big")),
    "a server that is away between two evictions ends nothing": meanwhile(away),
    "nor does one that is away while a successor is awaited": Case(
        options=YES, meanwhile=at(2, fails("/pods", AWAY), lives)
    ),
    # Nor is it read as one of the defragmentation, whenever it comes.
    "a cordon of an administrator is never removed": Case(
        options=YES | {"timeout": 20}, meanwhile=at(2, run_cordon("node-a/0"), alone)
    ),
    "also if it comes late": Case(options=YES | {"timeout": 20}, meanwhile=at(6, run_cordon("node-a/0"), alone)),
    # Two administrators at once: the second finds the GPU taken, evicts no pod, and opens nothing.
    "a GPU that others have cordoned meanwhile is theirs": Case(
        options=YES, first=before("/node-a", annotated({names.ANNOTATION_CORDON: "GPU-1"}))
    ),
    "a cordon whose answer was lost is removed": Case(options=YES, first=fails("", "lost-reply", verb="patch")),
    "an eviction whose answer was lost is asked for again": Case(
        options=YES, first=fails("/eviction", "lost-reply"), meanwhile=lives
    ),
    "and counts": Case(options=YES, first=fails("/eviction", "lost-reply"), meanwhile=late),
    # Its budget keeps it waiting, and meanwhile the pod that needs room is deleted.
    "the need is looked at again before each try of an eviction": Case(
        there=[A, B, small(labels=WEB), BIG, GUEST, budget("web", 1, **WEB)],
        options=YES,
        first=before("/eviction", allows(0)),
        meanwhile=at(10, gone_and_allowed),
    ),
    "a missing right to cordon ends it": Case(
        options=YES, first=fails("/node-a", kube.ForbiddenError("no"), verb="patch")
    ),
    "so does one to evict, and leaves no cordon": Case(options=YES, first=fails("/eviction", FORBIDDEN)),
    "a GPU that cannot be opened again is told": Case(
        options=YES | {"timeout": 10}, meanwhile=at(2, fails("", AWAY, 99, "patch"))
    ),
    "a contradiction is told": asked(dry_run=True, yes=True),
    "a file and a pod": asked(file="-", pod="y"),
    "neither of them": asked(pod=""),
    "a workload that is not there": asked(pod="deployment/web"),
    "a workload of which a pod waits": Case(
        there=(A, B, changed(small(), "metadata", labels=WEB), BIG, GUEST),
        pod=changed(waits(), "metadata", labels=WEB),
        options={"pod": "deployment/web"},
        first=deployed,
    ),
    "a workload of which none waits": Case(there=ASKED, options={"pod": "deploy/web"}, first=deployed),
    "a pod that has a node": asked(pod="small"),
    "a pod without GPUs": asked(pod="cpu"),
    "a pod that is being deleted": asked(pod="leaves"),
    "a pod behind gates": asked(pod="gated"),
    "a file with several pods": asked(file="-", stdin=json.dumps(WORKLOAD)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_defragmentation_says_and_does(case: str) -> None:
    assert story(CASES[case]) == findings.golden("defrag", case)


def test_it_does_what_the_dry_run_says(told: Told) -> None:
    api = kube_of([A, B, *FULL, waits()])
    promised = json.loads(defrag(api, dry_run=True, output="json").out)
    seen: dict[str, str | None] = {}

    def passes(seconds: float) -> None:
        seen.update((name, cordons_of(api)) for name in there - pods(api) - seen.keys())
        lives(api, seconds)

    there = pods(api)
    found = defrag(api, ManualClock(0, passes), yes=True, output="json")

    value = json.loads(found.out)
    assert found.code == 0, found.err
    assert value["plan"] == promised["plan"]
    assert (value["plan"]["gpus"], value["plan"]["cordonedMeanwhile"]) == (["GPU-0"], ["GPU-0", "GPU-1"])
    assert (value["moved"], value["node"]) == ({"uid-small": "node-b"}, "node-a")
    assert pods(api) == {"small-again", "big", "guest", "large"}
    assert seen == {"small": "GPU-0,GPU-1"}, "nothing came back while the successor looked for a place"
    assert cordons_of(api) is None
    assert found.err.splitlines() == told()


def test_a_plan_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large cluster it takes long: the evictions would follow on what is no longer so."""
    made = mock.Mock(wraps=move_search.plan)
    monkeypatch.setattr(move_search, "plan", made)
    api = kube_of([A, B, *FULL, waits()])
    assert defrag(api, ManualClock(0, partial(lives, api)), yes=True).code == 0
    assert made.call_count == 1


def carried_out(api: FakeKube, clock: ManualClock, err: io.StringIO) -> int:
    asked, streams = command.Options(pod=Target.parse("large"), yes=True), Streams(out=io.StringIO(), err=err)
    return command.run(api, streams, asked, lambda: "default", clock, io.StringIO())


@pytest.mark.parametrize("again", [False, True])
def test_an_interrupt_leaves_no_cordon_and_a_second_one_leaves_word_of_it(again: bool) -> None:
    api, err = kube_of([A, B, *FULL, waits()]), io.StringIO()

    def interrupted(seconds: float) -> None:
        if again:
            api.fail_next(lambda call: call.verb == "patch", kube.UnreachableError("connection refused"), times=99)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carried_out(api, ManualClock(0, interrupted), err)
    told = "note: node-a/GPU-0 stays cordoned: interrupted; when it can be: gpushare uncordon node-a/GPU-0\n"
    assert (cordons_of(api) is None, told in err.getvalue()) == (not again, again)


def test_a_signal_ends_it_like_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare.kube.client.connect", lambda *_: None)
    monkeypatch.setattr(command, "run", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert __main__.main(["defrag", "large", "--kubeconfig", "none"]) == 130


def test_a_reader_that_has_left_leaves_no_cordon() -> None:
    """As in `gpushare defrag --yes 2>&1 | head -3`."""
    api = kube_of([A, B, *FULL, waits()])

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            if "evicted" in text or "uncordoned" in text:
                raise BrokenPipeError
            return len(text)

    with pytest.raises(BrokenPipeError):
        carried_out(api, ManualClock(0), Closed())
    assert cordons_of(api) is None
