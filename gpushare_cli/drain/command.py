"""`gpushare drain`, `cordon`, `uncordon`: arguments, what is done, what is printed."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import units
from gpushare.cluster import drain
from gpushare.cluster.drain import Permissions, Row, Step
from gpushare.errors import GpuShareError
from gpushare.identity import NodeName, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import Clock
from gpushare.runtime.process import as_interrupt
from gpushare_cli import arguments, console, reading
from gpushare_cli.arguments import Call, Command
from gpushare_cli.console import BAD, OK, Streams
from gpushare_cli.drain import after
from gpushare_cli.drain import card as cards
from gpushare_cli.drain.card import Card, Occupied
from gpushare_cli.drain.loop import Drainer, UncordonedError

_DEFAULT_S: Final = 600
_WORDS: Final[Mapping[Step, str]] = {
    Step.EVICT: "is evicted",
    Step.WAIT: "waits",
    Step.LEAVING: "leaves",
    Step.STAY: "stays",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments."""

    gpu: Card
    dry_run: bool = False
    force: bool = False
    delete_emptydir_data: bool = False
    timeout: int = _DEFAULT_S
    output: str = "table"


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments of drain."""
    parser.description = (
        "Take one GPU out of service: keep new pods away from it, and evict the pods that are on it, as budgets allow."
        " Pods on other GPUs of the node stay."
    )
    _add_gpu(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done; changes nothing")
    parser.add_argument("--force", action="store_true", help="also evict pods that nothing recreates")
    parser.add_argument(
        "--delete-emptydir-data", action="store_true", help="also evict pods that lose data in emptyDir volumes"
    )
    parser.add_argument(
        "--timeout",
        type=int,
        default=_DEFAULT_S,
        metavar="SECONDS",
        help="how long to wait for budgets and for pods to end (default: %(default)s)",
    )
    arguments.add_output(parser)
    arguments.add_cluster(parser)


def add_cordon(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments of cordon."""
    parser.description = "Keep new pods away from one GPU; what runs there stays."
    _add_gpu(parser)
    arguments.add_cluster(parser)


