"""`gpushare defrag`: what it proposes, what it refuses, and that it then does just that."""

import io
import json
import os
import signal
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.wire import allocations
from gpushare_cli import __main__, console
from gpushare_cli.console import Streams
from gpushare_cli.evict import defrag as command
from gpushare_cli.evict import drain as drains
from gpushare_cli.evict import move_search
from gpushare_cli.evict.gpu_cordon import GpuName
from gpushare_cli.targets import Target
from testing.builders import Json, make_allocation, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.defragging import defrag
from testing.cli.draining import budget, cordons_of, end, owned, pods, seeded
from testing.cli.explaining import kube_of
from testing.cli.podding import bound, mutated
from testing.cli.simulating import Result, lines
from testing.clock import ManualClock
from testing.fakes.kube import Call, FakeKube
from tests.unit.gpushare_cli.findings import Told

A, B = make_node(make_inventory(15, 15)), make_node(make_inventory(15, node="node-b"))
POD = "/api/v1/namespaces/default/pods"


def on(gpu: int, name: str, gib: int, *, node: str = "node-a", **fields: Any) -> Json:
    return owned(bound(name, make_grant(gpu, gib=gib), node=node, **fields), uid=f"rs-{name}")


def waits(gib: int = 15, **fields: Any) -> Json:
    return mutated(make_pod(make_container(gpu_mem=gib), name="large", **fields))


FULL = (on(0, "small", 3), on(1, "big", 13), on(0, "guest", 7, node="node-b"))
"""15 GiB fit nowhere; without `small`, which fits on node-b, they do."""
BARE = [bound("big", make_grant(1, gib=13)), bound("guest", make_grant(0, gib=7), node="node-b")]
"""The same without controllers that would recreate them."""


def test_the_one_eviction_that_makes_room_is_named_with_where_the_pod_goes(told: Told) -> None:
    api = kube_of([A, B, *FULL, waits()])
    found = defrag(api, max_moves=1, timeout=1)
    assert (found.code, found.err) == (0, "note: nothing was changed; --yes does it\n")
    assert found.out == lines(*told())
    assert not api.count("create") + api.count("patch") + api.count("delete")


def test_a_pod_that_fits_as_it_is_moves_no_one() -> None:
    found = defrag(kube_of([A, B, *FULL, waits(8)]))
    assert (found.code, found.out) == (0, "default/large fits on node-a, node-b as it is; no pod has to move\n")


def test_a_pod_whose_victim_would_wait_moves_no_one(told: Told) -> None:
    api = kube_of([A, B, on(0, "small", 9), on(1, "big", 13), on(0, "guest", 7, node="node-b"), waits()])
    found = defrag(api, yes=True)
    assert found.code == 3
    assert found.out == lines(*told())
    assert pods(api) == {"small", "big", "guest", "large"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda pod: pod["metadata"].pop("ownerReferences"), "have no controller that would recreate them"),
        (
            lambda pod: pod["metadata"]["annotations"].update(
                {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
            ),
            "have the annotation cluster-autoscaler.kubernetes.io/safe-to-evict=false",
        ),
        (
            lambda pod: pod["spec"].update(volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]),
            "demand what is not evaluated: volumes",
        ),
        (
            lambda pod: pod["spec"].update(schedulingGroup={"podGroupName": "gang"}),
            "demand what is not evaluated: other pods of its group",
        ),
        (
            lambda pod: pod["metadata"]["annotations"].update({"scheduling.k8s.io/group-name": "gang"}),
            "demand what is not evaluated: other pods of its group",
        ),
    ],
)
def test_a_pod_that_may_not_come_back_stays(change: Callable[[Json], object], why: str) -> None:
    small = on(0, "small", 3)
    change(small)
    found = defrag(kube_of([A, B, small, *BARE, waits()]))
    assert found.code == 3
    assert why in found.out
    assert "default/large: no set of evictions makes room: needs 15 GiB on one GPU; free per GPU on node-" in found.out


