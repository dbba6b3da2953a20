"""Runs `gpushare drain`, `cordon` and `uncordon` on a cluster in memory whose pods end when they are asked to."""

import io
from typing import Any

from gpushare import names
from gpushare.kube import api as kube
from gpushare_cli import console
from gpushare_cli.console import Streams
from gpushare_cli.evict import drain as command
from gpushare_cli.evict.gpu_cordon import GpuName
from testing.builders import Json
from testing.cli.simulating import Result
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube

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
