"""A GPU pod's way from its author to a node, by the real kube-scheduler and the controller."""

import json

from gpushare import names
from testing.builders import make_container
from tests.apiserver.server import Json, Server


def pod(name: str, gib: int, **spec: object) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": [make_container("main", str(gib))], **spec}}


def test_a_pod_is_completed_scheduled_and_bound_with_its_gpus(server: Server, namespace: str) -> None:
    tenant = server.tenant(namespace)
    with server.node("node-1", (4, 16)):
        made = server.create_pod(namespace, pod("mine", 8), tenant)
        assert made["metadata"]["labels"][names.LABEL_MANAGED] == "true"
        assert made["spec"]["schedulerName"] == names.SCHEDULER
        [bound] = server.bound(namespace, "mine")
        assert bound["spec"]["nodeName"] == "node-1"
        notes = bound["metadata"]["annotations"]
        [container] = json.loads(notes[names.ANNOTATION_ALLOCATION])["containers"]
        assert (container["name"], container["gpus"]) == ("main", ["GPU-node-1-1"])
        assert notes[f"{names.PREFIX_DEVICES}main"] == "GPU-node-1-1"
        assert server.counted(namespace) == ["mine"]
        server.create_pod(namespace, pod("too-large", 9), tenant)
        assert "1 needs 9 GiB on one GPU; free per GPU on node-1: 4, 8 GiB" in server.unschedulable(
            namespace, "too-large"
        )
