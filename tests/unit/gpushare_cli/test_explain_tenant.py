"""`gpushare explain` for users who may read their own namespace only."""

import pytest

from gpushare.kube import api as kube
from gpushare_cli import __main__ as cli
from testing.builders import Json, make_grant, make_inventory, make_node, make_pod
from testing.cli.calling import reached
from testing.cli.explaining import kube_of
from testing.cli.podding import bound, mutated
from testing.fakes.kube import FakeKube

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


def explain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *objects: Json, name: str = "pod"
) -> tuple[int, str, str]:
    found: FakeKube = kube_of([make_node(make_inventory(15)), *objects])
    found.fail_next(lambda call: call.path == "/api/v1/nodes", FORBIDDEN, times=9)
    reached(monkeypatch, found, "ml")
    code = cli.main(["explain", name])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_latest_reason_that_gpushare_published_is_the_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = waiting()
    said = [
        event(pod, "GpuShareUnschedulable", "needs 10 GiB on one GPU; free per GPU on node-a: 3 GiB", 1),
        event(pod, "GpuShareUnschedulable", "needs 10 GiB on one GPU; free per GPU on node-a: 9 GiB", 2),
        event(pod, "FailedScheduling", "0/3 nodes are available", 3),
    ]
    code, out, err = explain(capsys, monkeypatch, pod, *said)
    assert (code, err) == (3, LEFT_OUT)
    assert "WHY:        needs 10 GiB on one GPU; free per GPU on node-a: 9 GiB\n" in out
    assert "SCHEDULER:  gpushare-scheduler: 0/3 nodes are available: 3 Insufficient aliyun.com/gpu-mem.\n" in out


def test_without_events_the_schedulers_condition_is_the_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = explain(capsys, monkeypatch, waiting())
    assert code == 3
    assert "WHY:        0/3 nodes are available: 3 Insufficient aliyun.com/gpu-mem.\nASKS FOR:   " in out


def test_a_pod_that_was_bound_shows_its_share_without_its_node(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = bound("web", make_grant(0))
    pod["metadata"]["namespace"] = "ml"
    code, out, err = explain(capsys, monkeypatch, pod, name="web")
    assert (code, err) == (0, LEFT_OUT)
    assert "not listed by its node" not in out + err
    assert "web" in out
