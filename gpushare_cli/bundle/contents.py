"""A snapshot of the cluster -> the files of a report. Pure."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import gpushare
from gpushare import names
from gpushare.errors import GpuShareError, WireError
from gpushare.kube.api import JsonObject, Reply
from gpushare_cli import inspect_command, reading, report, yamls
from gpushare_cli.bundle import credentials, redact
from gpushare_cli.console import UNLIMITED
from gpushare_cli.doctor import checks
from gpushare_cli.doctor import command as doctor
from gpushare_cli.doctor.snapshot import Snapshot, Unreadable

Files = Mapping[str, str]
NOT_READ: Final = "not-read.txt"
_KNOWN_KEYS: Final = ("scheduler.yaml", "policy.cfg", "profile.yaml", "gpus", "handOver", "state")
_README: Final = """A report of `gpushare report`.

about.json       versions, and when it was made
not-read.txt     what could not be read, and why
doctor.txt       what `gpushare doctor` finds; doctor.json for programs
inspect.txt      GPUs, and who holds how much of which; inspect.json for programs
nodes.yaml       nodes: resources, labels, taints, annotations of gpushare
pods.yaml        pods with GPUs: requests, allocations, states; no variables, commands or volumes
own.yaml         workloads and pods of the installation
settings.yaml    ConfigMaps of the installation
events.yaml      Events of gpushare
metrics/, logs/  of the components

Secrets are never read. Texts have lost what looks like a credential; look through them before you pass them on.
"""


def files(snapshot: Snapshot, events: Sequence[JsonObject]) -> Files:
    """All files but the logs and `NOT_READ`: name -> text."""
    diagnosis = checks.diagnose(snapshot)
    about = {"version": gpushare.__version__, "server": str(snapshot.server), "made": snapshot.now.isoformat()}
    return {
        "README.txt": _README,
        "about.json": yamls.dump_json({**about, "namespace": snapshot.namespace}),
        "doctor.txt": credentials.text(doctor.table(diagnosis, UNLIMITED)),
        "doctor.json": _json(doctor.as_json(diagnosis)),
        "inspect.txt": _inspect(snapshot, lambda built: credentials.text(inspect_command.detail(built))),
        "inspect.json": _inspect(snapshot, lambda built: _json(inspect_command.as_value(built))),
        "nodes.yaml": _documents(map(redact.node, _read(snapshot.nodes))),
        "pods.yaml": _documents(redact.pod(each, own=False) for each in _gpu_pods(snapshot)),
        "own.yaml": _documents(_own(snapshot)),
        "settings.yaml": _documents(_settings(snapshot)),
        "events.yaml": _documents(map(redact.event, events)),
        **_metrics(snapshot),
    }


def own_pods(snapshot: Snapshot) -> Sequence[JsonObject]:
    """Pods of the installation."""
    return [pod for pod in _read(snapshot.pods) if pod["metadata"].get("namespace") == snapshot.namespace]


def _gpu_pods(snapshot: Snapshot) -> list[JsonObject]:
    def is_meant(pod: JsonObject) -> bool:
        try:
            return reading.concerns_gpus(pod)
        except WireError:
            return True  # odd ones are what others have to see

    return [pod for pod in _read(snapshot.pods) if is_meant(pod)]


def _inspect(snapshot: Snapshot, shown: Callable[[report.Report], str]) -> str:
    """Says why where something is so odd that it cannot be made."""
    try:
        built = report.build(_read(snapshot.nodes), _gpu_pods(snapshot), {})
        return shown(built) if built.nodes else "no node shares a GPU\n"
    except GpuShareError as error:
        return f"not made: {error}\n"


def _read(part: Any) -> Sequence[JsonObject]:
    return () if isinstance(part, Unreadable) or part is None else part


def unread(snapshot: Snapshot) -> Iterator[str]:
    """Parts that could not be read, and why."""
    for name in snapshot.__slots__:
        part = getattr(snapshot, name)
        if isinstance(part, Unreadable):
            yield f"{part.what}: {part.error}"


def _own(snapshot: Snapshot) -> Iterator[Mapping[str, Any]]:
    deployments = (snapshot.webhook_deployment, snapshot.controller_deployment, snapshot.scheduler_deployment)
    for each in (*deployments, snapshot.plugin):
        if isinstance(each, dict):
            yield redact.workload(each)
    for pod in own_pods(snapshot):
        yield redact.pod(pod, own=True)


def _settings(snapshot: Snapshot) -> Iterator[Mapping[str, Any]]:
    maps = (snapshot.settings, snapshot.hand_over, snapshot.refused_classes, snapshot.scheduler_settings)
    for each in (*maps, *_read(snapshot.unhealthy)):
        if isinstance(each, dict):
            yield redact.config_map(each, known=_KNOWN_KEYS)


def _metrics(snapshot: Snapshot) -> Files:
    pages = {names.WEBHOOK: snapshot.webhook_metrics, names.CONTROLLER: snapshot.controller_metrics}
    return {
        f"metrics/{name}.txt": credentials.text(page.text) for name, page in pages.items() if isinstance(page, Reply)
    }


def _documents(values: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"---\n{yamls.dump(credentials.value(value))}" for value in values)


def _json(value: object) -> str:
    return yamls.dump_json(credentials.value(json.loads(yamls.dump_json(value))))
