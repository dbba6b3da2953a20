"""The command line of `gpushare explain`."""

import argparse
from typing import Final

from gpushare import names
from gpushare.errors import SettingsError
from gpushare_cli import arguments as common
from gpushare_cli.explain.command import Options

EXIT_CODES: Final = (
    "Exit codes: 0 the pod has its GPUs, needs none (any more), or fits somewhere; 1 it or the cluster cannot be read;"
    " 2 wrong arguments; 3 it waits and fits nowhere."
)
_DEFAULT_NAMESPACE: Final = "default"


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = "Say why a pod waits, node by node, or where it is and what holds it to its share there."
    parser.add_argument("pod", metavar="POD", help="its name, or NAMESPACE/NAME")
    parser.add_argument("-n", "--namespace", default="", metavar="NAME", help="of the pod; by default 'default'")
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
    namespace, slash, name = arguments.pod.rpartition("/")
    if "/" in namespace or not name or (slash and not namespace):
        raise SettingsError(f"pod {arguments.pod!r}: write its name, or NAMESPACE/NAME")
    if namespace and arguments.namespace not in {"", namespace}:
        raise SettingsError(f"pod {arguments.pod!r}: --namespace {arguments.namespace} says another namespace")
    return Options(
        namespace=namespace or arguments.namespace or _DEFAULT_NAMESPACE,
        name=name,
        installation=arguments.installation,
        unit=arguments.memory_unit,
        as_json=arguments.output == "json",
    )
