"""`gpushare defrag`: arguments, what is done, what is printed."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

from gpushare import names
from gpushare.cluster import defrag
from gpushare.cluster.defrag import Plan
from gpushare.cluster.drain import Permissions
from gpushare.errors import SettingsError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import Clock
from gpushare.runtime.process import as_interrupt
from gpushare_cli import arguments
from gpushare_cli.arguments import Call, Command
from gpushare_cli.console import BAD, OK, Streams
from gpushare_cli.defrag import loop, render
from gpushare_cli.defrag import question as questions
from gpushare_cli.defrag.hold import Hold
from gpushare_cli.defrag.patience import Patience, StoppedError
from gpushare_cli.defrag.question import Answer, Question
from gpushare_cli.defrag.render import Outcome
from gpushare_cli.explain.workloads import Target

_DEFAULT_S: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments."""

    pod: Target | None = None
    file: str = ""
    namespace: str = ""
    installation: str = names.NAMESPACE
    dry_run: bool = False
    yes: bool = False
    delete_emptydir_data: bool = False
    max_moves: int = defrag.MOST_MOVES
    timeout: int = _DEFAULT_S
    output: str = "table"


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Name the few pods whose eviction makes room for a pod that fits on no GPU, and where each of them fits then."
        " Pods that nothing recreates, that would have no place, or that a budget protects stay where they are."
        " Without --yes nothing is changed."
    )
    parser.add_argument(
        "pod", type=Target.parse, nargs="?", metavar="POD", help="NAME or NAMESPACE/NAME of one that waits"
    )
    what = "its manifest instead, before it is created; - for the standard input"
    arguments.is_file(parser.add_argument("-f", "--file", default="", metavar="FILE", help=what))
    arguments.add_namespaces(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done, as without --yes")
    parser.add_argument("--yes", action="store_true", help="evict these pods, one after another, as budgets allow")
    parser.add_argument(
        "--delete-emptydir-data", action="store_true", help="also move pods that lose data in emptyDir volumes"
    )
    parser.add_argument(
        "--max-moves",
        type=int,
        default=defrag.MOST_MOVES,
        metavar="N",
        help="how many pods may be evicted (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=int,
        default=_DEFAULT_S,
        metavar="SECONDS",
        help="how long to wait for each budget and each successor (default: %(default)s)",
    )
    arguments.add_output(parser)
    arguments.add_cluster(parser)


def run(
    api: KubeApi, streams: Streams, options: Options, namespace: Callable[[], str], clock: Clock, stdin: TextIO
) -> int:
    """Say what makes room for a pod, and do it if that is agreed. The exit code.

    Raises:
        KubeError: the cluster cannot be read or changed.
        WireError: an object or a file cannot be read.
        SettingsError: the arguments do not go together.
    """
    _check(options)
    try:
        question = _question(api, options, namespace, stdin)
    except kube.NotFoundError:
        return streams.error(f"there is no pod {options.pod.name if options.pod else options.file}")
    answer = questions.look(api, question)
    for note in answer.notes:
        streams.note(note)
    plan = answer.plan
    if plan is None or plan.waiting or not options.yes:
        _print(streams, options, question, answer)
        if plan is not None and not plan.waiting and not options.dry_run:
            streams.note("nothing was changed; --yes does it")
        return OK if answer.fits or answer.soon or (plan is not None and not plan.waiting) else BAD
    patience = Patience(clock=clock, streams=streams, timeout_s=options.timeout)
    outcome = _carried_out(api, question, answer, plan, patience)
    _print(streams, options, question, answer, outcome)
    if outcome.problem:
        streams.error(outcome.problem)
    return BAD if outcome.problem else OK


def _carried_out(api: KubeApi, question: Question, answer: Answer, plan: Plan, patience: Patience) -> Outcome:
    defragmentation = loop.Defragmentation(
        api=api,
        patience=patience,
        hold=Hold(api=api, patience=patience, node=plan.node, gpus=plan.kept_free),
        question=question,
        plan=plan,
        owners=dict(answer.prepared.owners),
    )
    node, problem = "", ""
    try:
        node = defragmentation.run()
    except StoppedError as error:
        problem = str(error)
    return Outcome(moved=defragmentation.moved, node=node, problem=problem)


def _print(
    streams: Streams, options: Options, question: Question, answer: Answer, outcome: Outcome | None = None
) -> None:
    streams.answer(
        options.output,
        lambda: render.as_json(question.name, answer, outcome),
        lambda: render.text(question.name, answer, outcome, streams.width),
    )


def _check(options: Options) -> None:
    if (options.pod is None) == (not options.file):
        raise SettingsError("give a pod that waits, or its manifest with -f")
    if options.dry_run and options.yes:
        raise SettingsError("--dry-run and --yes contradict each other; leave one out")
    if options.timeout < 1:
        raise SettingsError(f"--timeout {options.timeout}: write at least 1")
    if options.max_moves < 1:
        raise SettingsError(f"--max-moves {options.max_moves}: write at least 1")
    target = options.pod
    if target is not None and target.namespace and options.namespace not in {"", target.namespace}:
        named = f"{target.namespace}/{target.name}"
        raise SettingsError(f"pod {named!r}: --namespace {options.namespace} says another namespace")


def _question(api: KubeApi, options: Options, namespace: Callable[[], str], stdin: TextIO) -> Question:
    if options.pod is None:
        pod = questions.from_file(options.file, stdin)
    else:
        pod = questions.named(api, options.pod, options.pod.namespace or options.namespace or namespace())
    return Question(
        pod=pod,
        exists=options.pod is not None,
        installation=options.installation,
        permissions=Permissions(delete_emptydir_data=options.delete_emptydir_data),
        most=options.max_moves,
    )


def _run(call: Call) -> int:
    options = call.options(Options)
    with as_interrupt():  # cordons that it made for the time being are removed
        return run(call.api(), call.streams, options, call.namespace, call.clock, call.stdin)


COMMAND: Final = Command(
    name="defrag",
    what="the few evictions that make room for a pod",
    exit_codes="there is room, or the plan makes it; 1 the cluster cannot be read or changed; 2 wrong arguments;"
    " 3 no evictions make room, or the plan was not carried out to its end.",
    examples=(
        ("Which evictions make room for a pod that waits", "gpushare defrag train"),
        ("For one that is not created yet", "gpushare defrag -f large.yaml --dry-run"),
        ("Carry it out", "gpushare defrag ml/train --yes"),
    ),
    add=add,
    run=_run,
)
