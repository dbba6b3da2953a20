"""`gpushare drain`: who is evicted, who is not and why, and that the dry run says what then happens."""

import io
import json
from dataclasses import replace

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare_cli.console import Streams
from gpushare_cli.evict import drain as command
from gpushare_cli.evict.gpu_cordon import GpuName
from testing.builders import Json, make_grant, make_inventory, make_node
from testing.cli.draining import budget, cordons_of, drain, end, owned, pods, seeded
from testing.cli.explaining import kube_of
from testing.cli.podding import bound
from testing.cli.simulating import lines
from testing.clock import ManualClock
from testing.fakes.kube import Call, FakeKube
from tests.unit.gpushare_cli.findings import Told

NODE = make_node(make_inventory(15, 15))
WEB = {"app": "web"}


def on(gpu: int, name: str, *, gib: int = 3, **fields: object) -> Json:
    return owned(bound(name, make_grant(gpu, gib=gib), **fields))  # type: ignore[arg-type] # of the pod


def test_the_pods_of_one_gpu_leave_and_no_others(told: Told) -> None:
    api = kube_of([NODE, on(0, "here"), on(1, "there")])
    found = drain(api)
    assert (found.code, found.out) == (0, "node-a/0: no pod is on it\n")
    assert found.err == lines(*told())
    assert pods(api) == {"there"}
    assert cordons_of(api) == "GPU-0"


def test_a_pod_on_both_gpus_leaves_with_either() -> None:
    api = kube_of([NODE, owned(bound("both", make_grant(0, 1)))])
    assert drain(api, "node-a/1").code == 0
    assert pods(api) == set()


def test_a_dry_run_changes_nothing_and_says_what_would_happen(told: Told) -> None:
    api = kube_of([NODE, on(0, "here"), bound("bare", make_grant(0)), on(1, "there")])
    found = drain(api, dry_run=True)
    assert found.code == 3
    assert found.out == lines(*told())
    assert not api.count("create") + api.count("patch") + api.count("delete")


@pytest.mark.parametrize("force", [False, True])
def test_a_pod_that_nothing_recreates_is_evicted_by_force_only(force: bool) -> None:
    api = kube_of([NODE, bound("bare", make_grant(0))])
    found = drain(api, force=force)
    assert pods(api) == (set() if force else {"bare"})
    assert found.code == (0 if force else 3)
    assert ("default/bare: stays: nothing recreates it" in found.err) is not force
    assert ("node-a/0 stays cordoned; gpushare uncordon node-a/0 lets new pods in" in found.err) is not force


@pytest.mark.parametrize("agreed", [False, True])
def test_a_pod_with_data_of_its_own_is_evicted_if_that_may_be_lost(agreed: bool) -> None:
    pod = on(0, "writes")
    pod["spec"]["volumes"] = [{"name": "cache", "emptyDir": {}}, {"name": "code", "configMap": {}}]
    promised = drain(kube_of([NODE, pod]), delete_emptydir_data=agreed, dry_run=True)
    assert ("fits on node-a" in promised.out) is agreed
    found = drain(kube_of([NODE, pod]), delete_emptydir_data=agreed)
    assert found.code == (0 if agreed else 3)
    why = "it would lose what it keeps in emptyDir volumes (cache); --delete-emptydir-data accepts that"
    assert (why in found.out) is not agreed


@pytest.mark.parametrize(
    ("annotation", "value", "why"),
    [
        ("kubernetes.io/config.mirror", "x", "the kubelet runs it from a file of its node; remove that file"),
        (names.ANNOTATION_ALLOCATION, "{", "what it holds cannot be read"),
    ],
)
def test_a_pod_that_cannot_be_evicted_is_not_passed_over(annotation: str, value: str, why: str) -> None:
    assert why in drain(kube_of([NODE, on(0, "odd", annotations={annotation: value})])).out


def test_a_budget_is_waited_for_until_it_allows_the_next(told: Told) -> None:
    api = seeded(kube_of([NODE, on(0, "one", labels=WEB), on(0, "two", labels=WEB)]), budget("web", 1, **WEB))

    def meanwhile(seconds: float) -> None:
        end(api)
        if seconds == 20:
            path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web"
            api.edit(path, lambda found: found["status"].update(disruptionsAllowed=1))

    found = drain(api, clock=ManualClock(0, meanwhile))
    assert found.code == 0
    assert [line for line in found.err.splitlines() if "default/" in line] == told()


