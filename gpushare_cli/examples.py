"""Examples below the help of every command: what for, and what to type."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Final

Example = tuple[str, str]
FIRST: Final[Sequence[Example]] = (
    ("Who holds how much of which GPU", "gpushare inspect"),
    ("Why a pod waits", "gpushare explain train"),
    ("What is wrong with the installation", "gpushare doctor"),
    ("All about one command", "gpushare drain --help"),
)
"""Of `gpushare` itself."""
PLUGIN: Final[Sequence[Example]] = (
    ("Who holds how much, node by node", "kubectl inspect gpushare"),
    ("One node, a line for each pod", "kubectl inspect gpushare node-a -d"),
)
"""Of the kubectl plug-in."""
EXAMPLES: Final[Mapping[str, Sequence[Example]]] = {
    "inspect": (
        ("Who holds how much, node by node", "gpushare inspect"),
        ("One node, a line for each pod", "gpushare inspect node-a --details"),
        ("Also as bars, with a block for each pod", "gpushare inspect --bars"),
        ("What holds each container to its share, and what it uses", "gpushare inspect --limits"),
    ),
    "explain": (
        ("Why a pod waits, or where it is and why", "gpushare explain train"),
        ("All pods of a Deployment in another namespace", "gpushare explain deployment/web -n ml"),
    ),
    "simulate": (
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
    "scheduler-config": (
        ("For kube-scheduler of Kubernetes 1.30", "gpushare scheduler-config --server-version 1.30"),
        (
            "Into a file for an old kube-scheduler",
            "gpushare scheduler-config --server-version 1.20 --kind policy > policy.cfg",
        ),
    ),
    "doctor": (
        ("What is wrong, and how to fix it", "gpushare doctor"),
        ("Only what it found, for programs", "gpushare doctor -o json"),
    ),
    "top": (
        ("All GPUs, as they change, until Ctrl-C", "gpushare top"),
        ("Two nodes, once", "gpushare top --once node-a node-b"),
    ),
    "dashboard": (
        ("Print an address for the browser on this machine", "gpushare dashboard"),
        (
            "Pods of two namespaces, on any free port, and open the browser",
            "gpushare dashboard -n ml -n web --port 0 --browser",
        ),
    ),
    "report": (
        ("A file with all that helps, in the current directory", "gpushare report"),
        ("Without logs, under a name of your own", "gpushare report --logs 0 -f report.tar.gz"),
    ),
    "cordon": (
        ("By the number of the GPU", "gpushare cordon node-a/2"),
        ("MIG instance 1 of GPU 0", "gpushare cordon node-a/0:1"),
    ),
    "uncordon": (("After a drain", "gpushare uncordon node-a/2"),),
    "drain": (
        ("Who would be evicted, and who would stay", "gpushare drain node-a/2 --dry-run"),
        ("Evict the pods of a GPU as budgets allow", "gpushare drain node-a/2"),
        ("Also pods that nothing recreates, for at most a minute", "gpushare drain node-a/2 --force --timeout 60"),
    ),
    "defrag": (
        ("Which evictions make room for a pod that waits", "gpushare defrag train"),
        ("For one that is not created yet", "gpushare defrag -f large.yaml --dry-run"),
        ("Carry it out", "gpushare defrag ml/train --yes"),
    ),
    "completion": (
        ("For this bash", "source <(gpushare completion bash)"),
        ("For every bash to come", "gpushare completion bash > ~/.local/share/bash-completion/completions/gpushare"),
        ("For zsh, in a directory of its fpath", "gpushare completion zsh > ~/.zfunc/_gpushare"),
        ("For fish", "gpushare completion fish > ~/.config/fish/completions/gpushare.fish"),
    ),
}


class Formatter(argparse.HelpFormatter):
    """Folds prose as usual, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(
            part if part.startswith("Examples:") else super(Formatter, self)._fill_text(part, width, indent)
            for part in parts
        )


def epilog(examples: Sequence[Example], exit_codes: str) -> str:
    """What stands below the arguments of a command."""
    lines = [f"  # {what}\n  {command}" for what, command in examples]
    return "Examples:\n{}\n\n{}".format("\n".join(lines), exit_codes)
