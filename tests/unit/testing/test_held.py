import json
from typing import Any

import pytest

from testing import held

GPU = {"uuid": "GPU-0", "memoryMiB": 10}
OVER = ["GPU-0 of node-a: 11 of 10 MiB"]


def node(**gpu: Any) -> dict[str, Any]:
    inventory = json.dumps({"gpus": [{**GPU, **gpu}]})
    return {"metadata": {"name": "node-a", "annotations": {"gpushare.dev/inventory": inventory}}}


def pod(*grants: tuple[str, int], phase: str = "Running", gpus: tuple[str, ...] = ("GPU-0",)) -> dict[str, Any]:
    containers = [{"kind": kind, "memoryMiB": mib, "gpus": gpus} for kind, mib in grants]
    return {
        "metadata": {"annotations": {"gpushare.dev/allocation": json.dumps({"containers": containers})}},
        "spec": {"nodeName": "node-a"},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([pod(("app", 6)), pod(("app", 4))], []),
        ([pod(("app", 6)), pod(("app", 5))], OVER),
        ([pod(("app", 6), ("app", 5))], OVER),
        ([pod(("app", 6)), pod(("app", 5), phase="Pending")], OVER),
        ([pod(("app", 6)), pod(("app", 5), phase="Failed")], []),
        ([pod(("app", 6)), pod(("app", 5), phase="Succeeded")], []),
        ([pod(("init", 9), ("init", 10), ("app", 10))], []),
        ([pod(("init", 11), ("app", 1))], OVER),
        ([pod(("sidecar", 2), ("init", 8), ("app", 8))], []),
        ([pod(("sidecar", 2), ("init", 9), ("app", 1))], OVER),
        ([pod(("app", 1), gpus=("GPU-9",))], ["GPU-9 of node-a: 1 of 0 MiB"]),
    ],
)
def test_pods_hold_together_what_each_holds_at_its_worst_moment(pods: list[Any], expected: list[str]) -> None:
    assert held.over_memory([node()], pods) == expected


def test_a_whole_gpu_is_held_with_all_that_it_has() -> None:
    whole = pod(("app", 1))
    document = json.loads(whole["metadata"]["annotations"]["gpushare.dev/allocation"])
    document["containers"][0]["whole"] = True
    whole["metadata"]["annotations"]["gpushare.dev/allocation"] = json.dumps(document)
    assert held.over_memory([node()], [whole]) == []
    assert held.over_memory([node()], [whole, pod(("app", 1))]) == OVER


def test_an_oversubscribed_gpu_may_hold_what_its_node_says_and_other_objects_hold_nothing() -> None:
    plain = {"metadata": {"name": "x"}, "spec": {}, "status": {}}
    assert held.over_memory([node(grantableMiB=11), plain], [pod(("app", 11)), plain]) == []
