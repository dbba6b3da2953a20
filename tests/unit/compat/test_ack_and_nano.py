"""What users of ACK and of nano-gpu write, and what their tools read."""

import json
from urllib.parse import urlsplit

import orjson
import pytest

from tests.unit.compat.cluster import SEEDS, cluster, create, environment, make_pod, run

MEM, PERCENT = "aliyun.com/gpu-mem", "nano-gpu/gpu-percent"


@pytest.mark.parametrize(
    ("count", "total", "gpus", "each"), [("2", 8, 2, 4096), ("4", 8, 4, 2048), ("1", 7, 1, 7168), ("0", 7, 1, 7168)]
)
def test_point_8_with_acks_label_the_amount_is_the_total(count: str, total: int, gpus: int, each: int) -> None:
    pod = run(cluster((10, 10, 10, 10)), make_pod({MEM: total}, labels={"aliyun.com/gpu-count": count}))
    [entry] = json.loads(pod["metadata"]["annotations"]["gpushare.dev/allocation"])["containers"]
    assert (len(entry["gpus"]), entry["memoryMiB"]) == (gpus, each)
    variables = environment(pod)
    assert variables["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(total)
    assert len(variables["NVIDIA_VISIBLE_DEVICES"].split(",")) == gpus


def test_point_9_a_nano_pod_has_nano_gpus_annotations_and_its_label_and_no_other_has() -> None:
    """The number of each container's GPU, -1 for one without; different containers may be on different GPUs."""
    pod = run(cluster((10, 10)), make_pod({PERCENT: 60}, {}, {PERCENT: "50"}))
    annotations = pod["metadata"]["annotations"]
    assert {key: value for key, value in annotations.items() if key.startswith("nano-gpu/")} == {
        "nano-gpu/assume": "true",
        "nano-gpu/container-c0": annotations["index.gpushare.dev/c0"],
        "nano-gpu/container-c1": "-1",
        "nano-gpu/container-c2": annotations["index.gpushare.dev/c2"],
    }
    assert annotations["index.gpushare.dev/c0"] != annotations["index.gpushare.dev/c2"]
    assert pod["metadata"]["labels"]["nano-gpu/assume"] == "true"
    assert environment(pod)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    pod = run(cluster((10, 10)), make_pod({MEM: 3}))
    assert not [key for key in (*pod["metadata"]["annotations"], *pod["metadata"]["labels"]) if "nano" in key]


def test_point_9_nano_gpus_paths_are_served_and_scores_are_between_0_and_10() -> None:
    """Its own were far outside of what kube-scheduler takes."""
    extender = json.loads((SEEDS / "nano-extender.json").read_text(encoding="utf-8"))
    prefix = "/" + urlsplit(extender["urlPrefix"]).path.rpartition("/")[2]
    world = cluster((10, 10), (40,), (2,), (10,))
    run(world, make_pod({PERCENT: 90}), "node-d")
    pod = create(world, make_pod({PERCENT: 20}))
    body = orjson.dumps({"Pod": pod, "NodeNames": ["node-a", "node-b", "node-c", "node-d"]})
    filtered = orjson.loads(world.client().post(f"{prefix}/{extender['filterVerb']}", body).body)
    assert filtered["NodeNames"] == ["node-a", "node-b", "node-c"]
    scored = orjson.loads(world.client().post(f"{prefix}/{extender['prioritizeVerb']}", body).body)
    assert {entry["Host"] for entry in scored} == {"node-a", "node-b", "node-c", "node-d"}
    assert all(0 <= entry["Score"] <= 10 for entry in scored)
    meta = pod["metadata"]
    binding = {"PodName": meta["name"], "PodNamespace": "team", "PodUID": meta["uid"], "Node": "node-c"}
    bound = world.client().post(f"{prefix}/{extender['bindVerb']}", orjson.dumps(binding))
    assert orjson.loads(bound.body) == {"Error": ""}