def add_uncordon(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments of uncordon."""
    parser.description = "Let new pods onto one GPU again, after cordon or drain."
    _add_gpu(parser)
    arguments.add_cluster(parser)


def _add_gpu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "gpu", type=Card.parse, metavar="NODE/GPU", help="number or UUID of the GPU; 0:1 is MIG instance 1 of GPU 0"
    )


def run(api: KubeApi, streams: Streams, options: Options, clock: Clock) -> int:
    """Drain a GPU, or say what that would do. The exit code.

    Raises:
        KubeError: the cluster cannot be read or changed.
        SettingsError: there is no such GPU.
    """
    permissions = Permissions(force=options.force, delete_emptydir_data=options.delete_emptydir_data)
    try:
        occupied = cards.read(api, options.gpu, permissions)
    except kube.NotFoundError:
        return streams.error(f"there is no node {options.gpu.node}")
    known, note = reading.budgets(api)
    for each in filter(None, (*occupied.notes, note)):
        streams.note(each)
    planned = drain.plan(occupied.occupants, known)
    if options.dry_run:
        leaving = [row.pod.uid for row in planned if row.step in {Step.EVICT, Step.WAIT}]
        then, note = after.successors(api, options.gpu, occupied.gpus, leaving)
        if note:
            streams.note(note)
        _print(streams, options, occupied, planned, planned, then)
        return BAD if any(row.step in {Step.WAIT, Step.STAY} for row in planned) else OK
    cordon(api, streams, options.gpu)
    drainer = Drainer(
        api=api,
        clock=clock,
        streams=streams,
        card=options.gpu,
        gpus=occupied.gpus,
        permissions=permissions,
        timeout_s=options.timeout,
    )
    try:
        left = drainer.run()
    except UncordonedError as error:
        _print(streams, options, occupied, planned, drainer.left)
        streams.error(error)
        return BAD
    except (GpuShareError, KeyboardInterrupt):
        _stays_cordoned(streams, options.gpu)
        raise
    _print(streams, options, occupied, planned, left)
    if left:
        _stays_cordoned(streams, options.gpu)
    return BAD if left else OK


def _stays_cordoned(streams: Streams, card: Card) -> None:
    streams.note(f"{card} stays cordoned; gpushare uncordon {card} lets new pods in, gpushare drain {card} goes on")


def cordon(api: KubeApi, streams: Streams, card: Card) -> int:
    """Keep new pods away from a GPU. The exit code.

    Raises:
        KubeError: the node cannot be read or changed.
        SettingsError: there is no such GPU.
    """
    try:
        changed = cards.cordon(api, card.node, cards.keeping_away(card))
    except kube.NotFoundError:
        return streams.error(f"there is no node {card.node}")
    streams.progress(f"{card}: {'cordoned' if changed else 'was cordoned before'}; new pods stay away from it")
    return OK


def uncordon(api: KubeApi, streams: Streams, card: Card) -> int:
    """Let new pods in again. The exit code.

    Raises:
        KubeError: the node cannot be read or changed.
        SettingsError: it is not cordoned.
    """
    try:
        cards.cordon(api, card.node, cards.letting_in(card))
    except kube.NotFoundError:
        return streams.error(f"there is no node {card.node}")
    streams.progress(f"{card}: uncordoned; it takes new pods")
    return OK


def _print(
    streams: Streams,
    options: Options,
    occupied: Occupied,
    planned: Sequence[Row],
    left: Sequence[Row],
    then: Mapping[PodUid, NodeName | None] | None = None,
) -> None:
    def value() -> dict[str, Any]:
        return {
            "version": 1,
            "node": options.gpu.node,
            "gpus": cards.as_json(occupied.gpus),
            "dryRun": options.dry_run,
            "planned": [_as_json(row) for row in planned],
            "left": [_as_json(row) for row in left],
            **({} if then is None else {"successors": then}),
        }

    streams.answer(options.output, value, lambda: _table(streams, options, left, then))


def _table(
    streams: Streams, options: Options, left: Sequence[Row], then: Mapping[PodUid, NodeName | None] | None
) -> str:
    if not left:
        return f"{options.gpu}: no pod is on it\n"
    rows = [("POD", "MEMORY", "WHAT", *(["ITS SUCCESSOR"] if then is not None else []), "WHY")]
    for row in left:
        successor = [_successor(row.pod.uid, then)] if then is not None else []
        rows.append((str(row.pod), units.memory(row.memory_mib), _WORDS[row.step], *successor, row.why))
    return console.table(rows, streams.width)


def _successor(pod: PodUid, then: Mapping[PodUid, NodeName | None]) -> str:
    if pod not in then:
        return "-"
    node = then[pod]
    return f"fits on {node}" if node else "would wait"


def _as_json(row: Row) -> dict[str, Any]:
    return {
        "namespace": row.pod.namespace,
        "name": row.pod.name,
        "memoryMiB": row.memory_mib,
        "step": row.step.value,
        "why": row.why or None,
    }


def _drain(call: Call) -> int:
    with as_interrupt():  # it says then that the GPU stays cordoned
        return run(call.api(), call.streams, call.options(Options), call.clock)


def _cordon(call: Call) -> int:
    return cordon(call.api(), call.streams, call.arguments.gpu)


def _uncordon(call: Call) -> int:
    return uncordon(call.api(), call.streams, call.arguments.gpu)


DRAIN: Final = Command(
    name="drain",
    what="take a GPU out of service",
    exit_codes="nothing is left on the GPU; 1 the cluster cannot be read or changed; 2 wrong arguments; 3 pods are"
    " left, and the table says why.",
    examples=(
        ("Who would be evicted, and who would stay", "gpushare drain node-a/2 --dry-run"),
        ("Evict the pods of a GPU as budgets allow", "gpushare drain node-a/2"),
        ("Also pods that nothing recreates, for at most a minute", "gpushare drain node-a/2 --force --timeout 60"),
    ),
    add=add,
    run=_drain,
)
CORDON: Final = Command(
    name="cordon",
    what="keep new pods away from a GPU",
    exit_codes="done; 1 the cluster cannot be read or changed; 2 wrong arguments.",
    examples=(
        ("By the number of the GPU", "gpushare cordon node-a/2"),
        ("MIG instance 1 of GPU 0", "gpushare cordon node-a/0:1"),
    ),
    add=add_cordon,
    run=_cordon,
)
UNCORDON: Final = Command(
    name="uncordon",
    what="let new pods onto a GPU again",
    exit_codes=CORDON.exit_codes,
    examples=(("After a drain", "gpushare uncordon node-a/2"),),
    add=add_uncordon,
    run=_uncordon,
)