def test_no_pod_moves_for_one_that_has_room_as_soon_as_others_have_ended() -> None:
    small = on(0, "small", 3)
    small["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    objects = [A, B, small, *FULL[1:], waits()]
    found = defrag(kube_of(objects), yes=True)
    said = "default/large fits on node-a as soon as pods have ended that are being deleted; no pod has to move\n"
    assert (found.code, found.out) == (0, said)
    value = json.loads(defrag(kube_of(objects), output="json").out)
    assert (value["fitsSoon"], value["stay"]) == (["node-a"], {"are being deleted already": 1})
    still = defrag(kube_of([A, B, small, *BARE, bound("more", make_grant(0, gib=4)), waits()]))
    assert still.code == 3
    assert "1 pod are being deleted already" in still.out


def test_other_pods_that_may_take_the_room_are_told() -> None:
    rivals = [waits() | {"metadata": {**waits()["metadata"], "name": name, "uid": name}} for name in "abcd"]
    rivals[0]["spec"]["schedulingGates"] = [{"name": "x"}]
    found = defrag(kube_of([A, B, *FULL, waits(), *rivals]), dry_run=True)
    who = "default/b, default/c, default/d"
    assert found.err == f"note: other pods wait for GPUs ({who}); kube-scheduler may give the room to one of them\n"


def test_a_pod_that_its_budget_protects_stays() -> None:
    small = on(0, "small", 3, labels={"app": "web"})
    api = kube_of([A, B, small, *BARE, waits()])
    assert defrag(seeded(api, budget("web", 0, app="web"))).code == 3
    api.vanish("/apis/policy/v1/namespaces/default/poddisruptionbudgets/web")
    assert defrag(seeded(api, budget("web", 1, app="web"))).code == 0


def test_a_node_that_does_not_take_the_evicted_pod_is_no_place_for_it() -> None:
    tainted = make_node(make_inventory(15, node="node-b"))
    tainted["spec"] = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
    objects = [A, tainted, on(0, "small", 3), on(1, "big", 13)]
    assert "would stay Pending" in defrag(kube_of([*objects, waits()])).out
    picky = on(0, "small", 3)
    picky["spec"]["nodeSelector"] = {"pool": "a"}
    assert "default/guest" in defrag(kube_of([A, B, picky, *FULL[1:], waits()])).out


def test_a_manifest_is_answered_like_a_pod() -> None:
    pod = make_pod(make_container(gpu_mem=15), name="new") | {"status": {}}
    del pod["metadata"]["uid"]
    api = kube_of([A, B, *FULL])
    found = defrag(api, file="-", stdin=json.dumps(pod))
    assert found.out.splitlines()[-1] == "1 eviction makes room for default/new on node-a"
    made = defrag(api, ManualClock(0, Living(api)), yes=True, file="-", stdin=json.dumps(pod))
    assert (made.code, made.out.splitlines()[-1]) == (0, "there is room for default/new on node-a")


class Living:
    """The rest of the cluster: pods end, their owners make others, and the scheduler places them where it can."""

    def __init__(self, api: FakeKube, *, places: bool = True) -> None:
        self.api, self.places, self.seen = api, places, dict[str, str | None]()

    def __call__(self, seconds: float) -> None:
        """As time passes."""
        leaving = [pod for pod in self.api.objects("/api/v1/pods") if pod["metadata"].get("deletionTimestamp")]
        end(self.api)
        self.seen |= {pod["metadata"]["name"]: cordons_of(self.api) for pod in leaving}
        for pod in leaving if self.places else ():
            name = f"{pod['metadata']['name']}-again"
            grant = make_grant(0, gib=3)
            successor = owned(bound(name, grant, node="node-b"), uid=pod["metadata"]["ownerReferences"][0]["uid"])
            self.api.seed(POD, successor)
        waiting = [pod for pod in self.api.objects(POD) if not pod["spec"].get("nodeName")]
        for pod in waiting if not cordons_of(self.api) and "small-again" in pods(self.api) else ():
            self.api.edit(f"{POD}/{pod['metadata']['name']}", bind)


def bind(pod: Json) -> None:
    pod["spec"]["nodeName"] = "node-a"
    text = allocations.encode(make_allocation("large", make_grant(0, gib=15)))
    pod["metadata"].setdefault("annotations", {})[names.ANNOTATION_ALLOCATION] = text


def test_it_does_what_the_dry_run_says(told: Told) -> None:
    api = kube_of([A, B, *FULL, waits()])
    promised = json.loads(defrag(api, dry_run=True, output="json").out)
    living = Living(api)

    found = defrag(api, ManualClock(0, living), yes=True, output="json")

    value = json.loads(found.out)
    assert found.code == 0, found.err
    assert value["plan"] == promised["plan"]
    assert (value["plan"]["gpus"], value["plan"]["cordonedMeanwhile"]) == (["GPU-0"], ["GPU-0", "GPU-1"])
    assert (value["moved"], value["node"]) == ({"uid-small": "node-b"}, "node-a")
    assert pods(api) == {"small-again", "big", "guest", "large"}
    assert living.seen == {"small": "GPU-0,GPU-1"}, "nothing came back while the successor looked for a place"
    assert cordons_of(api) is None
    assert found.err.splitlines() == told()


def test_a_cordon_that_was_there_before_stays() -> None:
    node = make_node(make_inventory(15, 15))
    node["metadata"]["annotations"][names.ANNOTATION_CORDON] = "1"
    api = kube_of([node, B, *FULL, waits()])

    def placed(seconds: float) -> None:
        Living(api)(seconds)
        if "small-again" in pods(api):
            api.edit(f"{POD}/large", bind)

    assert defrag(api, ManualClock(0, placed), yes=True).code == 0
    assert cordons_of(api) == "1"


@pytest.mark.parametrize("output", ["table", "json"])
def test_it_stops_if_a_successor_finds_no_place_opens_the_gpu_again_and_tells_who_was_evicted(output: str) -> None:
    api = kube_of([A, B, *FULL, waits()])
    found = defrag(api, ManualClock(0, Living(api, places=False)), yes=True, timeout=20, output=output)
    why = "the successor of default/small has no place after 20 s"
    assert (found.code, found.err.splitlines()[-1]) == (3, f"error: {why}")
    assert cordons_of(api) is None
    if output == "json":
        value = json.loads(found.out)
        assert (value["moved"], value["stopped"]) == ({"uid-small": None}, why)
    else:
        assert found.out == lines(
            "POD            FROM    NOW ON",
            "default/small  node-a  evicted; its successor waits",
            "1 of 1 pods evicted for default/large, which has no place",
        )


def of_two(happens: Callable[[FakeKube], object]) -> tuple[FakeKube, Result]:
    """Two have to move; something happens when the first has gone."""
    there = [on(0, "one", 5), on(0, "two", 5), on(1, "big", 15), bound("guest", make_grant(0, gib=4), node="node-b")]
    api = kube_of([A, B, *there, waits()])
    assert len(json.loads(defrag(api, output="json").out)["plan"]["evictions"]) == 2

    def meanwhile(seconds: float) -> None:
        leaving = [pod for pod in api.objects(POD) if pod["metadata"].get("deletionTimestamp")]
        end(api)
        for pod in leaving:
            uid = pod["metadata"]["ownerReferences"][0]["uid"]
            api.seed(POD, owned(bound(f"again-{uid}", make_grant(0, gib=5), node="node-b"), uid=uid))
            happens(api)

    return api, defrag(api, ManualClock(0, meanwhile), yes=True)


CHANGED = "error: the cluster has changed, and the rest of the plan would no longer help"
GONE = "error: default/large is gone, and no longer needs room"


def replaced(api: FakeKube) -> None:
    api.vanish(f"{POD}/large")
    api.seed(POD, waits() | {"metadata": waits()["metadata"] | {"uid": "another"}})


@pytest.mark.parametrize(
    ("happens", "code", "said"),
    [
        (lambda api: api.vanish(f"{POD}/large"), 3, GONE),
        (replaced, 3, GONE),
        (lambda api: api.edit(f"{POD}/large", bind), 0, "default/large: is on node-a"),
        (
            lambda api: api.edit("/api/v1/nodes/node-a", lambda node: node.update(spec={"unschedulable": True})),
            3,
            CHANGED,
        ),
        (lambda api: api.seed(POD, bound("rival", make_grant(0, gib=8), node="node-b")), 3, CHANGED),
        (
            lambda api: run_cordon(api, "node-a/1"),
            3,
            "error: others have cordoned or uncordoned GPUs of node-a meanwhile",
        ),
    ],
)
def test_no_further_pod_moves_once_its_move_would_not_help_any_more(
    happens: Callable[[FakeKube], object], code: int, said: str
) -> None:
    api, found = of_two(happens)
    assert (found.code, found.err.splitlines()[-1]) == (code, said)
    assert len({"one", "two"} & pods(api)) == 1
    assert cordons_of(api) == ("GPU-1" if "others" in said else None)
    assert names.ANNOTATION_HELD not in api.read("/api/v1/nodes/node-a")["metadata"]["annotations"]


def run_cordon(api: FakeKube, gpu: str) -> None:
    """An administrator takes a GPU out of service."""
    assert drains.cordon(api, Streams(out=io.StringIO(), err=io.StringIO()), GpuName.parse(gpu)) == 0


@pytest.mark.parametrize("when", [2, 6])
def test_a_cordon_of_an_administrator_is_never_removed(when: float) -> None:
    """Nor is it read as one of the move_search, whenever it comes."""
    api = kube_of([A, B, *FULL, waits()])
    living = Living(api, places=False)

    def meanwhile(seconds: float) -> None:
        living(seconds)
        if seconds == when:
            run_cordon(api, "node-a/0")

    found = defrag(api, ManualClock(0, meanwhile), yes=True, timeout=20)
    assert found.code == 3
    assert cordons_of(api) == "GPU-0"
    assert "node-a/GPU-0: stays cordoned: others have done so meanwhile\nnode-a/GPU-1: uncordoned" in found.err


def test_a_plan_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large cluster it takes long: the evictions would follow on what is no longer so."""
    made = mock.Mock(wraps=move_search.plan)
    monkeypatch.setattr(move_search, "plan", made)
    api = kube_of([A, B, *FULL, waits()])
    assert defrag(api, ManualClock(0, Living(api)), yes=True).code == 0
    assert made.call_count == 1


def test_no_pod_moves_once_another_has_made_room() -> None:
    api, found = of_two(lambda api: api.vanish(f"{POD}/big"))
    assert "default/large: there is room now without further evictions" in found.err
    assert len({"one", "two"} & pods(api)) == 1
    assert cordons_of(api) is None


def test_a_gpu_that_others_have_cordoned_meanwhile_is_theirs() -> None:
    """Two administrators at once: the second finds the GPU taken, evicts no pod, and opens nothing."""
    api = kube_of([A, B, *FULL, waits()])
    theirs = {names.ANNOTATION_CORDON: "GPU-1"}

    def first(call: Call) -> bool:
        if call.verb == "patch":
            api.edit("/api/v1/nodes/node-a", lambda node: node["metadata"]["annotations"].update(theirs))
        return False

    api.fail_next(first, kube.ConflictError("never"))
    found = defrag(api, yes=True)
    said = "error: node-a/GPU-1: cordoned by others, or gone, meanwhile"
    assert (found.code, found.err.splitlines()[-1]) == (3, said)
    assert (cordons_of(api), api.count("create", "/eviction")) == ("GPU-1", 0)


def test_a_cordon_whose_answer_was_lost_is_removed() -> None:
    api = kube_of([A, B, *FULL, waits()])
    api.fail_next(lambda call: call.verb == "patch", "lost-reply")
    assert defrag(api, yes=True).code == 1
    assert cordons_of(api) is None


@pytest.mark.parametrize("ends_s", [0, 20])
def test_an_eviction_whose_answer_was_lost_is_asked_for_again_and_counts(ends_s: float) -> None:
    api = kube_of([A, B, *FULL, waits()])
    living = Living(api)
    api.fail_next(lambda call: call.path.endswith("/eviction"), "lost-reply")

    def meanwhile(seconds: float) -> None:
        if seconds > ends_s:
            living(seconds)

    found = defrag(api, ManualClock(0, meanwhile), yes=True)
    assert found.code == 0, found.err
    assert (pods(api), cordons_of(api)) == ({"small-again", "big", "guest", "large"}, None)


def test_the_need_is_looked_at_again_before_each_try_of_an_eviction(told: Told) -> None:
    """Its budget keeps it waiting, and meanwhile the pod that needs room is deleted."""
    small = on(0, "small", 3, labels={"app": "web"})
    api = seeded(kube_of([A, B, small, *FULL[1:], waits()]), budget("web", 1, app="web"))
    of_web = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web"

    def first(call: Call) -> bool:
        if call.path.endswith("/eviction") and api.count("create", "/eviction") <= 1:
            api.edit(of_web, lambda found: found["status"].update(disruptionsAllowed=0))
        return False

    def meanwhile(seconds: float) -> None:
        if seconds == 10:
            api.vanish(f"{POD}/large")
            api.edit(of_web, lambda found: found["status"].update(disruptionsAllowed=1))

    api.fail_next(first, kube.ConflictError("never"))
    found = defrag(api, ManualClock(0, meanwhile), yes=True)

    why = "Cannot evict pod as it would violate the pod's disruption budget."
    assert f"default/small cannot be evicted now ({why}); trying again\n" in found.err
    assert (found.code, found.err.splitlines()[-1]) == (3, GONE)
    assert "small" in pods(api)
    assert found.out == lines(*told())


@pytest.mark.parametrize(
    ("path", "code", "said", "evictions"),
    [
        ("/node-a", 1, "error: not allowed: no; patching nodes is needed", 0),
        ("/eviction", 3, "error: default/small cannot be evicted: no", 1),
    ],
)
def test_a_missing_right_ends_it_and_leaves_no_cordon(path: str, code: int, said: str, evictions: int) -> None:
    api = kube_of([A, B, *FULL, waits()])
    api.fail_next(lambda call: call.verb in {"patch", "create"} and call.path.endswith(path), kube.ForbiddenError("no"))
    found = defrag(api, yes=True)
    assert (found.code, found.err.splitlines()[-1]) == (code, said)
    assert (api.count("create", "/eviction"), cordons_of(api)) == (evictions, None)


def test_a_second_interrupt_leaves_word_of_the_cordons() -> None:
    api = kube_of([A, B, *FULL, waits()])
    err = io.StringIO()
    streams = Streams(out=io.StringIO(), err=err)

    def interrupted(seconds: float) -> None:
        api.fail_next(lambda call: call.verb == "patch", kube.UnreachableError("connection refused"), times=99)
        raise KeyboardInterrupt

    asked = command.Options(pod=Target.parse("large"), yes=True)
    with pytest.raises(KeyboardInterrupt):
        command.run(api, streams, asked, lambda: "default", ManualClock(0, interrupted), io.StringIO())
    told = "note: node-a/GPU-0 stays cordoned: interrupted; when it can be: gpushare uncordon node-a/GPU-0\n"
    assert told in err.getvalue()


def test_a_server_that_is_away_between_two_evictions_ends_nothing() -> None:
    def away(api: FakeKube) -> None:
        api.fail_next(lambda call: call.path.endswith("/nodes"), kube.UnreachableError("connection refused"), times=2)
        api.vanish(f"{POD}/guest")

    api, found = of_two(away)
    assert "default/two cannot be evicted now (connection refused); trying again" in found.err
    assert not {"one", "two"} & pods(api)


def test_an_interrupt_leaves_no_cordon() -> None:
    api = kube_of([A, B, *FULL, waits()])

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        defrag(api, ManualClock(0, interrupted), yes=True)
    assert cordons_of(api) is None


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

    streams = Streams(out=io.StringIO(), err=Closed())
    asked = command.Options(pod=Target.parse("large"), yes=True)
    with pytest.raises(BrokenPipeError):
        console.answered(
            streams, lambda: command.run(api, streams, asked, lambda: "default", ManualClock(0), io.StringIO())
        )
    assert cordons_of(api) is None


def test_a_pod_with_two_budgets_is_not_proposed() -> None:
    """The API server evicts no such pod."""
    small = on(0, "small", 3, labels={"app": "web", "tier": "a"})
    api = seeded(kube_of([A, B, small, *FULL[1:], waits(14)]), budget("web", 5, app="web"), budget("a", 5, tier="a"))
    assert "small" not in defrag(api).out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dry_run": True, "yes": True}, "--dry-run and --yes contradict each other; leave one out"),
        ({"max_moves": 0}, "--max-moves 0: write at least 1"),
        ({"timeout": 0}, "--timeout 0: write at least 1"),
        ({"file": "x.yaml"}, "x.yaml: "),
        ({"file": "-", "pod": "y"}, "give a pod that waits, or its manifest with -f"),
        ({"pod": ""}, "give a pod that waits, or its manifest with -f"),
        ({"pod": "deployment/web"}, "deployment/web: name one pod, or give its manifest with -f"),
        ({"pod": "small"}, "pod default/small is on node-a already"),
        ({"pod": "cpu"}, "pod default/cpu asks for no GPU"),
        ({"pod": "leaves"}, "pod default/leaves is being deleted\n"),
        (
            {"pod": "gated"},
            "pod default/gated waits for others to remove its scheduling gates: kueue.x-k8s.io/admission\n",
        ),
    ],
)
def test_what_it_cannot_be_asked_is_told(options: dict[str, Any], message: str) -> None:
    cpu, leaves, gated = make_pod(make_container(), name="cpu"), make_pod(name="leaves"), make_pod(name="gated")
    leaves["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    found = defrag(kube_of([A, *FULL, waits(), cpu, leaves, gated]), **options)
    assert found.err.startswith(f"error: {message}")
    assert found.code == (1 if message == "x.yaml: " else 2)


def test_a_file_with_several_pods_is_told() -> None:
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [make_container(gpu_mem=3)]}}},
    }
    found = defrag(kube_of([A]), file="-", stdin=json.dumps(workload))
    message = "standard input: has 2 pods; give one pod, or a workload with one replica"
    assert (found.code, found.err) == (2, f"error: {message}\n")


def test_a_gpu_that_cannot_be_opened_again_is_told() -> None:
    api = kube_of([A, B, *FULL, waits()])

    def meanwhile(seconds: float) -> None:
        if seconds == 2:
            api.fail_next(lambda call: call.verb == "patch", kube.UnreachableError("connection refused"), times=99)

    found = defrag(api, ManualClock(0, meanwhile), yes=True, timeout=10)
    assert found.code == 3
    why = "the node cannot be written after 10 s (connection refused)"
    assert f"note: node-a/GPU-0 stays cordoned: {why}; when it can be: gpushare uncordon node-a/GPU-0" in found.err
    assert found.err.splitlines()[-1] == "error: the successor of default/small has no place after 10 s"
