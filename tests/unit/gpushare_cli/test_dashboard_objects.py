"""What a picture keeps of objects: enough to show them, and no more than an author may make large."""

from typing import Any

from gpushare import names
from gpushare.wire import interop_read
from gpushare_cli import gather
from gpushare_cli.dashboard import objects
from testing import clusters
from testing.builders import Json

LARGE = "x" * 100_000
SMALL = 4_000


def size(value: Any) -> int:
    return len(repr(value))


def waiting() -> Json:
    pod = clusters.waiting("large", 3)
    meta, spec = pod["metadata"], pod["spec"]
    meta.setdefault("annotations", {}).update({"kubectl.kubernetes.io/last-applied-configuration": LARGE})
    meta["managedFields"] = [{"fieldsV1": LARGE}]
    spec["volumes"] = [{"name": "v", "hostPath": {"path": LARGE}}]
    spec["containers"][0] |= {"command": [LARGE], "args": [LARGE], "image": LARGE}
    spec["containers"][0].setdefault("env", []).append({"name": "LARGE", "value": LARGE})
    spec["tolerations"] = [{"key": "k", "operator": "Exists"}]
    return pod


def test_a_pod_that_waits_keeps_what_decides_about_its_place() -> None:
    pod = waiting()
    asks = {names.ANNOTATION_MODEL: "A100", names.ANNOTATION_LIMIT: names.ENFORCED}
    pod["metadata"]["annotations"] |= asks
    kept = objects.pod(pod)
    assert isinstance(kept, dict)
    assert size(kept) < SMALL
    assert kept["metadata"]["annotations"].items() >= asks.items()
    assert kept["spec"]["tolerations"] == pod["spec"]["tolerations"]
    assert kept["spec"]["containers"][0]["resources"] == pod["spec"]["containers"][0]["resources"]


def test_a_pod_on_a_node_keeps_its_binding() -> None:
    pod = clusters.running("large", "GPU-x", 3, on="n")
    binding = dict(pod["metadata"]["annotations"])
    pod["metadata"]["annotations"]["other.example/x"] = LARGE
    kept = objects.pod(pod)
    assert isinstance(kept, dict)
    assert kept["metadata"]["annotations"] == binding


def test_bindings_of_other_systems_are_kept() -> None:
    bindings = {names.ACK_ALLOCATION: "{}", names.ALIYUN_IDX: "0", f"{names.PREFIX_NANO_CONTAINER}main": "0"}
    assert all(map(interop_read.is_annotation, bindings))
    assert gather.own_annotations({**bindings, "gpushare.dev.evil.example/x": LARGE}) == bindings


def test_an_event_is_short_whatever_its_author_wrote() -> None:
    event = clusters.event(clusters.running("p", "GPU-x", 3, on="n"), "GpuShareNoRoom", LARGE)
    event |= {"reason": f"GpuShare{LARGE}", "type": LARGE, "note": LARGE}
    event["involvedObject"] |= {"name": LARGE, "fieldPath": LARGE}
    event["metadata"] |= {"uid": "u", "annotations": {"a": LARGE}}
    kept = objects.event(event)
    assert size(kept) < SMALL
    assert kept is not None
    assert kept["involvedObject"]["namespace"] == "research"
