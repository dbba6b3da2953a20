"""Binds a second against a real API server and etcd. Asserts nothing; needs root, for the cluster.

python -m bench.bind [PODS]
"""

import concurrent.futures
import json
import sys
from collections import Counter
from pathlib import Path

from bench.binding import timed
from bench.cluster import GPUS, inventory
from controller.extender.bind import Binder
from controller.extender.messages import BindArgs
from controller.state import ClusterState
from controller.watches import NodeSink, PodSink
from gpushare.cluster import node_records, records
from gpushare.identity import NodeName
from gpushare.kube import client
from gpushare.kube.client import RestClient
from gpushare.resource_config import ResourceConfig
from gpushare.runtime.clock import SystemClock
from gpushare.wire import pods as pods_wire
from localcluster.cluster import Cluster
from testing.builders import make_container, make_node

NODES = 100
PODS = "/api/v1/namespaces/default/pods"


def create(api: RestClient, count: int, prefix: str) -> list[BindArgs]:
    """Pods that no scheduler touches, and where to bind them."""

    def arguments(i: int) -> BindArgs:
        container = make_container(gpu_mem=1)
        spec = {"schedulerName": "none", "containers": [container], "automountServiceAccountToken": False}
        name = f"{prefix}-{i}"
        made = api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        ref = pods_wire.ref(made)
        return BindArgs(namespace="default", name=name, uid=ref.uid, node=NodeName(f"bench-{i % NODES}"))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(arguments, range(count)))


def measure(api: RestClient, count: int, streams: int) -> None:
    state = ClusterState(resource_config=ResourceConfig())
    NodeSink(state).replace([node_records.read(make_node(inventory(f"bench-{i}"))) for i in range(NODES)])
    binder = Binder(api=api, state=state, clock=SystemClock(), leading=lambda: True)
    args = create(api, count, f"p{streams}")
    for pod in api.get(PODS, {"limit": str(2 * count)}, timeout_s=60)["items"]:
        if (record := records.pod_record(pod, state.resource_config)) is not None:
            PodSink(state).upsert(record)

    print(f"{timed(binder, args, streams)} ({NODES} nodes of {GPUS} GPUs)", flush=True)


def requests(audit_log: Path) -> Counter[str]:
    """Bindings that the API server saw."""
    entries = map(json.loads, audit_log.read_text().splitlines())
    seen = (entry.get("objectRef") or {} for entry in entries if entry["stage"] == "ResponseComplete")
    return Counter(str(reference.get("subresource")) for reference in seen if reference.get("subresource") == "binding")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with Cluster(nodes=1, audit=True, say=print) as cluster:
        api = client.connect(str(cluster.kubeconfig))
        for i in range(NODES):
            api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"bench-{i}"}})
        for streams in (1, 8):
            measure(api, count, streams)
        print(f"requests for each pod: {sum(requests(cluster.audit_log).values()) / (2 * count):g}")
        api.close()


if __name__ == "__main__":
    main()
