"""The command line of `gpushare explain`."""

import argparse
from typing import Final

from gpushare import names
from gpushare.errors import SettingsError
from gpushare_cli import arguments as common
from gpushare_cli.explain import workloads
from gpushare_cli.explain.command import Options

EXIT_CODES: Final = (
    "Exit codes: 0 the pod has its GPUs, needs none (any more), or fits somewhere; 1 it or the cluster cannot be read;"
    " 2 wrong arguments; 3 it waits and fits nowhere."
)


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = "Say why a pod waits, node by node, or where it is and what holds it to its share there."
    parser.add_argument(
        "pod", metavar="POD", help="its name, NAMESPACE/NAME, or KIND/NAME for the pods of a workload: deployment/web"
    )
    parser.add_argument("-n", "--namespace", default="", metavar="NAME", help="by default the kubeconfig's")
    parser.add_argument(
        "--installation",
        default=names.NAMESPACE,
        metavar="NAME",
        help="namespace of gpushare's own settings (default: %(default)s)",
    )
    common.add_memory_unit(parser, "the one of the settings, else the one in which the nodes count")
    common.add_output(parser)
    common.add_cluster(parser)


def options(arguments: argparse.Namespace) -> Options:
    """What the arguments ask for.

    Raises:
        SettingsError: they contradict each other.
    """
    before, slash, name = arguments.pod.rpartition("/")
    if "/" in before or not name or (slash and not before):
        raise SettingsError(f"pod {arguments.pod!r}: write NAME, NAMESPACE/NAME or KIND/NAME")
    kind = workloads.KINDS.get(before.lower())
    namespace = "" if kind else before
    if namespace and arguments.namespace not in {"", namespace}:
        raise SettingsError(f"pod {arguments.pod!r}: --namespace {arguments.namespace} says another namespace")
    return Options(
        namespace=namespace or arguments.namespace,
        kind=kind or workloads.POD,
        name=name,
        installation=arguments.installation,
        unit=arguments.memory_unit,
        as_json=arguments.output == "json",
    )
