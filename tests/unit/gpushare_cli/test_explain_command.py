"""`gpushare explain` and `gpushare simulate` as a user calls them: arguments, errors, exit codes."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpushare.kube import api as kube
from testing.builders import Json, make_grant, make_inventory, make_node, make_pod
from testing.cli.calling import Run, reached
from testing.cli.explaining import kube_of
from testing.cli.podding import bound, mutated
from testing.cli.simulating import T4S
from testing.fakes.kube import FakeKube
from testing.tenant.changes import forged_events


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """The cluster that the commands reach."""
    found = kube_of([make_node(make_inventory(15)), bound("web", make_grant(0)), mutated(make_pod(namespace="ml"))])
    reached(monkeypatch, found)
    return found


@pytest.mark.parametrize(
    ("argv", "pod"),
    [
        (["web"], "default/web"),
        (["default/web"], "default/web"),
        (["pod", "-n", "ml"], "ml/pod"),
        (["ml/pod"], "ml/pod"),
        (["ml/pod", "--namespace", "ml"], "ml/pod"),
    ],
)
def test_a_pod_is_named_with_or_without_its_namespace(argv: list[str], pod: str, cluster: FakeKube, run: Run) -> None:
    code, out, _ = run("explain", *argv)
    assert (code, out.splitlines()[0]) == (0, f"POD:        {pod}")


NO_NAMES = "a/b/c", "/b", "a/"
NO_UNIT = "memory unit 'lots': write GiB, MiB or a multiple such as 256MiB"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        *((f"explain {name}", f"pod '{name}': write NAME, NAMESPACE/NAME or KIND/NAME") for name in NO_NAMES),
        ("explain a/b -n c", "pod 'a/b': --namespace c says another namespace"),
        *((f"{command} --memory-unit lots", NO_UNIT) for command in ("explain", "simulate")),
    ],
)
def test_names_and_units_that_are_none_are_wrong_arguments(
    argv: str, message: str, cluster: FakeKube, run: Run
) -> None:
    assert run(*argv.split()) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize("argv", [["explain"], ["explain", "a", "-o", "xml"]])
def test_unknown_words_are_wrong_arguments(argv: list[str], run: Run) -> None:
    code, _, err = run(*argv)
    assert (code, err[:7]) == (2, "usage: ")


@pytest.mark.parametrize(
    ("command", "asked", "limits"),
    [
        ("simulate", "--nodes x", "1 to 1000000"),
        ("simulate", "--weight 0", "1 to 10000"),
        ("simulate", "--rank-others -3", "1 to 10000"),
        ("scheduler-config --server-version 1.36", "--client-qps 100001", "1 to 100000"),
        ("defrag big", "--max-moves 0", "1 to 1000000"),
        ("drain node-a/0", "--timeout " + "9" * 5000, "1 to 1000000"),
        ("report", "--logs -3", "0 to 1000000"),
        ("dashboard", "--port 65536", "0 to 65535"),
    ],
)
def test_numbers_out_of_bounds_are_told(command: str, asked: str, limits: str, run: Run) -> None:
    assert run(*f"{command} {asked}".split()) == (2, "", f"error: {asked}: write a whole number from {limits}\n")


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("/pods/web", kube.NotFoundError("none"), "there is no pod web in namespace default"),
        ("/pods/web", kube.ForbiddenError("pods is forbidden"), "not allowed: pods is forbidden"),
    ],
)
def test_what_cannot_be_read_is_told(
    path: str, error: kube.KubeError, message: str, cluster: FakeKube, run: Run
) -> None:
    cluster.fail_next(lambda call: call.path.endswith(path), error)
    assert run("explain", "web") == (1, "", f"error: {message}\n")


def test_simulate_needs_no_cluster(tmp_path: Path, run: Run) -> None:
    profile = tmp_path / "gpus.yaml"
    profile.write_text(T4S, encoding="utf-8")
    several = ["--policy", "dense,none", "--seeds", "1-2"]
    found = json.loads(run("simulate", "--profile", str(profile), "--nodes", "2", *several, "-o", "json")[1])
    assert found["nodes"][-1]["name"] == "node-2"
    pairs = [(policy, seed) for policy in ("dense", "none") for seed in (1, 2)]
    assert [(run["policy"], run["seed"]) for run in found["runs"]] == pairs


Restricted = Callable[..., tuple[int, str, str]]
FORBIDDEN = kube.ForbiddenError('nodes is forbidden: User "ann" cannot list resource "nodes" at the cluster scope')
LEFT_OUT = f"note: not evaluated: nodes and the pods of other namespaces ({FORBIDDEN})\n"


def event(pod: Json, reason: str, message: str, minute: int) -> Json:
    metadata = pod["metadata"]
    return {
        "kind": "Event",
        "metadata": {"name": f"{reason.lower()}.{minute}", "namespace": metadata["namespace"]},
        "involvedObject": {"kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-01-01T00:{minute:02}:00Z",
    }


def waiting(message: str = "0/3 nodes are available: 3 Insufficient aliyun.com/gpu-mem.") -> Json:
    pod = mutated(make_pod(namespace="ml"))
    pod["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}],
    }
    return pod


@pytest.fixture
def restricted(monkeypatch: pytest.MonkeyPatch, run: Run) -> Restricted:
    """`gpushare explain` of a user who may not read nodes."""

    def explain(*objects: Json, argv: str = "pod") -> tuple[int, str, str]:
        found: FakeKube = kube_of([make_node(make_inventory(15)), *objects])
        found.fail_next(lambda call: call.path == "/api/v1/nodes", FORBIDDEN, times=9)
        reached(monkeypatch, found, "ml")
        return run("explain", *argv.split())

    return explain


def test_the_latest_reason_that_gpushare_published_is_the_answer_else_the_schedulers(restricted: Restricted) -> None:
    pod = waiting()
    code, out, _ = restricted(pod)
    assert code == 3
    assert "WHY:        0/3 nodes are available: 3 Insufficient aliyun.com/gpu-mem.\nASKS FOR:   " in out
    said = [
        event(pod, "GpuShareUnschedulable", "needs 10 GiB on one GPU; free per GPU on node-a: 3 GiB", 1),
        event(pod, "GpuShareUnschedulable", "needs 10 GiB on one GPU; free per GPU on node-a: 9 GiB", 2),
        event(pod, "FailedScheduling", "0/3 nodes are available", 3),
        event(pod, "GpuShareUnschedulable", "of an unknown time", 4) | {"lastTimestamp": None},
    ]
    code, out, err = restricted(pod, *said)
    assert (code, err) == (3, LEFT_OUT)
    assert "WHY:        needs 10 GiB on one GPU; free per GPU on node-a: 9 GiB\n" in out
    assert "SCHEDULER:  gpushare-scheduler: 0/3 nodes are available: 3 Insufficient aliyun.com/gpu-mem.\n" in out


def test_forged_events_of_another_namespace_change_no_answer(
    restricted: Restricted, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    pod, own = waiting(), bound("own", make_grant(0, gib=9))
    about = {"kind": "Pod", "name": "pod", "namespace": "ml", "uid": pod["metadata"]["uid"]}
    forged = [*forged_events(own, datetime.now(UTC))]
    forged += [{**each, "metadata": {**each["metadata"], "name": "x"}, "involvedObject": about} for each in forged[:1]]
    assert restricted(pod, own, *forged) == restricted(pod, own)
    told = []
    for more in ([], forged):
        reached(monkeypatch, kube_of([make_node(make_inventory(15)), pod, own, *more]))
        told.append([run("explain", name) for name in ("ml/pod", "own")])
    assert told[0] == told[1]


def test_of_a_pod_on_a_node_that_nothing_says_anything_about_that_is_told(restricted: Restricted) -> None:
    pod = mutated(make_pod(namespace="ml", node="node-a"))
    del pod["spec"]["schedulerName"], pod["status"]["phase"]
    value = json.loads(restricted(pod, argv="pod -o json")[1])
    told = ["node", "state", "headline", "scheduler", "phase", "summary"]
    where = ["node-a", "WithoutGpu", "on node-a without GPUs", "default-scheduler", "Pending"]
    assert [value[key] for key in told] == [*where, "neither the scheduler nor gpushare has said anything about it yet"]


def test_a_pod_that_was_bound_shows_its_share_without_its_node(restricted: Restricted) -> None:
    pod = bound("web", make_grant(0))
    pod["metadata"]["namespace"] = "ml"
    code, out, err = restricted(pod, argv="web")
    assert (code, err) == (0, LEFT_OUT)
    assert "no longer listed by its node" not in out + err
    assert "web" in out


def pods(count: int, app: str = "web") -> list[Json]:
    made = []
    for i in range(count):
        pod = mutated(make_pod(name=f"{app}-{i}", namespace="ml"))
        pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), "app": app}
        made.append(pod)
    return made


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    found = kube_of([make_node(make_inventory(8)), *pods(3), *pods(1, app="other")])
    selector = {"matchLabels": {"app": "web"}}
    for group, plural in (("apps/v1", "deployments"), ("apps/v1", "statefulsets"), ("batch/v1", "jobs")):
        path = f"/apis/{group}/namespaces/ml/{plural}"
        found.seed(path, {"metadata": {"name": "web", "namespace": "ml"}, "spec": {"selector": selector}})
    reached(monkeypatch, found, "ml")
    return found


@pytest.mark.parametrize("named", ["deployment/web", "deploy/web", "Deployments/web", "sts/web", "job/web"])
def test_equal_pods_are_explained_once(named: str, api: FakeKube, run: Run) -> None:
    code, out, _ = run("explain", named)
    assert code == 0
    assert out.startswith("POD:        ml/web-0\n")
    assert out.endswith("The same holds for web-1, web-2.\n")
    assert "other-0" not in out


def test_one_pod_of_a_workload_or_all_of_them_or_none(api: FakeKube, run: Run) -> None:
    assert run("explain", "pod/web-1")[1].startswith("POD:        ml/web-1\n")
    assert run("explain", "deployment/web", "-o", "json")[1].count('"uid"') == 3
    assert run("explain", "rs/none")[::2] == (1, "error: there is no replicaset none in namespace ml\n")
    selector = {"matchLabels": {"app": "nothing"}}
    empty = {"metadata": {"name": "empty", "namespace": "ml"}, "spec": {"selector": selector}}
    api.seed("/apis/apps/v1/namespaces/ml/daemonsets", empty)
    why = "daemonset empty in namespace ml has no pods; see kubectl describe daemonset empty -n ml\n"
    assert run("explain", "ds/empty")[::2] == (1, why)


def test_a_workload_that_would_select_every_pod_is_refused(api: FakeKube, run: Run) -> None:
    api.seed("/apis/apps/v1/namespaces/ml/daemonsets", {"metadata": {"name": "all", "namespace": "ml"}, "spec": {}})
    assert run("explain", "ds/all") == (1, "", "error: spec.selector: is empty\n")
