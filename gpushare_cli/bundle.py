"""`gpushare report`: one compressed file with what others need to understand a problem, and without secrets.

Of objects only fields that are named here are kept: a new field of Kubernetes is left out until somebody has looked at
it. All texts, such as logs and messages, lose what looks like a credential. Secrets are not read at all.
"""

import io
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import gpushare
from gpushare import names
from gpushare.cluster import node_records
from gpushare.errors import GpuShareError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi, Reply
from gpushare.runtime.clock import Clock
from gpushare.wire import fields
from gpushare_cli import arguments, holders, inspect_command, reading, usage, yamls
from gpushare_cli.arguments import Command, argument
from gpushare_cli.console import OK, UNLIMITED, Streams
from gpushare_cli.doctor import command as doctor
from gpushare_cli.doctor.snapshot import Snapshot, Unreadable, take

_LINES: Final = 2_000
_BYTES: Final = 2**20
_ONE_S: Final = 20.0  # for the logs of a container, or a page of metrics
_ALL_BYTES: Final = 64 * 2**20  # of all logs, after which no more are read; and so long
_ALL_S: Final = 300.0
Object = Mapping[str, Any]
HIDDEN: Final = "(hidden)"
_SETTING: Final = "GPUSHARE_"
_KNOWN_KEYS: Final = ("scheduler.yaml", "policy.cfg", "profile.yaml", "gpus", "handOver", "state")  # beside settings


def _own_variable(value: Object) -> Object:
    """Of a container of the installation: its source, whatever that is, and its value if it is a setting."""
    is_setting = str(value.get("name")).startswith(_SETTING)
    return reading.kept(value, ("name", ("valueFrom", dict), *(("value",) if is_setting else ())))


def _known_data(data: Object) -> Object:
    """Settings; of other keys than this project's, only the name."""
    return {key: each if key.startswith(_SETTING) or key in _KNOWN_KEYS else HIDDEN for key, each in data.items()}


def _containers(container: reading.Spec) -> reading.Spec:
    return (("initContainers", container), ("containers", container))


