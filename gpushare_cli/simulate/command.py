"""`gpushare simulate`: reads the files, makes the plan, prints it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from gpushare.errors import SettingsError, WireError
from gpushare.model.gpu import NodeInventory
from gpushare.model.request import Policy
from gpushare.units import MemoryUnit
from gpushare_cli import yamls
from gpushare_cli.commands import FAILED, NO_ROOM, OK, Streams
from gpushare_cli.simulate import cluster, madeup, objects, plan, render
from gpushare_cli.simulate.plan import Outcome

_STDIN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments."""

    files: tuple[str, ...]
    profile: str = ""
    nodes: int | None = None
    policy: Policy = Policy.BINPACK
    unit: MemoryUnit | None = None
    whole_gpus: bool = False
    as_json: bool = False


def run(options: Options, streams: Streams, stdin: TextIO) -> int:
    """Print what would go where. The exit code.

    Raises:
        SettingsError: the arguments do not go together.
    """
    _check(options)
    try:
        question, made = _plan(options, stdin)
    except WireError as error:
        streams.err.write(f"error: {error}\n")
        return FAILED
    missing = render.overlooked(made)
    notes = [*question.notes, *([f"not evaluated: {', '.join(missing)}"] if missing else [])]
    for note in notes:
        streams.err.write(f"note: {note}\n")
    if options.as_json:
        streams.out.write(render.as_json(made, question.unit, options.policy, notes))
    else:
        streams.out.write(render.table(made, question.unit))
    return OK if all(row.outcome is Outcome.PLACED for row in made.rows) else NO_ROOM


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

    question = cluster.prepare(found, make_up, options.unit, whole_gpus=options.whole_gpus)
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
