"""A snapshot of the cluster -> the files of a report. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import gpushare
from gpushare import names
from gpushare.kube.api import JsonObject, Reply
from gpushare_cli import gather, render, report, yamls
from gpushare_cli.bundle import redact
from gpushare_cli.doctor import checks
from gpushare_cli.doctor import render as doctor
from gpushare_cli.doctor.snapshot import Snapshot, Unread
from gpushare_cli.tables import ENDLESS

Files = Mapping[str, str]
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
    """All files but the logs: name -> text."""
    diagnosis = checks.diagnose(snapshot)
    built = report.build(_read(snapshot.nodes), _gpu_pods(snapshot), {})
    about = {"version": gpushare.__version__, "server": str(snapshot.server), "made": snapshot.now.isoformat()}
    found = {
        "README.txt": _README,
        "about.json": yamls.dump_json({**about, "namespace": snapshot.namespace}),
        "not-read.txt": "".join(f"{line}\n" for line in _unread(snapshot)),
        "doctor.txt": doctor.table(diagnosis, ENDLESS),
        "doctor.json": doctor.as_json(diagnosis),
        "inspect.txt": (render.detail(built) if built.nodes else "no node shares a GPU\n"),
        "inspect.json": render.as_json(built),
        "nodes.yaml": _documents(map(redact.node, _read(snapshot.nodes))),
        "pods.yaml": _documents(redact.pod(each, own=False) for each in _gpu_pods(snapshot)),
        "own.yaml": _documents(_own(snapshot)),
        "settings.yaml": _documents(_settings(snapshot)),
        "events.yaml": _documents(map(redact.event, events)),
        **_metrics(snapshot),
    }
    return {name: redact.text(text) for name, text in found.items()}


def own_pods(snapshot: Snapshot) -> Sequence[JsonObject]:
    """Pods of the installation."""
    return [pod for pod in _read(snapshot.pods) if pod["metadata"].get("namespace") == snapshot.namespace]


def _gpu_pods(snapshot: Snapshot) -> list[JsonObject]:
    return [pod for pod in _read(snapshot.pods) if gather.concerns_gpus(pod)]


def _read(part: Any) -> Sequence[JsonObject]:
    return () if isinstance(part, Unread) or part is None else part


def _unread(snapshot: Snapshot) -> Iterator[str]:
    for name in snapshot.__slots__:
        part = getattr(snapshot, name)
        if isinstance(part, Unread):
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
    return {f"metrics/{name}.txt": page.text for name, page in pages.items() if isinstance(page, Reply)}


def _documents(values: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"---\n{yamls.dump(value)}" for value in values)