_REFERENCE: Final = ("kind", "namespace", "name", "uid", "controller")
_STATE: Final = ("reason", "exitCode", "signal", "startedAt", "finishedAt")
_STATES: Final = (("waiting", (*_STATE, "message")), ("running", _STATE), ("terminated", _STATE))
"""What the kubelet says; the message of a container that ended is the container's own."""
_STATUSES: Final = (
    *("name", "ready", "restartCount", "image", "imageID", "started"),
    *(("state", _STATES), ("lastState", _STATES)),
)
_METADATA: Final = (
    *("name", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp", "labels"),
    *(("annotations", reading.own_annotations), ("ownerReferences", _REFERENCE)),
)
_MACHINE: Final = (  # not the ids of the machine, which are confidential: machine-id(5)
    *("architecture", "operatingSystem", "osImage", "kernelVersion"),
    *("containerRuntimeVersion", "kubeletVersion"),
)
_NODE: Final = (
    ("metadata", _METADATA),
    ("spec", ("unschedulable", "taints")),
    ("status", ("capacity", "allocatable", "conditions", ("nodeInfo", _MACHINE))),
)
_EVENT: Final = (
    *("reason", "message", "type", "count", "firstTimestamp", "lastTimestamp", "eventTime"),
    ("about", _REFERENCE),
)
_OF_ALL: Final = ("name", "image", "resources", "restartPolicy")
_ENV: Final = ("env", ("name", ("valueFrom", ("fieldRef",))))  # names, and which field of the pod a value is
_OTHERS: Final = _containers((*_OF_ALL, _ENV))
_OWN: Final = _containers((*_OF_ALL, "ports", "args", "securityContext", ("env", _own_variable)))
_SPEC: Final = ("nodeName", "schedulerName", "runtimeClassName", "priority", "nodeSelector", "tolerations")
_STATUS: Final = (
    *("phase", "reason", "message", "conditions", "nominatedNodeName", "qosClass", "startTime"),
    *(("initContainerStatuses", _STATUSES), ("containerStatuses", _STATUSES)),
)
_POD: Final = (("metadata", _METADATA), ("spec", (*_SPEC, *_OTHERS)), ("status", _STATUS))
_OWN_POD: Final = (("metadata", _METADATA), ("spec", (*_SPEC, *_OWN)), ("status", _STATUS))
_WORKLOAD: Final = (
    ("metadata", _METADATA),
    ("spec", ("replicas", "strategy", "updateStrategy", ("template", (("spec", _OWN),)))),
    ("status", dict),
)
_CONFIG_MAP: Final = (("metadata", ("name", "namespace")), ("data", _known_data))
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
_QUOTE: Final = r"""\\{0,7}["']"""  # with backslashes where the text is JSON within JSON
_WORDS: Final = rf"""(?:pass(?:word|wd|phrase)|pwd|secret|token|(?:api|access|private)[_-]?key|key[_-]?data
        |credentials?|signature|[?&]sig|\bauth(?={_QUOTE}))"""
_LABEL: Final = rf"""{_WORDS}(?:{_QUOTE})?\s*[=:]\s*"""  # what is written before a value
_PLAIN: Final = r"""(?P<plain>(?:[^\s"',;}\\]|\\(?!\\{0,6}["']))+)"""
_SECRETS: Final = (  # the last group of a match is hidden, or all of it where there is none
    re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL),
    re.compile(r"LS0tLS1CRUdJTi[\w+/=]+"),  # the same in Base64, as kubeconfig files have it
    # JSON Web Tokens, as service accounts have. From the start of a run on, so that a long one is looked at once.
    re.compile(r"(?<![\w-])(?=(?:[\w-]*-)?eyJ[\w-]{8})[\w-]++\.[\w-]+(?:\.[\w-]*)?"),
    # Of GitHub, GitLab, Docker, Hugging Face, Slack, AWS, Google; of NVIDIA, whose start may be that of a pod's name.
    re.compile(r"\b(?:gh[a-z]_|github_pat_|glpat-|dckr_pat_|hf_|xox[a-z]-|A[KS]IA|AIza)[\w-]{16,}"),
    re.compile(r"\bnvapi-[\w-]{40,}"),
    re.compile(rf"(?ix)authorization(?:{_QUOTE})?\s*[=:]\s*(?:{_QUOTE})?(?:[\w-]+[ ]+)?{_PLAIN}"),
    re.compile(rf"(?ix)\bbearer[ ]{_PLAIN}"),
    re.compile(r"(?i)\bbasic (?P<value>[\w+/=-]{8,})"),
    re.compile(r"(?i)\bcookie: (?P<value>[^\n\"']+)"),
    re.compile(r"://(?P<value>[^/\s@\"']+)@"),
    re.compile(rf"""(?ix)--[\w-]{{0,30}}{_WORDS}(?:{_QUOTE},?)?\s+(?:-\s+)?(?:{_QUOTE})?(?!-){_PLAIN}"""),
    re.compile(rf"""(?ix){_LABEL}(?:(?P<quote>{_QUOTE})(?P<value>[^\n]+?)(?P=quote)|(?:{_QUOTE})?+{_PLAIN})"""),
)
_NAME: Final = re.compile(rf"(?ix)[\w./-]{{0,200}}{_WORDS}")  # of a field, or a flag, whose value is hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    file: str = argument("-f", "--file", metavar="FILE", help="where to (default: gpushare-report-TIME.tar.gz here)")
    namespace: str = arguments.installed()
    logs: int = arguments.number(
        "--logs",
        "of each container of the installation, the last ones; 0 for none (default: %(default)s)",
        default=_LINES,
        metavar="LINES",
        least=0,
    )


def run(api: KubeApi, streams: Streams, options: Options, clock: Clock) -> int:
    """Write the file; the exit code. KubeError if no cluster can be read, WireError if no file be written."""
    taken = take(api, clock, options.namespace, streams.note)
    parts = [getattr(taken, name) for name in taken.__slots__]
    missing = [f"{part.what}: {part.error}" for part in parts if isinstance(part, Unreadable)]
    files = dict(_files(taken, _events(api, missing)))
    files.update(_told_by_pods(api, _own_pods(taken), options.logs, missing, clock))
    files["not-read.txt"] = "".join(f"{line}\n" for line in map(cleaned, missing))
    path = Path(options.file or f"gpushare-report-{clock.now():%Y%m%d-%H%M%S}.tar.gz").expanduser()
    _write(path, _packed(files, clock.now()))
    streams.out.write(f"{path}\n")
    streams.note(*(f"not in the report: {line}" for line in missing))
    if isinstance(taken.nodes, Unreadable) and isinstance(taken.pods, Unreadable):
        streams.note("the report is nearly empty: you may read neither nodes nor pods; ask an administrator for one")
    return OK


