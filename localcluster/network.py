"""A network of the cluster's own: a network namespace that holds every component, node and Service rule.

One pair of virtual interfaces ties it to the machine. kube-proxy's chains, network interfaces of pods and fixed ports
all live inside, so nothing of the machine's own network is touched, several clusters run beside each other, and
deleting the namespace deletes it all. All nodes share it: a pod on the host's network sees every node's ports, and a
Service with a local traffic policy counts only the first node's pods as local.

Pods are tied in point to point (the ``ptp`` plugin) rather than by a bridge: every packet is then routed, so Service
rules see the replies between two pods of one node without the bridge-netfilter module.
"""

import dataclasses
import ipaddress
import json
from pathlib import Path

from localcluster import process
from localcluster.provision import Programs

NAMESPACES = Path("/run/netns")
FIRST_OCTET, LAST_OCTET = 180, 250
"""Second octets of 10.x.0.0/16 to choose from; high ones are rarely used by machines' own networks."""


@dataclasses.dataclass(frozen=True)
class AddressPlan:
    """Who has which address in the cluster's own 10.x.0.0/16."""

    octet: int

    @property
    def cluster_cidr(self) -> str:
        """Everything that belongs to the cluster."""
        return f"10.{self.octet}.0.0/16"

    @property
    def host_ip(self) -> str:
        """The machine, as seen from the cluster: where a test may serve a webhook."""
        return f"10.{self.octet}.0.1"

    @property
    def api_ip(self) -> str:
        """The API server, for the machine and for pods alike."""
        return f"10.{self.octet}.0.2"

    @property
    def dns_ip(self) -> str:
        """The name server of the pods."""
        return f"10.{self.octet}.0.53"

    @property
    def service_cidr(self) -> str:
        """Cluster IPs."""
        return f"10.{self.octet}.240.0/20"

    @property
    def api_service_ip(self) -> str:
        """The Service ``kubernetes``."""
        return f"10.{self.octet}.240.1"

    def node_ip(self, number: int) -> str:
        """A node, counted from 1."""
        return f"10.{self.octet}.0.{100 + number}"

    def pod_subnet(self, number: int) -> str:
        """The pods of a node, counted from 1."""
        return f"10.{self.octet}.{number}.0/24"


class Network:
    """The namespace and its tie to the machine; the name is free on this machine when it is created."""

    def __init__(self, programs: Programs) -> None:
        self._ip = programs["ip"]
        self._nsenter = programs["nsenter"]
        self._busybox = programs["busybox"]
        self.plan = self._reserve()
        self.name = interface_name(self.plan.octet)

    @property
    def enter(self) -> list[str]:
        """The beginning of a command line that runs inside.

        Not ``ip netns exec``, which mounts a new /sys and so hides the control groups from a kubelet.
        """
        return [str(self._nsenter), f"--net={NAMESPACES / self.name}"]

    def _reserve(self) -> AddressPlan:
        """Create the interface pair under the first free number; the kernel decides between two at once."""
        taken = self._taken()
        for octet in range(FIRST_OCTET, LAST_OCTET + 1):
            plan = AddressPlan(octet)
            name = interface_name(octet)
            if any(ipaddress.ip_network(plan.cluster_cidr).overlaps(network) for network in taken):
                continue
            if (NAMESPACES / name).exists():
                continue
            try:
                process.run([self._ip, "link", "add", name, "type", "veth", "peer", "name", f"{name}c"])
            except process.ClusterError as error:
                if "File exists" not in str(error):
                    raise
                continue
            return plan
        raise process.ClusterError("no free 10.x.0.0/16 left; `python -m localcluster down` removes old ones")

    def _taken(self) -> list[ipaddress.IPv4Network]:
        routes = json.loads(process.run([self._ip, "-json", "-4", "route", "show", "table", "all"]) or "[]")
        targets = []
        for route in routes:
            target = str(route.get("dst", "default"))
            if target != "default" and route.get("type", "unicast") in {"unicast", "local"}:
                targets.append(ipaddress.ip_network(target, strict=False))
        return [network for network in targets if isinstance(network, ipaddress.IPv4Network)]

    def create(self, nodes: int) -> None:
        """Create the namespace with all addresses of the plan."""
        plan, name, ip = self.plan, self.name, self._ip
        process.run([ip, "netns", "add", name])
        process.run([ip, "link", "set", f"{name}c", "netns", name])
        process.run([ip, "address", "add", f"{plan.host_ip}/24", "dev", name])
        process.run([ip, "link", "set", name, "up"])
        process.run([ip, "route", "add", plan.cluster_cidr, "via", plan.api_ip, "dev", name])
        inside: list[str | Path] = [*self.enter, ip]
        process.run([*inside, "link", "set", "lo", "up"])
        addresses = [plan.api_ip, plan.dns_ip, *(plan.node_ip(number + 1) for number in range(nodes))]
        for address in addresses:
            process.run([*inside, "address", "add", f"{address}/24", "dev", f"{name}c"])
        process.run([*inside, "link", "set", f"{name}c", "up"])
        # Cluster IPs need some route, or the kernel refuses before kube-proxy's rules can rewrite them. Everything
        # else has none: a kubelet asks for the metadata of several clouds, and waits 11 s if no one refuses.
        process.run([*inside, "route", "add", plan.service_cidr, "via", plan.host_ip])
        process.run([*self.enter, self._busybox, "sysctl", "-w", "net.ipv4.ip_forward=1"])
        self._check_iptables()

    def _check_iptables(self) -> None:
        rule = ["-t", "nat", "-A", "OUTPUT", "-m", "comment", "--comment", "probe", "-m", "mark", "--mark", "1"]
        try:
            process.run([*self.enter, "iptables", *rule, "-j", "RETURN"])
            process.run([*self.enter, "iptables", "-t", "nat", "-F", "OUTPUT"])
        except process.ClusterError as error:
            raise process.ClusterError(f"Services need iptables in a network namespace: {error}") from error


def interface_name(octet: int) -> str:
    """The name of the namespace and of the machine's interface of a cluster."""
    return f"gpushare{octet}"


def ptp_configuration(subnet: str) -> str:
    """The network configuration of one node's containerd."""
    document = {
        "cniVersion": "0.3.1",
        "name": "test",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {"type": "host-local", "subnet": subnet, "routes": [{"dst": "0.0.0.0/0"}]},
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
    return json.dumps(document)
