"""Runs `gpushare explain` on a cluster in memory."""

import io
import json
from collections.abc import Iterable
from typing import Any

from gpushare.units import MemoryUnit
from gpushare.wire import claims
from gpushare_cli import console
from gpushare_cli.console import Streams
from gpushare_cli.explain import command
from gpushare_cli.explain.command import Options
from gpushare_cli.reading import Target
from testing.builders import Json
from testing.cli.simulating import Result
from testing.fakes.kube import FakeKube


def kube_of(objects: Iterable[Json]) -> FakeKube:
    """A cluster with these nodes, pods, ConfigMaps and ResourceClaims."""
    kube = FakeKube()
    for one in objects:
        namespace = one["metadata"].get("namespace")
        where = f"namespaces/{namespace}/" if namespace else ""
        group = claims.API if one["kind"] == "ResourceClaim" else "/api/v1"
        kube.seed(f"{group}/{where}{one['kind'].lower()}s", one)
    return kube


def explain(
    *objects: Json,
    name: str = "pod",
    namespace: str = "default",
    unit: MemoryUnit | None = None,
    as_json: bool = False,
    width: int = console.UNLIMITED,
) -> Result:
    """Ask about one pod of a cluster with these objects."""
    out, err = io.StringIO(), io.StringIO()
    streams = Streams(out=out, err=err, width=width)
    target, output = Target(namespace=namespace, name=name), "json" if as_json else "table"
    options = Options(pod=target, memory_unit=unit, output=output)
    code = console.answered(streams, lambda: command.run(kube_of(objects), streams, options, lambda: "default"))
    return Result(code=code, out=out.getvalue(), err=err.getvalue())


def config_map(name: str, namespace: str, data: Any) -> Json:
    """A ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def copy(value: Json) -> Json:
    """A deep copy."""
    found: Json = json.loads(json.dumps(value))
    return found
