"""`gpushare scheduler-config`: its arguments, each with what it costs and brings, and what it prints."""

import argparse
from pathlib import Path
from typing import Final, assert_never

from gpushare import names
from gpushare.errors import SettingsError
from gpushare_cli import arguments, kube_scores, scheduler_config
from gpushare_cli.arguments import Command
from gpushare_cli.console import OK, Streams
from gpushare_cli.scheduler_config import Kind, Options, ServerVersion


def run(streams: Streams, *, options: Options, kind: Kind) -> int:
    """Print a configuration for kube-scheduler. The exit code."""
    match kind:
        case Kind.CONFIGURATION:
            streams.out.write(scheduler_config.configuration(options))
        case Kind.POLICY:
            streams.out.write(scheduler_config.policy(options))
            streams.note(f"start kube-scheduler with {' '.join(scheduler_config.policy_flags(options))}")
        case _:
            assert_never(kind)
    if options.scheduler_name and (options.others_weight is not None or options.most_allocated):
        streams.note(
            f"only pods that name the scheduler {options.scheduler_name} are ranked by it; pods without GPUs usually go"
            " to the cluster's own, for which give --scheduler-name ''"
        )
    return OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the configuration with which kube-scheduler asks the controller about shared GPUs."
    add = parser.add_argument
    add_server(parser, "of the cluster, such as v1.29.3+k3s1", required=True)
    what = "policy: a policy file, for --policy-config-file of 1.22 and older"
    arguments.add_choice(parser, "--kind", Kind.CONFIGURATION, what)
    url = scheduler_config.DEFAULT_URL
    add("--extender-url", dest="url", default=url, metavar="URL", help="default: %(default)s")
    what = "PEM file; needed if the URL is https"
    arguments.is_file(add("--extender-ca", dest="ca_pem", type=_read_ca, default=b"", metavar="FILE", help=what))
    what = "PEM file that kube-scheduler reads; needed if the URL is one of the API server's proxy"
    for part in ("cert", "key"):
        add(f"--extender-client-{part}", dest=f"client_{part}", default="", metavar="PATH", help=what)
    what = "of a second scheduler; empty to change the cluster's own (default: %(default)s)"
    add("--scheduler-name", default=names.SCHEDULER, metavar="NAME", help=what)
    add("--lease-name", default=names.SCHEDULER, metavar="NAME", help="of a second scheduler (default: %(default)s)")
    add("--lease-namespace", default=names.NAMESPACE, metavar="NAME", help="of that lease (default: %(default)s)")
    what = "file that kube-scheduler reads, such as /etc/kubernetes/scheduler.conf; none for a service account"
    add("--scheduler-kubeconfig", dest="kubeconfig", default="", metavar="PATH", help=what)
    what = f"{names.GPU} is gpushare's on every node of the cluster; not where another plugin has it"
    add("--whole-gpus", action="store_true", help=what)
    _add_scores(parser)
    what = (
        "requests a second that kube-scheduler may send to the API server, and twice as many at once; its own 50 keep"
        " it from placing more pods than that (default: %(default)s)"
    )
    add("--client-qps", type=int, default=scheduler_config.DEFAULT_QPS, metavar="N", help=what)


def add_server(parser: argparse.ArgumentParser, what: str, *, required: bool = False) -> None:
    parse = ServerVersion.parse
    parser.add_argument("--server-version", dest="server", type=parse, required=required, metavar="X.Y", help=what)


def add_rank_others(parser: argparse.ArgumentParser, what: str) -> None:
    weight = scheduler_config.OTHERS_WEIGHT
    flag = "--rank-others"
    parser.add_argument(flag, dest="others_weight", nargs="?", type=int, const=weight, metavar="WEIGHT", help=what)


def _add_scores(parser: argparse.ArgumentParser) -> None:
    default, by_policy = kube_scores.needed(kube_scores.UNASKED), kube_scores.needed(kube_scores.UNASKED_BY_POLICY_FILE)
    above_all = kube_scores.needed({**kube_scores.UNASKED, **kube_scores.PREFERENCES})
    what = (
        f"of the controller's scores for GPU pods. By default {default} (in a policy file {by_policy}): its best node"
        f" wins against kube-scheduler's own scores; from {above_all} on also against what authors prefer"
    )
    parser.add_argument("--weight", type=int, metavar="N", help=what)
    add_rank_others(
        parser,
        "have the controller rank nodes for pods without GPUs too, so that they leave CPU and memory to GPUs that"
        f" are free; costs a request for each of them (default weight: {scheduler_config.OTHERS_WEIGHT})",
    )
    what = (
        "nodes with less free CPU and memory come first, for all pods of the scheduler; keeps whole nodes free, and"
        " costs GPUs with the policy dense, see docs/scheduling.md"
    )
    parser.add_argument("--most-allocated", action="store_true", help=what)


def _read_ca(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError(f"extender CA {path}: {error.strerror}") from error


COMMAND: Final = Command(
    name="scheduler-config",
    what="configuration of kube-scheduler",
    exit_codes="done; 2 wrong arguments.",
    examples=(
        ("For kube-scheduler of Kubernetes 1.30", "gpushare scheduler-config --server-version 1.30"),
        (
            "Into a file for an old kube-scheduler",
            "gpushare scheduler-config --server-version 1.20 --kind policy > policy.cfg",
        ),
    ),
    add=add,
    run=lambda call: run(call.streams, options=call.options(Options), kind=call.arguments.kind),
)
