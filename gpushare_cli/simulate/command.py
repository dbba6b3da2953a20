"""`gpushare simulate`: reads the files, makes the plan, prints it."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from gpushare import names
from gpushare.errors import SettingsError, WireError
from gpushare.model.gpu import NodeInventory
from gpushare.model.request import Policy
from gpushare.units import MemoryUnit
from gpushare_cli import arguments, yamls
from gpushare_cli.commands import BAD, OK, Streams
from gpushare_cli.simulate import cluster, madeup, objects, plan, render
from gpushare_cli.simulate.plan import Outcome

EXIT_CODES: Final = (
    "Exit codes: 0 every pod is placed; 1 the input cannot be read; 2 wrong arguments; 3 some pod is not placed."
)
_STDIN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments."""

    files: Sequence[str]
    profile: str = ""
    nodes: int | None = None
    policy: Policy = Policy.BINPACK
    memory_unit: MemoryUnit | None = None
    whole_gpus: bool = False
    output: str = "table"


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Say which pods would go to which GPUs, without a cluster. Pods that a cluster's list shows as waiting come"
        " first, then the pods and workloads of the other files, in their order."
    )
    parser.add_argument(
        "-f",
        "--filename",
        dest="files",
        action="append",
        default=[],
        metavar="FILE",
        help="manifests, or what kubectl get nodes,pods -A -o yaml prints; - for the standard input; may be repeated",
    )
    parser.add_argument("--profile", default="", metavar="FILE", help="GPUs of made-up nodes, as of simulated GPUs")
    parser.add_argument("--nodes", type=int, metavar="N", help="how many nodes to make up from the profile")
    arguments.add_choice(parser, "--policy", Policy.BINPACK, "of pods that name none (default: binpack)")
    arguments.add_memory_unit(parser, "the unit in which the nodes count")
    parser.add_argument("--whole-gpus", action="store_true", help=f"{names.GPU} is gpushare's, not another plugin's")
    arguments.add_output(parser)


def run(options: Options, streams: Streams, stdin: TextIO) -> int:
    """Print what would go where. The exit code.

    Raises:
        WireError: a file cannot be read.
        SettingsError: the arguments do not go together.
    """
    _check(options)
    question, made = _plan(options, stdin)
    missing = render.overlooked(made)
    notes = [*question.notes, *([f"not evaluated: {', '.join(missing)}"] if missing else [])]
    for note in notes:
        streams.note(note)
    if options.output == "json":
        streams.out.write(render.as_json(made, question.unit, options.policy, notes))
    else:
        streams.out.write(render.table(made, question.unit, streams.width))
    return OK if all(row.outcome is Outcome.PLACED for row in made.rows) else BAD


def _check(options: Options) -> None:
    if not options.files and not options.profile:
        raise SettingsError("nothing to simulate: give files with -f, or a cluster with --profile")
    if options.files.count(_STDIN) + (options.profile == _STDIN) > 1:
        raise SettingsError("- stands for the standard input, which can be read only once")
    if options.nodes is not None and not options.profile:
        raise SettingsError(f"--nodes {options.nodes}: needs --profile, which says what GPUs they have")
    if options.nodes is not None and options.nodes < 1:
        raise SettingsError(f"--nodes {options.nodes}: write at least 1")


def _plan(options: Options, stdin: TextIO) -> tuple[cluster.Question, plan.Plan]:
    found = objects.collect((_name(file), _load(file, stdin)) for file in options.files)
    profile = madeup.document(_load(options.profile, stdin), _name(options.profile)) if options.profile else None

    def make_up(unit: MemoryUnit, taken: Sequence[str]) -> Sequence[NodeInventory]:
        if not options.profile:
            return ()
        try:
            return madeup.inventories(profile, options.nodes, unit, taken)
        except WireError as error:
            raise WireError(f"{_name(options.profile)}: {error}") from error

    question = cluster.prepare(found, make_up, options.memory_unit, whole_gpus=options.whole_gpus)
    return question, plan.make(question.world, question.pods, options.policy)


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
