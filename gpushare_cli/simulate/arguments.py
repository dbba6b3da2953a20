"""The command line of `gpushare simulate`."""

import argparse
from typing import Final

from gpushare import names
from gpushare.model.request import Policy
from gpushare_cli import arguments as common
from gpushare_cli.simulate.command import Options

EXIT_CODES: Final = (
    "Exit codes: 0 every pod is placed; 1 the input cannot be read; 2 wrong arguments; 3 some pod is not placed."
)


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Say which pods would go to which GPUs, without a cluster. Pods that a cluster's list shows as waiting come"
        " first, then the pods and workloads of the other files, in their order."
    )
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="FILE",
        help="manifests, or what kubectl get nodes,pods -A -o yaml prints; - for the standard input; may be repeated",
    )
    parser.add_argument("--profile", default="", metavar="FILE", help="GPUs of made-up nodes, as of simulated GPUs")
    parser.add_argument("--nodes", type=int, metavar="N", help="how many nodes to make up from the profile")
    parser.add_argument(
        "--policy",
        choices=[policy.value for policy in Policy],
        default=Policy.BINPACK.value,
        help="of pods that name none (default: %(default)s)",
    )
    common.add_memory_unit(parser, "the unit in which the nodes count")
    parser.add_argument("--whole-gpus", action="store_true", help=f"{names.GPU} is gpushare's, not another plugin's")
    common.add_output(parser)


def options(arguments: argparse.Namespace) -> Options:
    """What the arguments ask for."""
    return Options(
        files=tuple(arguments.filename),
        profile=arguments.profile,
        nodes=arguments.nodes,
        policy=Policy(arguments.policy),
        unit=arguments.memory_unit,
        whole_gpus=arguments.whole_gpus,
        as_json=arguments.output == "json",
    )
