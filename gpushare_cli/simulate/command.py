"""`gpushare simulate`: reads the files, makes the plans, prints them."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from gpushare.errors import SettingsError, WireError
from gpushare.model.gpu import NodeInventory
from gpushare.model.request import Policy
from gpushare.simulation.engine import Extender
from gpushare.simulation.scores import Fit, Rules
from gpushare.units import MemoryUnit
from gpushare_cli import plot, scheduler_config, scores, yamls
from gpushare_cli.arguments import Call, Command
from gpushare_cli.console import BAD, OK, Streams
from gpushare_cli.simulate import cluster, drawing, madeup, objects, orders, render
from gpushare_cli.simulate.arguments import NEWEST, NONE, Options, add
from gpushare_cli.simulate.orders import Order
from gpushare_cli.simulate.plan import Cluster, Outcome, Plan, Way
from gpushare_cli.simulate.summary import Run

__all__ = ["COMMAND", "Options", "run"]
_STDIN: Final = "-"


def run(options: Options, streams: Streams, stdin: TextIO) -> int:
    """Print what would go where. The exit code.

    Raises:
        WireError: a file cannot be read or written.
        SettingsError: the arguments do not go together.
    """
    _check(options)
    question = _question(options, stdin)
    state = Cluster(question.world, question.hosts, question.pods)
    minor = (options.server or question.server or NEWEST).minor
    first: Plan | None = None
    runs: list[Run] = []
    for policy, seed in _pairs(options):
        if len(options.policies) * len(options.seeds) > 1 or len(state.pods) > _MANY:
            streams.progress(f"{policy}, seed {seed}: {len(state.pods)} pods on {len(question.world.nodes)} nodes ...")

        def told(count: int) -> None:
            streams.progress(f"{count} of {len(state.pods)} pods have come ...")

        order = orders.ordered(state.pods, options.order, seed)
        pick, chance = (random.Random(of).randrange for of in (seed, f"{seed} looks"))  # noqa: S311 - nothing secret
        way = _way(options, policy, minor)
        made = state.plan(way, order, pick, chance=chance, details=first is None, told=told)
        first = first or made
        runs.append(Run(policy=policy, seed=seed, pods=len(made.rows), placed=made.placed, curve=made.curve))
    if first is None:
        raise SettingsError("--policy: write at least one")
    if options.plot:
        if not any(run.pods for run in runs):
            raise SettingsError("--plot: there is no pod to place, so nothing to draw; --replay takes those that run")
        _write(options.plot, plot.svg(drawing.of(runs)))
    missing = render.overlooked(first)
    notes = [*question.notes, *([f"not evaluated: {', '.join(missing)}"] if missing else [])]
    for note in notes:
        streams.note(note)
    streams.answer(
        options.output,
        lambda: render.as_json(first, runs, question.unit, notes),
        lambda: render.text(first, runs, question.unit, streams.width, details=not options.summary),
    )
    return OK if all(row.outcome is Outcome.PLACED for row in first.rows) else BAD


_MANY: Final = 2_000
"""Pods, from which on it takes a while."""


def _pairs(options: Options) -> Iterator[tuple[str, int]]:
    return ((policy, seed) for policy in options.policies for seed in options.seeds)


def _way(options: Options, policy: str, minor: int) -> Way:
    weight = scores.needed(scores.UNASKED) if options.weight is None else options.weight
    ranks = policy != NONE
    return Way(
        policy=Policy(policy) if ranks else Policy.BINPACK,
        rules=Rules(
            minor=minor,
            fit=Fit.MOST_ALLOCATED if options.most_allocated else Fit.LEAST_ALLOCATED,
        ),
        extender=Extender(weight=weight if ranks else 0, others_weight=(options.others_weight or 0) if ranks else 0),
    )


def _write(path: str, text: str) -> None:
    try:
        Path(path).expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise WireError(f"{path}: {error.strerror}") from error


def _check(options: Options) -> None:
    if not options.files and not options.profile:
        raise SettingsError("nothing to simulate: give files with -f, or a cluster with --profile")
    if options.files.count(_STDIN) + (options.profile == _STDIN) > 1:
        raise SettingsError("- stands for the standard input, which can be read only once")
    if options.replay and options.order is Order.SHUFFLED:
        raise SettingsError("--replay --order shuffled: replayed pods come when they were created; leave out --order")
    if options.nodes is not None and not options.profile:
        raise SettingsError(f"--nodes {options.nodes}: needs --profile, which says what GPUs they have")
    if options.nodes is not None and options.nodes < 1:
        raise SettingsError(f"--nodes {options.nodes}: write at least 1")
    for flag, weight in ("--weight", options.weight), ("--rank-others", options.others_weight):
        if weight is not None:
            scheduler_config.checked_weight(flag, weight)
    if options.plot and not Path(options.plot).expanduser().parent.is_dir():
        raise SettingsError(f"--plot {options.plot}: there is no such directory; make it first")


def _question(options: Options, stdin: TextIO) -> cluster.Question:
    found = objects.collect((_name(file), _load(file, stdin)) for file in options.files)
    profile = madeup.document(_load(options.profile, stdin), _name(options.profile)) if options.profile else None

    def make_up(unit: MemoryUnit, taken: Sequence[str]) -> Sequence[NodeInventory]:
        if not options.profile:
            return ()
        try:
            return madeup.inventories(profile, options.nodes, unit, taken)
        except WireError as error:
            raise WireError(f"{_name(options.profile)}: {error}") from error

    return cluster.prepare(found, make_up, options.memory_unit, whole_gpus=options.whole_gpus, replay=options.replay)


def _load(path: str, stdin: TextIO) -> list[object]:
    name = _name(path)
    try:
        text = stdin.read() if path == _STDIN else Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise WireError(f"{name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WireError(f"{name}: no text (byte {error.start} is not UTF-8)") from error
    return yamls.load_all(text, name)


def _name(path: str) -> str:
    return "standard input" if path == _STDIN else path


def _run(call: Call) -> int:
    return run(call.options(Options), call.streams, call.stdin)


COMMAND: Final = Command(
    name="simulate",
    what="what would go where, without a cluster",
    exit_codes="every pod is placed; 1 the input cannot be read; 2 wrong arguments; 3 some pod is not placed.",
    examples=(
        (
            "Whether a workload would fit on ten made-up nodes",
            "gpushare simulate -f web.yaml --profile gpus.yaml --nodes 10",
        ),
        (
            "The same on the cluster as it is",
            "kubectl get nodes,pods -A -o yaml | gpushare simulate -f - -f web.yaml",
        ),
        ("Policies compared", "gpushare simulate -f web.yaml --profile gpus.yaml --policy dense,binpack --summary"),
    ),
    add=add,
    run=_run,
)
