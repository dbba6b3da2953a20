"""`gpushare simulate`: reads the files, makes the plans, prints them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TextIO

from gpushare import names
from gpushare.errors import SettingsError, WireError
from gpushare.model.request import DEFAULT_POLICY, Policy
from gpushare.units import MemoryUnit
from gpushare_cli import arguments, kube_scores, plot, scheduler_config
from gpushare_cli.arguments import Command, argument, switch
from gpushare_cli.console import BAD, OK, Streams
from gpushare_cli.kube_scores import Fit, Rules
from gpushare_cli.scheduler_config import MOST_WEIGHT, ServerVersion
from gpushare_cli.simulate import objects, plan, question, render
from gpushare_cli.simulate.objects import STDIN
from gpushare_cli.simulate.plan import Plan
from gpushare_cli.simulate.question import Profile
from gpushare_cli.simulate.render import Run
from gpushare_cli.simulate.scheduler import SchedulerConfig
from gpushare_cli.simulate.workloads import Pod

NONE: Final = "none"  # instead of a policy: nodes are not ranked, and a pod gets the fullest GPUs with room
_KNOWN: Final = (*(policy.value for policy in Policy), NONE)
_NEWEST: Final = ServerVersion(1, 36)  # of which the scores are known
_WEIGHT: Final = kube_scores.needed(kube_scores.UNASKED)
_MANY: Final = 2_000  # pods, from which on it takes a while
MAX_SEEDS: Final = 100


class Order(StrEnum):  # of pods; those that are on a node already always come first
    GIVEN = "given"  # waiting pods by priority and age, then those of the files in their order
    SHUFFLED = "shuffled"  # by chance, which a seed decides
    TIMESTAMPS = "timestamps"  # by when they were created; those of which that is not known come last


def _policies(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in _KNOWN:
            raise SettingsError(f"--policy {text!r}: {name!r} is no policy; write some of {', '.join(_KNOWN)}")
    return found


def _seeds(text: str) -> tuple[int, ...]:
    """`7`, `1-5` or `1,2,9`."""
    first, dash, last = text.partition("-")
    try:
        most = int(first) + MAX_SEEDS if dash else 0  # one too many
        found = tuple(range(int(first), min(int(last), most) + 1) if dash else map(int, text.split(",")))
    except ValueError:
        raise SettingsError(f"--seeds {text}: write numbers, such as 1-5 or 1,2,9") from None
    if not 0 < len(found) <= MAX_SEEDS:
        raise SettingsError(f"--seeds {text}: write 1 to {MAX_SEEDS} numbers")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    files: Sequence[str] | None = argument(
        "-f",
        "--filename",
        action="append",
        default=None,
        metavar="FILE",
        help="manifests, or what kubectl get nodes,pods -A -o yaml prints; - for the standard input; may be repeated",
    )
    profile: str = argument("--profile", metavar="FILE", help="GPUs of made-up nodes, as of simulated GPUs")
    nodes: int | None = arguments.number("--nodes", "how many nodes to make up from the profile")
    policies: Sequence[str] = argument(
        "--policy",
        type=_policies,
        default=(DEFAULT_POLICY.value,),
        metavar="NAME[,NAME]",
        help=f"of pods that name none, one or several of {', '.join(_KNOWN)}; {NONE} leaves the choice of the node to"
        f" kube-scheduler (default: {DEFAULT_POLICY.value})",
    )
    order: Order = arguments.choice("--order", Order.GIVEN, "in which pods come (default: given)")
    seeds: Sequence[int] = argument(
        "--seeds",
        type=_seeds,
        default=(1,),
        metavar="1-5",
        help="for chance among equal nodes and in when the controller learns what is typical, and for --order"
        " shuffled; the summary has mean and deviation (default: 1)",
    )
    replay: bool = switch(
        "--replay",
        what="place the pods of the cluster's list again, from empty nodes on, when they were created and for as long"
        " as they ran; pods of DaemonSets stay",
    )
    server: ServerVersion | None = scheduler_config.server_version(
        f"of the kube-scheduler whose scores count (default: the newest kubelet in the input, or {_NEWEST})",
        default=None,
    )
    weight: int | None = arguments.number(
        "--weight", f"of the controller's scores for GPU pods (default: {_WEIGHT}, as printed)", most=MOST_WEIGHT
    )
    others_weight: int | None = scheduler_config.rank_others(
        "the controller ranks nodes for pods without GPUs, too; by default with weight"
        f" {scheduler_config.OTHERS_WEIGHT}"
    )
    most_allocated: bool = switch(
        "--most-allocated", what="nodes with less free CPU and memory come first, for all pods"
    )
    memory_unit: MemoryUnit | None = arguments.memory_unit("the unit in which the nodes count")
    whole_gpus: bool = switch("--whole-gpus", what=f"{names.GPU} is gpushare's, not another plugin's")
    claims: bool = switch(
        "--claims",
        what="of pods with ResourceClaims instead, whose templates are in the input, on GPUs of mode dra: nodes are"
        " kube-scheduler's choice, but with --rank-others",
    )
    summary: bool = switch("--summary", what="leave out the tables of pods and nodes")
    plot: str = argument(
        "--plot", metavar="FILE.svg", help="write there how much is allocated, a line for each policy; needs matplotlib"
    )
    output: str = arguments.output()


def run(options: Options, streams: Streams, stdin: TextIO) -> int:
    """Print what would go where. The exit code."""
    _check(options)
    found = objects.collect(objects.read_file(file, stdin) for file in options.files or ())
    profile = Profile.of(*objects.read_file(options.profile, stdin), options.nodes) if options.profile else None
    whole, replay = options.whole_gpus, options.replay
    asked = question.prepare(
        found, profile, options.memory_unit, whole_gpus=whole, replay=replay, claims=options.claims
    )
    minor = (options.server or asked.server or _NEWEST).minor
    count = len(asked.pods)
    policies = (NONE,) if options.claims and not options.others_weight else options.policies
    pairs = [(policy, seed) for policy in policies for seed in options.seeds]

    def planned(policy: str, seed: int, *, details: bool) -> Plan:
        if len(pairs) > 1 or count > _MANY:
            streams.progress(f"{policy}, seed {seed}: {count} pods on {len(asked.nodes.world.nodes)} nodes ...")
        draw, draw_look = (random.Random(of).randrange for of in (seed, f"{seed} looks"))  # noqa: S311 - nothing secret
        return plan.run(
            asked,
            _config(options, policy, minor),
            _ordered(asked.pods, options.order, seed),
            draw,
            draw_look=draw_look,
            details=details,
            progress=lambda came: streams.progress(f"{came} of {count} pods have come ..."),
        )

    first = planned(*pairs[0], details=True)
    runs = [Run.of(*pairs[0], first), *(Run.of(*pair, planned(*pair, details=False)) for pair in pairs[1:])]
    if options.plot:
        if not first.series.points:
            raise SettingsError("--plot: there is no pod to place, so nothing to draw; --replay takes those that run")
        try:
            Path(options.plot).expanduser().write_text(plot.svg(render.plot(runs)), encoding="utf-8")
        except OSError as error:
            raise WireError(f"{options.plot}: {error.strerror}") from error
    missing = render.overlooked(first)
    notes = [*asked.notes, *([f"not evaluated: {', '.join(missing)}"] if missing else [])]
    streams.note(*notes)
    streams.answer(
        options.output,
        lambda: render.as_json(first, runs, asked.unit, notes),
        lambda: render.text(first, runs, asked.unit, streams.width, details=not options.summary),
    )
    return OK if first.placed == count else BAD


def _ordered(pods: Sequence[Pod], order: Order, seed: int) -> list[int]:
    first, rest = ([i for i, pod in enumerate(pods) if pod.bound is bound] for bound in (True, False))
    if order is Order.SHUFFLED:
        random.Random(seed).shuffle(rest)  # noqa: S311 - nothing secret
    elif order is Order.TIMESTAMPS:
        rest.sort(key=lambda i: (pods[i].created == "", pods[i].created))
    return first + rest


def _config(options: Options, policy: str, minor: int) -> SchedulerConfig:
    fit = Fit.MOST_ALLOCATED if options.most_allocated else Fit.LEAST_ALLOCATED
    rules = Rules(minor=minor, fit=fit)
    if policy == NONE:
        return SchedulerConfig(policy=Policy.BINPACK, rules=rules, weight=0)
    weight = _WEIGHT if options.weight is None else options.weight
    if options.claims:
        weight = options.others_weight or 0
    return SchedulerConfig(policy=Policy(policy), rules=rules, weight=weight, others_weight=options.others_weight or 0)


def _check(options: Options) -> None:
    if not options.files and not options.profile:
        raise SettingsError("nothing to simulate: give files with -f, or a cluster with --profile")
    if [*(options.files or ()), options.profile].count(STDIN) > 1:
        raise SettingsError("- stands for the standard input, which can be read only once")
    if options.replay and options.order is Order.SHUFFLED:
        raise SettingsError("--replay --order shuffled: replayed pods come when they were created; leave out --order")
    if options.nodes is not None and not options.profile:
        raise SettingsError(f"--nodes {options.nodes}: needs --profile, which says what GPUs they have")
    if options.plot:
        plot.require()
        if not Path(options.plot).expanduser().parent.is_dir():
            raise SettingsError(f"--plot {options.plot}: there is no such directory; make it first")


COMMAND: Final = Command(
    name="simulate",
    what="what would go where, without a cluster",
    exit_codes="every pod is placed; 1 the input cannot be read; 2 wrong arguments; 3 some pod is not placed.",
    examples=(
        (
            "Whether a workload would fit on ten made-up nodes",
            "gpushare simulate -f web.yaml --profile gpus.yaml --nodes 10",
        ),
        ("The same on the cluster as it is", "kubectl get nodes,pods -A -o yaml | gpushare simulate -f - -f web.yaml"),
        ("Policies compared", "gpushare simulate -f web.yaml --profile gpus.yaml --policy dense,binpack --summary"),
    ),
    description="Say which pods would go to which nodes and GPUs, without a cluster: with kube-scheduler's own scores,"
    " and chance where they are equal. Pods that a cluster's list shows as waiting come first, then the pods and"
    " workloads of the other files, in their order. The details are of the first policy and seed.",
    options=Options,
    of_cluster=False,
    run=lambda call: run(call.options(Options), call.streams, call.stdin),
)