def test_when_time_is_up_it_says_who_is_left_and_why(told: Told) -> None:
    api = seeded(kube_of([NODE, on(0, "one", labels=WEB)]), budget("web", 0, **WEB))
    clock = ManualClock(0)
    found = drain(api, clock=clock, timeout=30)
    assert (found.code, clock.at) == (3, 30)
    assert found.out == lines(*told())
    assert cordons_of(api) == "GPU-0"


def test_a_pod_with_two_budgets_cannot_be_evicted_by_anyone() -> None:
    labels = {"app": "web", "tier": "a"}
    api = seeded(kube_of([NODE, on(0, "one", labels=labels)]), budget("web", 5, app="web"), budget("a", 5, tier="a"))
    found = drain(api)
    why = "several budgets select it (a, web), and the API server evicts no such pod; leave one"
    assert found.out.endswith(f"stays  {why}\n")


def test_a_pod_that_came_after_the_cordon_leaves_as_well() -> None:
    """Its binding was on its way."""
    api = kube_of([NODE])

    def meanwhile(seconds: float) -> None:
        end(api)
        if seconds == 6:
            api.seed("/api/v1/namespaces/default/pods", on(0, "late"))

    found = drain(api, clock=ManualClock(0, meanwhile))
    assert (found.code, pods(api)) == (0, set())
    assert "default/late: evicted" in found.err


def test_the_least_important_pods_leave_first_and_of_these_the_youngest() -> None:
    there = []
    for name, priority, day in (("old", 0, 1), ("young", 0, 9), ("high", 5, 9)):
        pod = on(0, name, labels=WEB)
        pod["spec"]["priority"] = priority
        pod["metadata"]["creationTimestamp"] = f"2026-01-0{day}T00:00:00Z"
        there.append(pod)
    api = seeded(kube_of([NODE, *there]), budget("web", 1, **WEB))
    promised = json.loads(drain(api, dry_run=True, output="json").out)["planned"]
    drain(api, clock=ManualClock(0), timeout=0)
    assert [row["name"] for row in promised] == ["young", "old", "high"]
    assert pods(api) == {"old", "high"}


def test_a_number_that_becomes_another_gpus_evicts_none_of_its_pods() -> None:
    """A GPU that fails drops out of the list, and the next one takes its number."""
    api = seeded(kube_of([NODE, on(0, "here", labels={"a": "b"}), on(1, "there")]), budget("web", 0, a="b"))
    listed = make_inventory(15, 15)
    shifted = replace(listed, gpus=(replace(listed.gpus[1], index=0),))

    def meanwhile(seconds: float) -> None:
        end(api)
        if seconds == 4:
            annotations = make_node(shifted)["metadata"]["annotations"]
            api.edit("/api/v1/nodes/node-a", lambda node: node["metadata"]["annotations"].update(annotations))
        if seconds == 8:
            path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web"
            api.edit(path, lambda found: found["status"].update(disruptionsAllowed=1))

    found = drain(api, clock=ManualClock(0, meanwhile))
    assert (found.code, found.out) == (0, "node-a/0: no pod is on it\n")
    assert pods(api) == {"there"}


def test_nothing_is_evicted_any_more_once_others_let_new_pods_in() -> None:
    api = seeded(kube_of([NODE, on(0, "one", labels=WEB)]), budget("web", 0, **WEB))

    def meanwhile(seconds: float) -> None:
        if seconds == 4:
            api.edit("/api/v1/nodes/node-a", lambda node: node["metadata"]["annotations"].pop(names.ANNOTATION_CORDON))
            api.seed("/api/v1/namespaces/default/pods", on(0, "new"))

    found = drain(api, clock=ManualClock(0, meanwhile))
    assert found.code == 3
    assert found.err.endswith("error: node-a/0 was uncordoned by others meanwhile; nothing more is evicted\n")
    assert found.out.startswith("POD          MEMORY  WHAT   WHY\ndefault/one  3 GiB   waits  budget web")
    assert pods(api) == {"one", "new"}


def test_an_eviction_that_is_forbidden_is_not_tried_for_ever() -> None:
    api = kube_of([NODE, on(0, "one")])
    api.fail_next(
        lambda call: call.path.endswith("/eviction"), kube.ForbiddenError("pods/eviction is forbidden"), times=9
    )
    found = drain(api, clock=ManualClock(0))
    assert found.code == 3
    assert "stays  cannot be evicted: pods/eviction is forbidden" in found.out
    assert api.count("create", "/eviction") == 3


def test_a_pod_that_waits_to_start_is_not_protected_by_a_budget() -> None:
    """The eviction API asks no budget then."""
    api = seeded(kube_of([NODE, on(0, "one", labels=WEB, phase="Pending")]), budget("web", 0, **WEB))
    assert drain(api, dry_run=True).code == 0
    assert drain(api).code == 0