def _events(api: KubeApi, missing: list[str]) -> list[JsonObject]:
    def is_ours(event: JsonObject) -> bool:
        return str(event.get("reason", "")).startswith(names.EVENT_PREFIX)

    try:
        return reading.listed(api, "/api/v1/events", {}, keep=is_ours)
    except kube.KubeError as error:
        missing.append(f"events: {error}")
        return []


def _told_by_pods(
    api: KubeApi, pods: Sequence[JsonObject], lines: int, missing: list[str], clock: Clock
) -> Mapping[str, str]:
    """Those of pods that are not ready first: of a large cluster not all are read."""
    files: dict[str, str] = {}
    began = clock.monotonic()
    for done, pod in enumerate(sorted(pods, key=_is_ready)):
        size = sum(map(len, files.values()))
        if size >= _ALL_BYTES or clock.monotonic() - began >= _ALL_S:
            limit = f"{_ALL_BYTES // 2**20} MiB" if size >= _ALL_BYTES else f"{_ALL_S:.0f} s"
            missing.append(f"logs and metrics of {len(pods) - done} pods, after {limit} of others'")
            break
        files.update(_logs(api, pod, lines) if lines else ())
        files.update(_metrics(api, pod))
    return files


def _is_ready(pod: JsonObject) -> bool:
    with suppress(WireError):
        return fields.is_true(pod, "Ready", "pod")
    return False  # its state is odd


def _logs(api: KubeApi, pod: JsonObject, lines: int) -> Iterator[tuple[str, str]]:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    for container in _names_of_containers(pod):
        for kind, previous in (("", "false"), (".previous", "true")):
            query = f"container={container['name']}&tailLines={lines}&limitBytes={_BYTES}&previous={previous}"
            try:
                reply = api.ask(f"{kube.pod_path(namespace, name, 'log')}?{query}", timeout_s=_ONE_S)
            except kube.KubeError as error:
                text = "" if previous == "true" else f"not read: {error}\n"
            else:
                text = reply.text if reply.is_good else ""
            if text:
                yield f"logs/{name}/{container['name']}{kind}.log", cleaned(text)


def _metrics(api: KubeApi, pod: JsonObject) -> Iterator[tuple[str, str]]:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    try:
        if not (port := usage.metrics_port(pod)):
            return
        reply = api.ask(kube.pod_path(namespace, f"{name}:{port}", "proxy/metrics"), timeout_s=_ONE_S)
        text = reply.text if reply.is_good else f"not read: {reply.brief}\n"
    except (kube.KubeError, WireError) as error:
        text = f"not read: {error}\n"
    yield f"metrics/{name}.txt", cleaned(text)


