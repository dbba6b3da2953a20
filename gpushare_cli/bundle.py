"""`gpushare report`: one compressed file with what others need to understand a problem, and without secrets."""

import io
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from gpushare import names
from gpushare.errors import SettingsError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime.clock import Clock
from gpushare.wire import fields
from gpushare_cli import arguments, reading, redaction
from gpushare_cli.arguments import Command, argument
from gpushare_cli.console import OK, Streams
from gpushare_cli.doctor import snapshot

_LINES: Final = 2_000
_BYTES: Final = 2**20
_LOG_S: Final = 20.0
_ALL_BYTES: Final = 64 * 2**20  # of all logs, after which no more are read; and so long
_ALL_S: Final = 300.0


def _lines(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SettingsError(f"logs {text!r}: write how many lines, such as {_LINES}, or 0 for none")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    file: str = argument("-f", "--file", metavar="FILE", help="where to (default: gpushare-report-TIME.tar.gz here)")
    namespace: str = arguments.installed()
    logs: int = argument(
        "--logs",
        type=_lines,
        default=_LINES,
        metavar="LINES",
        help="of each container of the installation, the last ones; 0 for none (default: %(default)s)",
    )


def run(api: KubeApi, streams: Streams, options: Options, clock: Clock) -> int:
    """Write the file; the exit code. KubeError if no cluster can be read, WireError if no file be written."""
    taken = snapshot.take(api, clock, options.namespace, streams.note)
    missing = list(redaction.unread(taken))
    files = dict(redaction.files(taken, _events(api, missing)))
    if options.logs > 0:
        files.update(_all_logs(api, redaction.own_pods(taken), options.logs, missing, clock))
    files["not-read.txt"] = "".join(f"{line}\n" for line in map(redaction.cleaned, missing))
    path = Path(options.file or f"gpushare-report-{clock.now():%Y%m%d-%H%M%S}.tar.gz").expanduser()
    _write(path, _packed(files, clock.now()))
    streams.out.write(f"{path}\n")
    streams.note(*(f"not in the report: {line}" for line in missing))
    return OK


def _events(api: KubeApi, missing: list[str]) -> list[JsonObject]:
    def is_ours(event: JsonObject) -> bool:
        return str(event.get("reason", "")).startswith(names.EVENT_PREFIX)

    try:
        return reading.listed(api, "/api/v1/events", {}, keep=is_ours)
    except kube.KubeError as error:
        missing.append(f"events: {error}")
        return []


def _all_logs(
    api: KubeApi, pods: Sequence[JsonObject], lines: int, missing: list[str], clock: Clock
) -> Mapping[str, str]:
    """Those of pods that are not ready first: of a large cluster not all are read."""
    files: dict[str, str] = {}
    began = clock.monotonic()
    for done, pod in enumerate(sorted(pods, key=_is_ready)):
        size = sum(map(len, files.values()))
        if size >= _ALL_BYTES or clock.monotonic() - began >= _ALL_S:
            limit = f"{_ALL_BYTES // 2**20} MiB" if size >= _ALL_BYTES else f"{_ALL_S:.0f} s"
            missing.append(f"logs of {len(pods) - done} pods, after {limit} of others'")
            break
        files.update(_logs(api, pod, lines))
    return files


def _is_ready(pod: JsonObject) -> bool:
    try:
        return fields.is_true(pod, "Ready", "pod")
    except WireError:
        return False  # its state is odd


def _logs(api: KubeApi, pod: JsonObject, lines: int) -> Iterator[tuple[str, str]]:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    for container in redaction.containers(pod):
        for kind, previous in (("", "false"), (".previous", "true")):
            query = f"container={container['name']}&tailLines={lines}&limitBytes={_BYTES}&previous={previous}"
            try:
                reply = api.ask(f"{kube.pod_path(namespace, name, 'log')}?{query}", timeout_s=_LOG_S)
            except kube.KubeError as error:
                text = "" if previous == "true" else f"not read: {error}\n"
            else:
                text = reply.text if reply.is_good else ""
            if text:
                yield f"logs/{name}/{container['name']}{kind}.log", redaction.cleaned(text)


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


COMMAND: Final = Command(
    name="report",
    what="a file for those who help with a problem",
    exit_codes="the file is written; 1 the cluster cannot be read, or the file cannot be written; 2 wrong arguments.",
    examples=(
        ("A file with all that helps, in the current directory", "gpushare report"),
        ("Without logs, under a name of your own", "gpushare report --logs 0 -f report.tar.gz"),
    ),
    add=arguments.of_options(
        Options,
        "Write a file for those who help with a problem: GPUs, allocations, settings, versions, what doctor"
        " finds, Events and logs of gpushare. Secrets are not read, and variables and commands of pods are left out.",
    ),
    run=lambda call: run(call.api(), call.streams, call.options(Options), call.clock),
)
