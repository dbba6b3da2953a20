"""Arguments of measurements on a trace: lists of names and seeds, checked before anything is measured. Pure."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

DIRECTORY = "of Alibaba's cluster-trace-gpu-v2023, see bench/trace.py"


def names_of(known: Iterable[str]) -> Callable[[str], Sequence[str]]:
    """The type of an argument that takes some of these names, such as `dense,fgd`."""
    allowed = list(known)

    def parse(text: str) -> Sequence[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in allowed]:
            raise ArgumentTypeError(f"{text!r}: no {unknown[0]!r} here; write some of {', '.join(allowed)}")
        return found

    return parse


def seeds(text: str) -> Sequence[int]:
    """The type of an argument such as `42-51` or `1,2,3`."""
    first, dash, last = text.partition("-")
    try:
        found = list(range(int(first), int(last) + 1)) if dash else [int(seed) for seed in text.split(",")]
    except ValueError:
        found = []
    if not found:
        raise ArgumentTypeError(f"{text!r}: write at least one number, such as 42-51 or 1,2,3")
    return found


def trace(text: str) -> Path:
    """The type of an argument that names the directory of a trace (`bench.trace` says what is in it)."""
    name = "openb_node_list_gpu_node.csv"
    if not any((Path(text) / file).is_file() for file in (name, f"{name}.gz")):
        raise ArgumentTypeError(f"{text}: no {name} there; name the directory of Alibaba's cluster-trace-gpu-v2023")
    return Path(text)


def add(parser: ArgumentParser, known: Iterable[str], policies: str) -> None:
    """What every measurement on a trace takes.

    policies: by default.
    """
    names = list(known)
    parser.add_argument("--policies", type=names_of(names), default=policies, help=f"of {', '.join(names)}")
    add_trace(parser)


def add_trace(parser: ArgumentParser) -> None:
    """The same without policies."""
    parser.add_argument("directory", type=trace, help=DIRECTORY)
    parser.add_argument("--traces", default="default", help="such as default,gpuspec25, of openb_pod_list_TRACE.csv")
    parser.add_argument("--seeds", type=seeds, default="42-43", help="42-51, or 1,2,3")
    parser.add_argument("--own-orders", action="store_true", help="also where the directory has recorded ones")
    parser.add_argument("--json", type=Path, help="write every run there")


def add_rows(parser: ArgumentParser, known: Iterable[str], rows: str) -> None:
    """How kube-scheduler is configured, in names of one measurement.

    rows: by default.
    """
    names = list(known)
    parser.add_argument("--rows", type=names_of(names), default=rows, help=f"of {', '.join(names)}")
