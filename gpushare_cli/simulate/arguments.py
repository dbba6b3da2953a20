"""The arguments of `gpushare simulate`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.model.request import DEFAULT_POLICY, Policy
from gpushare.units import MemoryUnit
from gpushare_cli import arguments, scheduler_command, scheduler_config, scores
from gpushare_cli.scheduler_config import ServerVersion
from gpushare_cli.simulate import orders
from gpushare_cli.simulate.orders import Order

NONE: Final = "none"
"""Instead of a policy: nodes are not ranked, and a pod gets the fullest GPUs with room."""
_KNOWN: Final = (*(policy.value for policy in Policy), NONE)
NEWEST: Final = ServerVersion(1, 36)
"""Of which the scores are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments."""

    files: Sequence[str]
    profile: str = ""
    nodes: int | None = None
    policies: Sequence[str] = (DEFAULT_POLICY.value,)
    order: Order = Order.GIVEN
    seeds: Sequence[int] = (1,)
    replay: bool = False
    server: ServerVersion | None = None
    weight: int | None = None
    others_weight: int | None = None
    most_allocated: bool = False
    memory_unit: MemoryUnit | None = None
    whole_gpus: bool = False
    summary: bool = False
    plot: str = ""
    output: str = "table"


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Say which pods would go to which nodes and GPUs, without a cluster: with kube-scheduler's own scores, and"
        " chance where they are equal. Pods that a cluster's list shows as waiting come first, then the pods and"
        " workloads of the other files, in their order. The details are of the first policy and seed."
    )
    what = "manifests, or what kubectl get nodes,pods -A -o yaml prints; - for the standard input; may be repeated"
    files = parser.add_argument(
        "-f", "--filename", dest="files", action="append", default=[], metavar="FILE", help=what
    )
    what = "GPUs of made-up nodes, as of simulated GPUs"
    profile = parser.add_argument("--profile", default="", metavar="FILE", help=what)
    parser.add_argument("--nodes", type=int, metavar="N", help="how many nodes to make up from the profile")
    parser.add_argument(
        "--policy",
        dest="policies",
        type=_policies,
        default=(DEFAULT_POLICY.value,),
        metavar="NAME[,NAME]",
        help=f"of pods that name none, one or several of {', '.join(_KNOWN)}; {NONE} leaves the choice of the node to"
        f" kube-scheduler (default: {DEFAULT_POLICY.value})",
    )
    arguments.add_choice(parser, "--order", Order.GIVEN, "in which pods come (default: given)")
    parser.add_argument(
        "--seeds",
        type=orders.seeds,
        default=(1,),
        metavar="1-5",
        help="for chance among equal nodes and in when the controller learns what is typical, and for --order"
        " shuffled; the summary has mean and deviation (default: 1)",
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="place the pods of the cluster's list again, from empty nodes on, when they were created and for as"
        " long as they ran; pods of DaemonSets stay",
    )
    _add_scheduler(parser)
    arguments.add_memory_unit(parser, "the unit in which the nodes count")
    parser.add_argument("--whole-gpus", action="store_true", help=f"{names.GPU} is gpushare's, not another plugin's")
    parser.add_argument("--summary", action="store_true", help="leave out the tables of pods and nodes")
    what = "write there how much is allocated, a line for each policy"
    plot = parser.add_argument("--plot", default="", metavar="FILE.svg", help=what)
    for each in (files, profile, plot):
        arguments.is_file(each)
    arguments.add_output(parser)


def _add_scheduler(parser: argparse.ArgumentParser) -> None:
    """How kube-scheduler is configured, in the words of scheduler-config."""
    scheduler_command.add_server(
        parser, f"of the kube-scheduler whose scores count (default: the newest kubelet in the input, or {NEWEST})"
    )
    parser.add_argument(
        "--weight",
        type=int,
        metavar="N",
        help=f"of the controller's scores for GPU pods (default: {scores.needed(scores.UNASKED)}, as printed)",
    )
    scheduler_command.add_rank_others(
        parser,
        "the controller ranks nodes for pods without GPUs, too; by default with weight"
        f" {scheduler_config.OTHERS_WEIGHT}",
    )
    parser.add_argument(
        "--most-allocated", action="store_true", help="nodes with less free CPU and memory come first, for all pods"
    )


def _policies(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in _KNOWN:
            raise SettingsError(f"--policy {text!r}: {name!r} is no policy; write some of {', '.join(_KNOWN)}")
    return found
