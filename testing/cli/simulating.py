"""Runs `gpushare simulate` on texts."""

import io
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare_cli import console
from gpushare_cli.console import Streams
from gpushare_cli.simulate import command
from gpushare_cli.simulate.command import Options
from testing.builders import Json

T4S = """
gpus:
  - {model: Tesla T4, memoryMiB: 15360, count: 2}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the command said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """All of it."""
        return [f"exit code {self.code}", *self.err.splitlines(), *self.out.splitlines()]

    @property
    def details(self) -> str:
        """What is said below the summary."""
        lines = self.out.splitlines(keepends=True)
        begin = next(i for i, line in enumerate(lines) if re.match(r"(POD|NODE) |[0-9]+ of [0-9]+ pods placed;", line))
        return "".join(lines[begin:])

    @property
    def value(self) -> Any:
        """Of `-o json`."""
        return json.loads(self.out)


def simulate(
    *objects: Json | str,
    profile: str = "",
    nodes: int | None = None,
    policies: Sequence[str] = ("binpack",),
    stdin: str = "",
    width: int = console.UNLIMITED,
    as_json: bool = False,
    **more: Any,
) -> Result:
    """Run it on the objects, one file for each, named `1.yaml` and so on without their folder."""
    out, err = io.StringIO(), io.StringIO()
    streams = Streams(out=out, err=err, width=width)
    with tempfile.TemporaryDirectory() as found:
        folder, files = Path(found), []
        for i, one in enumerate(objects, start=1):
            text = one if isinstance(one, str) else json.dumps(one)
            files.append("-" if text == "-" else str(_written(folder / f"{i}.yaml", text)))
        options = Options(
            files=tuple(files),
            profile=str(_written(folder / "profile.yaml", profile)) if profile else "",
            nodes=nodes,
            policies=tuple(policies),
            output="json" if as_json else "table",
            **more,
        )
        code = console.answered(streams, lambda: command.run(options, streams, io.StringIO(stdin)))
    return Result(code=code, out=out.getvalue(), err=err.getvalue().replace(f"{folder}/", ""))


def listed(*items: Json) -> Json:
    """As `kubectl get -o yaml` prints several objects."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def workload(kind: str, name: str, template: Json | None = None, **spec: Any) -> Json:
    """A workload whose pods each ask for 3 units, or as the template says."""
    if template is None:
        template = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": 3}}}]}}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": {"template": template, **spec}}


def manifest(pod: Json) -> Json:
    """A pod that no API server has seen."""
    metadata = {key: value for key, value in pod["metadata"].items() if key not in {"uid", "resourceVersion"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


def where(result: Result) -> list[tuple[str, str | None, list[list[int]]]]:
    """Name, node and the GPUs of each container of all pods of a result in JSON."""
    return [
        (pod["name"], pod["node"], [[gpu["index"] for gpu in container["gpus"]] for container in pod["containers"]])
        for pod in result.value["pods"]
    ]


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def lines(*found: str) -> str:
    """Lines of a file or an output."""
    return "".join(f"{line}\n" for line in found)