def ready(pod: Json) -> Json:
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return pod


def test_a_pod_that_is_not_ready_leaves_without_its_budget_if_enough_others_are() -> None:
    """`one` does not count as healthy for the eviction API, so the disruption that is allowed is left for `two`."""
    web = budget("web", 1, **WEB)
    web["status"].update(currentHealthy=2, desiredHealthy=1)
    pods_there = [on(0, "one", labels=WEB), ready(on(0, "two", labels=WEB)), ready(on(0, "zwei", labels=WEB))]
    api = seeded(kube_of([NODE, *pods_there]), web)
    promised = json.loads(drain(api, dry_run=True, output="json").out)["planned"]
    asked = json.loads(drain(api, clock=ManualClock(0), timeout=0, output="json").out)
    assert {row["name"]: row["step"] for row in promised} == {"one": "evict", "two": "evict", "zwei": "wait"}
    assert {row["name"]: row["step"] for row in asked["left"]} == {"one": "leaving", "two": "leaving", "zwei": "wait"}


def test_a_pod_on_a_gpu_that_has_dropped_out_meanwhile_is_not_passed_over() -> None:
    """What it holds is a part of a GPU whose size is not known any more."""
    share = replace(make_grant(1, gib=0), memory_percent=20, compute_percent=20)
    api = seeded(kube_of([NODE, on(0, "other")]), budget("web", 0, a="b"))
    part = owned(bound("part", share, labels={"a": "b"}))
    part["spec"]["containers"][0]["resources"]["limits"] = {names.GPU_PERCENT: "20"}
    api.seed("/api/v1/namespaces/default/pods", part)
    listed = make_inventory(15, 15)
    annotations = make_node(replace(listed, gpus=listed.gpus[:1]))["metadata"]["annotations"]

    def meanwhile(seconds: float) -> None:
        if seconds == 4:
            api.edit("/api/v1/nodes/node-a", lambda node: node["metadata"]["annotations"].update(annotations))

    found = drain(api, "node-a/1", clock=ManualClock(0, meanwhile), timeout=20)
    assert "default/part" in found.out
    assert found.code == 3


@pytest.mark.parametrize("error", [kube.UnreachableError("refused"), kube.ServerFaultError("etcd has no leader")])
def test_an_eviction_that_the_server_could_not_answer_is_asked_for_again(error: kube.KubeError) -> None:
    api = kube_of([NODE, on(0, "here")])
    api.fail_next(lambda call: call.path.endswith("/eviction"), error, times=6)
    found = drain(api)
    assert found.code == 0
    assert f"default/here: cannot be evicted now: {error}\ndefault/here: evicted\n" in found.err


def test_a_pod_that_ended_by_itself_was_not_evicted() -> None:
    api = kube_of([NODE, on(0, "here")])

    def ends(call: Call) -> bool:
        if call.path.endswith("/eviction"):
            api.vanish("/api/v1/namespaces/default/pods/here")
        return False

    api.fail_next(ends, kube.ConflictError("never"))
    found = drain(api)
    assert (found.code, "evicted" in found.err) == (0, False)


def test_an_interrupt_says_that_the_gpu_stays_cordoned() -> None:
    api, err = seeded(kube_of([NODE, on(0, "one", labels={"a": "b"})]), budget("web", 0, a="b")), io.StringIO()

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    streams = Streams(out=io.StringIO(), err=err)
    with pytest.raises(KeyboardInterrupt):
        command.run(api, streams, command.Options(gpu=GpuName.parse("node-a/0")), ManualClock(0, interrupted))
    how = "gpushare uncordon node-a/0 lets new pods in, gpushare drain node-a/0 goes on"
    assert err.getvalue().splitlines()[-1] == f"note: node-a/0 stays cordoned; {how}"


def test_a_missing_right_to_cordon_is_told_and_nothing_is_evicted() -> None:
    api = kube_of([NODE, on(0, "here")])
    api.fail_next(lambda call: call.verb == "patch", kube.ForbiddenError("nodes is forbidden"))
    found = drain(api)
    assert (found.code, found.err) == (1, "error: not allowed: nodes is forbidden; patching nodes is needed\n")
    assert not api.count("create", "/eviction")


