"""Binds a second against a fake API server in memory: what the controller itself costs. Asserts nothing.

python -m bench.bind_fake [PODS]
"""

import sys

from bench.binding import timed
from bench.cluster import GPUS, inventory
from controller.extender.bind import Binder
from controller.extender.messages import BindArgs
from controller.state import ClusterState
from controller.watches import NodeSink, PodSink
from gpushare.cluster import node_records, records
from gpushare.identity import NodeName, PodUid
from gpushare.resource_config import ResourceConfig
from gpushare.runtime.clock import SystemClock
from testing.builders import make_node, make_pod
from testing.fakes.kube import FakeKube

NODES = 100


def measure(count: int, streams: int) -> None:
    api, state = FakeKube(), ClusterState(resource_config=ResourceConfig())
    NodeSink(state).replace([node_records.read(make_node(inventory(f"node-{i}"))) for i in range(NODES)])
    binder = Binder(api=api, state=state, clock=SystemClock(), leading=lambda: True)
    args = []
    for i in range(count):
        pod = make_pod(name=f"pod-{i}")
        api.seed("/api/v1/namespaces/default/pods", pod)
        record = records.pod_record(pod, state.resource_config)
        if record is not None:
            PodSink(state).upsert(record)
        name = f"pod-{i}"
        args.append(
            BindArgs(namespace="default", name=name, uid=PodUid(f"uid-{name}"), node=NodeName(f"node-{i % NODES}"))
        )

    line = timed(binder, args, streams)
    print(f"{line}, {len(api.calls) / count:g} requests a pod ({NODES} nodes of {GPUS} GPUs)")


if __name__ == "__main__":
    for streams in (1, 8):
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5000, streams)
