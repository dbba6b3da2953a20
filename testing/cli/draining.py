"""Runs `gpushare drain`, `cordon` and `uncordon` on a cluster in memory whose pods end when they are asked to."""

import io
from collections.abc import Callable, Mapping
from typing import Any

from gpushare import names
from gpushare.kube import api as kube
from gpushare_cli import console
from gpushare_cli.console import Streams
from gpushare_cli.evict import drain as command
from gpushare_cli.evict.gpu_cordon import GpuName
from testing.builders import Json
from testing.cli.explaining import kube_of
from testing.cli.simulating import Result
from testing.clock import ManualClock
from testing.fakes.kube import Call, FakeKube

Change = Callable[[FakeKube], object]
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}


def owned(pod: Json, **of: Any) -> Json:
    """With a controller that recreates it."""
    pod["metadata"]["ownerReferences"] = [{**OWNER, **of}]
    return pod


def budget(name: str, allowed: int, **labels: str) -> Json:
    """A PodDisruptionBudget."""
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }


def seeded(api: FakeKube, *budgets: Json) -> FakeKube:
    """The cluster with these budgets."""
    for each in budgets:
        api.seed("/apis/policy/v1/namespaces/default/poddisruptionbudgets", each)
    return api


def end(api: FakeKube) -> None:
    """Have all pods end whose deletion was asked for."""
    for pod in api.objects("/api/v1/pods"):
        if pod["metadata"].get("deletionTimestamp"):
            api.vanish(kube.pod_path(pod["metadata"]["namespace"], pod["metadata"]["name"]))


def drain(
    api: FakeKube,
    gpu: str = "node-a/0",
    clock: ManualClock | None = None,
    *,
    width: int = console.UNLIMITED,
    **options: Any,
) -> Result:
    """Drain one GPU; pods end a moment after they are asked to, unless a clock says otherwise."""
    out, err = io.StringIO(), io.StringIO()
    streams = Streams(out=out, err=err, width=width)
    asked = command.Options(gpu=GpuName.parse(gpu), **options)
    code = console.answered(
        streams, lambda: command.run(api, streams, asked, clock or ManualClock(0, lambda _: end(api)))
    )
    return Result(code=code, out=out.getvalue(), err=err.getvalue())


def cordons_of(api: FakeKube, node: str = "node-a") -> str | None:
    """The node's annotation."""
    found: str | None = api.read(kube.node_path(node))["metadata"]["annotations"].get(names.ANNOTATION_CORDON)
    return found


def pods(api: FakeKube) -> set[str]:
    """Names of the pods that are left and were not asked to leave."""
    return {
        pod["metadata"]["name"] for pod in api.objects("/api/v1/pods") if not pod["metadata"].get("deletionTimestamp")
    }


def left(api: FakeKube) -> str:
    """What a command has left of a cluster, and how much it did."""
    annotations = api.read(kube.node_path("node-a"))["metadata"]["annotations"]
    cordons = f"cordoned: {annotations.get(names.ANNOTATION_CORDON)}; held: {annotations.get(names.ANNOTATION_HELD)}"
    changes = f"{api.count('create')} evictions, {api.count('patch') + api.count('delete')} other changes"
    return f"left: {' '.join(sorted(pods(api))) or 'none'}; {cordons}; {changes}"


def cluster(*objects: Json) -> FakeKube:
    """With these objects, budgets too."""
    budgets = [each for each in objects if each["kind"] == "PodDisruptionBudget"]
    return seeded(kube_of([each for each in objects if each not in budgets]), *budgets)


def nothing(api: FakeKube) -> None:
    """No change."""


def fails(end_of_path: str, fault: kube.KubeError | str, times: int = 1, verb: str = "") -> Change:
    """The next calls on such a path fail."""

    def concerns(call: Call) -> bool:
        return call.path.endswith(end_of_path) and verb in call.verb

    return lambda api: api.fail_next(concerns, fault, times=times)  # type: ignore[arg-type] # "lost-reply"


def before(end_of_path: str, change: Change) -> Change:
    """A change by others a moment before the first call that changes something there."""

    def of(api: FakeKube) -> None:
        done: list[object] = []

        def comes(call: Call) -> bool:
            if call.verb in {"patch", "create"} and call.path.endswith(end_of_path) and not done:
                done.append(change(api))
            return False

        api.fail_next(comes, kube.ConflictError("never"))

    return of


def allows(count: int) -> Change:
    """The budget `web` allows so many evictions from now on."""
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web"
    return lambda api: api.edit(path, lambda found: found["status"].update(disruptionsAllowed=count))


def annotated(annotations: Mapping[str, str | None]) -> Change:
    """Somebody writes these on the node; None is none."""
    return lambda api: api.edit(
        kube.node_path("node-a"), lambda node: node["metadata"]["annotations"].update(annotations)
    )