def _packed(files: Mapping[str, str], at: datetime) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in sorted(files.items()):
            data = text.encode()
            entry = tarfile.TarInfo(f"gpushare-report/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(at.timestamp()), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _write(path: Path, data: bytes) -> None:
    """For its owner alone; all of it, or nothing: what was there under this name stays until then."""
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout
            path.write_bytes(data)
            return
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            partial = Path(file.name)
            try:
                file.write(data)
                file.close()
                partial.replace(path)
            except OSError:
                partial.unlink()
                raise
    except OSError as error:
        raise WireError(f"{path}: {error.strerror}") from error


def _files(snapshot: Snapshot, events: Sequence[JsonObject]) -> Mapping[str, str]:
    """All files but the logs and the list of what was not read: name -> text."""
    diagnosis = doctor.diagnose(snapshot)
    pods = list(filter(_concerns_gpus, _read(snapshot.pods)))
    own = (snapshot.webhook_deployment, snapshot.controller_deployment, snapshot.scheduler_deployment, snapshot.plugin)
    maps = (snapshot.settings, snapshot.hand_over, snapshot.refused_classes, snapshot.scheduler_settings)
    about = {"version": gpushare.__version__, "server": str(snapshot.server), "made": snapshot.now.isoformat()}
    metrics = {names.WEBHOOK: snapshot.webhook_metrics, names.CONTROLLER: snapshot.controller_metrics}
    return {
        "README.txt": _README,
        "about.json": yamls.dump_json({**about, "namespace": snapshot.namespace}),
        "doctor.txt": cleaned(doctor.table(diagnosis, UNLIMITED)),
        "doctor.json": _json(doctor.as_json(diagnosis)),
        "inspect.txt": _inspect(snapshot, pods, lambda built: cleaned(inspect_command.detail(built))),
        "inspect.json": _inspect(snapshot, pods, lambda built: _json(inspect_command.as_value(built))),
        "nodes.yaml": _documents(_NODE, _read(snapshot.nodes)),
        "pods.yaml": _documents(_POD, pods),
        "own.yaml": _documents(_WORKLOAD, map(_read, own)) + _documents(_OWN_POD, _own_pods(snapshot)),
        "settings.yaml": _documents(_CONFIG_MAP, [*map(_read, maps), *_read(snapshot.unhealthy)]),
        "events.yaml": _documents(_EVENT, ({**each, "about": each.get("involvedObject") or {}} for each in events)),
        **{f"metrics/{name}.txt": cleaned(page.text) for name, page in metrics.items() if isinstance(page, Reply)},
    }


def _own_pods(snapshot: Snapshot) -> Sequence[JsonObject]:
    return [pod for pod in _read(snapshot.pods) if pod["metadata"].get("namespace") == snapshot.namespace]


def cleaned(text: str) -> str:
    """The same text without what looks like a credential."""
    for pattern in _SECRETS:
        text = pattern.sub(_hidden, text)
    return text


def cleaned_value(raw: Any) -> Any:
    """The same object without what looks like a credential, before a notation adds its own marks to the texts."""
    match raw:
        case str():
            return cleaned(raw)
        case list() | tuple():
            return [_named(name, each) for name, each in zip([None, *raw], raw, strict=False)]
        case dict():
            return {key: _named(key, each) for key, each in raw.items()}
        case _:
            return raw


def _names_of_containers(pod: Object) -> Sequence[Object]:
    spec = reading.kept(pod, (("spec", (("initContainers", ("name",)), ("containers", ("name",)))),)).get("spec", {})
    return [each for found in spec.values() if isinstance(found, list) for each in found]


def _read(part: Any) -> Any:
    return () if isinstance(part, Unreadable) or part is None else part


def _concerns_gpus(pod: JsonObject) -> bool:
    with suppress(WireError):
        return reading.concerns_gpus(pod)
    return True  # odd ones are what others have to see


def _inspect(snapshot: Snapshot, pods: Sequence[JsonObject], render: Callable[[holders.Report], str]) -> str:
    """Says why where something is so odd that it cannot be made."""
    try:
        built = holders.build(_read(snapshot.nodes), pods, node_records.unhealthy_by_node(_read(snapshot.unhealthy)))
        return render(built) if built.nodes else "no node shares a GPU\n"
    except GpuShareError as error:
        return f"not made: {error}\n"


def _documents(wanted: reading.Spec, values: Iterable[Object]) -> str:
    return "".join(f"---\n{yamls.dump(cleaned_value(reading.kept(value, wanted)))}" for value in values if value)


def _json(value: object) -> str:
    return yamls.dump_json(cleaned_value(value))


def _named(name: object, each: object) -> Any:
    """A field's value, or what comes after a flag."""
    is_flag_or_field = isinstance(name, str) and isinstance(each, str)
    return HIDDEN if is_flag_or_field and _NAME.fullmatch(str(name)) else cleaned_value(each)


def _hidden(found: re.Match[str]) -> str:
    start, end = found.span(found.lastgroup or 0)
    return found.string[found.start() : start] + HIDDEN + found.string[end : found.end()]


COMMAND: Final = Command(
    name="report",
    what="a file for those who help with a problem",
    exit_codes="the file is written; 1 the cluster cannot be read, or the file cannot be written; 2 wrong arguments.",
    examples=(
        ("A file with all that helps, in the current directory", "gpushare report"),
        ("Without logs, under a name of your own", "gpushare report --logs 0 -f report.tar.gz"),
    ),
    description="Write a file for those who help with a problem: GPUs, allocations, settings, versions, what doctor"
    " finds, Events and logs of gpushare. Secrets are not read, and variables and commands of pods are left out.",
    options=Options,
    run=lambda call: run(call.api(), call.streams, call.options(Options), call.clock),
)