def test_a_drain_takes_a_gpu_over_from_a_defragmentation() -> None:
    node = make_node(make_inventory(15, 15))
    annotations = node["metadata"]["annotations"]
    annotations[names.ANNOTATION_CORDON] = annotations[names.ANNOTATION_HELD] = "GPU-0"
    api = kube_of([node, on(0, "here")])
    assert drain(api).code == 0
    assert cordons_of(api) == "GPU-0"
    assert names.ANNOTATION_HELD not in api.read("/api/v1/nodes/node-a")["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("gpu", "code", "message"),
    [
        ("node-a/7", 2, "node node-a has no GPU '7'; its GPUs: 0 (GPU-0), 1 (GPU-1)"),
        ("none/0", 1, "there is no node none"),
        ("cpu/0", 2, "node cpu has no GPU inventory; it shares no GPU"),
    ],
)
def test_a_gpu_that_is_not_there_is_told(gpu: str, code: int, message: str) -> None:
    found = drain(kube_of([NODE, make_node(name="cpu")]), gpu)
    assert (found.code, found.err) == (code, f"error: {message}\n")


def test_budgets_that_may_not_be_read_are_told_and_obeyed() -> None:
    api = seeded(kube_of([NODE, on(0, "one", labels=WEB)]), budget("web", 0, **WEB))
    api.fail_next(lambda call: "poddisruptionbudgets" in call.path, kube.ForbiddenError("no"), times=99)
    found = drain(api, timeout=4)
    assert found.code == 3
    assert "note: PodDisruptionBudgets cannot be read (no); the API server obeys them all the same" in found.err
    assert "waits  Cannot evict pod as it would violate the pod's disruption budget." in found.out


def test_json_names_the_gpu_and_its_pods() -> None:
    value = json.loads(drain(kube_of([NODE, on(0, "one")]), dry_run=True, output="json").out)
    row = {"namespace": "default", "name": "one", "memoryMiB": 3072, "step": "evict", "why": None}
    assert value == {
        "version": 1,
        "node": "node-a",
        "gpus": [{"index": 0, "uuid": "GPU-0", "model": "Tesla T4", "memoryMiB": 15360}],
        "dryRun": True,
        "planned": [row],
        "left": [row],
        "successors": {"uid-one": "node-a"},
    }


def test_an_older_server_is_asked_in_its_version() -> None:
    api: FakeKube = kube_of([NODE, on(0, "one")])
    api.evictions = "policy/v1beta1"
    assert drain(api).code == 0


def test_a_pod_that_is_leaving_already_is_awaited_and_not_evicted(told: Told) -> None:
    pod = on(0, "leaving")
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api = kube_of([NODE, pod])
    assert "  its deletion was asked for; its containers are ending\n" in drain(api, dry_run=True).out
    found = drain(api)
    assert (found.code, api.count("create", "/eviction")) == (0, 0)
    assert found.err.splitlines()[1:] == told()


def test_a_dry_run_says_whether_each_pod_fits_elsewhere() -> None:
    """GPU 1 has 5 GiB left and node-b 4, so one of three of 4 GiB has no place."""
    node_b = make_node(make_inventory(4, node="node-b"))
    three = [on(0, f"p{i}", gib=4) for i in range(3)]
    api = kube_of([NODE, node_b, *three, on(1, "there", gib=10)])
    value = json.loads(drain(api, dry_run=True, output="json").out)["successors"]
    table = drain(api, dry_run=True).out
    assert sorted(value.values(), key=str) == [None, "node-a", "node-b"]
    told = [table.count(each) for each in ("fits on node-a", "fits on node-b", "would stay Pending")]
    assert told == [1, 1, 1]


def test_where_pods_fit_is_left_out_if_the_cluster_may_not_be_read() -> None:
    api = kube_of([NODE, on(0, "here")])
    only_here = kube.ForbiddenError("nodes is forbidden")
    api.fail_next(lambda call: call.verb == "list" and call.path.endswith("/nodes"), only_here, times=9)
    found = drain(api, dry_run=True)
    assert found.err == "note: whether the pods fit elsewhere is not told: nodes is forbidden\n"
    assert "is evicted  -" in found.out


def test_a_server_that_is_away_for_a_moment_ends_no_drain() -> None:
    api = kube_of([NODE, on(0, "here")])
    away = kube.UnreachableError("connection refused")

    def meanwhile(seconds: float) -> None:
        end(api)
        if seconds == 2:
            api.fail_next(lambda call: call.path.endswith("/node-a"), away)

    found = drain(api, clock=ManualClock(0, meanwhile))
    assert found.code == 0
    assert "node-a/0: cannot be read now (connection refused); trying again" in found.err
    api.fail_next(lambda call: call.verb == "list", away, times=99)
    assert drain(api, timeout=10).code == 1
