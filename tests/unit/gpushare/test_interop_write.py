"""Annotations of Aliyun gpushare, ACK and nano-gpu: written for their tools, read from their pods."""

from dataclasses import replace

import pytest

from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import by_index
from gpushare.model.ledger import Allocation, Grant, NodeLedger, Placed
from gpushare.placement.place import place
from gpushare.units import GIB, ResourceConfig
from gpushare.wire import allocations, interop, requests
from testing.builders import Json, make_container, make_gpu, make_inventory, make_ledger, make_pod, make_ref

RESOURCE_CONFIG = ResourceConfig(whole_gpus=True)


def limited(name: str, **limits: object) -> Json:
    keys = {"mem": names.GPU_MEM, "percent": names.GPU_PERCENT, "gpu": names.GPU}
    return {**make_container(name), "resources": {"limits": {keys[key]: amount for key, amount in limits.items()}}}


def bound(pod: Json, ledger: NodeLedger) -> dict[str, str]:
    """What the Binding of a pod writes."""
    request = requests.of_pod(pod, RESOURCE_CONFIG)
    assert request is not None
    verdict = place(request.shape, ledger)
    assert isinstance(verdict, Placed), verdict
    made = Allocation(pod=request.pod, node=ledger.inventory.node, grants=verdict.grants)
    return allocations.binding_annotations(made, ledger.inventory, 77, request)


def test_a_pod_on_several_gpus_speaks_acks_language() -> None:
    pod = make_pod(
        make_container("side"), limited("a", mem=8), limited("b", mem=4), labels={names.LABEL_GPU_COUNT: "2"}
    )
    written = bound(pod, make_ledger([15, 15, 15], {0: 14}))
    assert written[names.ACK_ALLOCATION] == '{"1":{"1":4,"2":4},"2":{"1":2,"2":2}}'
    assert (written[names.ACK_ASSIGNED], written[names.ACK_ASSUME_TIME]) == ("true", "77")
    assert written[names.ALIYUN_POD] == "12"
    assert names.ALIYUN_IDX not in written


def test_a_pod_of_percents_speaks_nano_gpus_language_but_for_its_init_containers() -> None:
    written = bound(make_pod(limited("a", percent=20), init=[limited("early", percent=50)]), make_ledger([15]))
    assert [key for key in written if key.startswith("nano-gpu/")] == ["nano-gpu/assume", "nano-gpu/container-a"]
    assert written["memory.gpushare.dev/a"] == "3072"
    several = make_pod(make_container("a"), init=[limited("early", gpu=2)])
    assert bound(several, make_ledger([15, 15]))[names.ACK_ALLOCATION] == "{}"


def test_whole_and_full_gpus_are_written_with_all_their_units_and_no_more() -> None:
    written = bound(make_pod(limited("a", gpu=2)), make_ledger([10, 20]))
    assert written[names.ANNOTATION_ALLOCATION] == (
        '{"version":2,"minReader":2,"node":"node-a","containers":[{"name":"a","kind":"app","gpus":["GPU-0","GPU-1"],'
        '"memoryMiB":10240,"computePercent":100,"whole":true}]}'
    )
    assert written[names.ACK_ALLOCATION] == '{"0":{"0":10,"1":20}}'
    assert written[names.ALIYUN_POD] == "30"
    assert allocations.decode(written[names.ANNOTATION_ALLOCATION], make_ref()).grants[0].whole
    inventory = replace(make_inventory(), gpus=(make_gpu(mib=15 * 1024 + 100),))
    grant = Grant(container=limited("a")["name"], gpus=(inventory.gpus[0].uuid,), memory_mib=15 * 1024 + 50)
    made = Allocation(pod=make_ref(), node=inventory.node, grants=(grant,))
    assert allocations.binding_annotations(made, inventory, 1)[names.ALIYUN_POD] == "15"


NANO = {"nano-gpu/assume": "true", "nano-gpu/container-a": "1", "nano-gpu/container-side": "-1"}


def test_a_pod_of_nano_gpu_counts_as_a_part_of_its_gpu_and_speaks_of_another_system() -> None:
    pod = make_pod(limited("a", percent=20), make_container("side"), node="node-a", annotations=NANO)
    found = allocations.granted(pod, GIB)
    assert found is not None
    assert [(grant.container, grant.gpus) for grant in found.grants] == [("a", (by_index(1),))]
    ledger = NodeLedger.of(make_inventory(15, 20), [found])
    assert (dict(ledger.used_mib), dict(ledger.used_percent)) == ({"GPU-1": 4096}, {"GPU-1": 20})
    assert NodeLedger.of(make_inventory(15), [found]).used_mib == {by_index(1): 0}
    assert all(interop.is_annotation(key) for key in (*NANO, names.ALIYUN_IDX, names.ACK_ALLOCATION))
    assert not interop.is_annotation(names.ALIYUN_POD)
    assert interop.is_bound(NANO)
    assert not interop.is_bound({names.ALIYUN_POD: "3"})


@pytest.mark.parametrize(
    ("percent", "index", "message"),
    [
        (20, "x", "annotation nano-gpu/container-a: expected the number of a GPU, found 'x'"),
        (20, "-1", "annotation nano-gpu/container-a: expected the number of a GPU, found '-1'"),
        (20, "12345", "annotation nano-gpu/container-a: expected the number of a GPU, found '12345'"),
        ("x", "0", "annotation nano-gpu/container-a: 'x' is not a number; write a whole number of per cent such as 3"),
    ],
)
def test_a_pod_of_nano_gpu_that_cannot_be_read_says_why(percent: object, index: str, message: str) -> None:
    annotations = {"nano-gpu/assume": "true", "nano-gpu/container-a": index}
    pod = make_pod(limited("a", percent=percent), node="node-a", annotations=annotations)
    with pytest.raises(WireError) as caught:
        allocations.granted(pod, GIB)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("container", "compute", "whole"),
    [(limited("a", percent=20), 20, False), (limited("a", gpu=1), 100, True), (limited("a", mem="x"), 0, False)],
)
def test_what_annotations_of_containers_do_not_tell_is_taken_from_the_request(
    container: Json, compute: int, whole: bool
) -> None:
    annotations = {
        names.ANNOTATION_ALLOCATION: "broken",
        "devices.gpushare.dev/a": "GPU-0",
        "memory.gpushare.dev/a": "3072",
    }
    found = allocations.held(make_pod(container, node="node-a", annotations=annotations), RESOURCE_CONFIG, GIB)
    assert found.allocation is not None
    (grant,) = found.allocation.grants
    assert (grant.memory_mib, grant.compute_percent, grant.whole) == (3072, compute, whole)
    assert found.problem.startswith("annotation gpushare.dev/allocation: not JSON")
