"""A node that has lost the API server: packets between them are dropped in both directions, without an answer."""

import contextlib
from collections.abc import Iterator

from localcluster import process
from localcluster.node import Node
from tests.e2e import disturb
from tests.e2e.system import System


@contextlib.contextmanager
def reachable_by_service(system: System, node: Node) -> Iterator[None]:
    """Have a node's kubelet, restarted, reach the API server by its Service, and not only until it is restarted.

    All nodes share one network namespace with the API server. By that address, which nothing else outside of pods has,
    the packets of this one kubelet are told from all others.
    """
    file = node.directory / "kubelet.kubeconfig"
    before = file.read_text()
    file.write_text(before.replace(system.cluster.server, f"https://{system.cluster.plan.api_service_ip}:443"))
    try:
        disturb.restart_kubelet(system, node)
        yield
    finally:
        file.write_text(before)


@contextlib.contextmanager
def cut_off(system: System, node: Node) -> Iterator[None]:
    """Cut such a node off from the API server, its pods too; afterwards it is connected again."""
    plan = system.cluster.plan
    pods = plan.pod_subnet(int(node.name.removeprefix("node-")))
    rules = [
        ("OUTPUT", "--match", "conntrack", "--ctorigdst", plan.api_service_ip),  # both directions
        ("OUTPUT", "--destination", node.ip),
        ("OUTPUT", "--source", plan.api_ip, "--destination", pods),
        ("PREROUTING", "--source", pods, "--destination", plan.api_ip),
        ("PREROUTING", "--source", pods, "--destination", plan.api_service_ip),
    ]
    for rule in rules:
        _iptables(node, "--insert", *rule)
    try:
        yield
    finally:
        for rule in rules:
            _iptables(node, "--delete", *rule)


def _iptables(node: Node, command: str, *rule: str) -> None:
    """Before addresses of Services are translated."""
    process.run([*node.enter, "iptables", "--wait", "--table", "mangle", command, *rule, "--jump", "DROP"])
