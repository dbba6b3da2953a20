import re
from dataclasses import replace

import pytest

from gpushare.errors import WireError
from gpushare.identity import by_index
from gpushare.model.request import ContainerKind
from gpushare.units import GIB
from gpushare.wire import allocations
from testing.builders import make_allocation, make_container, make_grant, make_inventory, make_pod, make_ref

ACK, IDX = "scheduler.framework.gpushare.allocation", "ALIYUN_COM_GPU_MEM_IDX"
NUMBERS = "expected container index, GPU index and units,"
WHAT = "annotation gpushare.dev/allocation"


def test_a_binding_of_one_gpu_speaks_aliyuns_language_too() -> None:
    written = allocations.binding_annotations(make_allocation("p", make_grant(1)), make_inventory(14, 15), 77)
    assert written == {
        "gpushare.dev/allocation": '{"version":1,"node":"node-a","containers":'
        '[{"name":"main","kind":"app","gpus":["GPU-1"],"memoryMiB":3072}]}',
        "devices.gpushare.dev/main": "GPU-1",
        "memory.gpushare.dev/main": "3072",
        "index.gpushare.dev/main": "1",
        "capacity.gpushare.dev/main": "15",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "77",
    }


def test_a_binding_of_several_gpus_has_a_variable_for_every_container() -> None:
    grants = make_grant(0, 1, gib=4, container="a"), make_grant(1, gib=2, container="b", kind=ContainerKind.SIDECAR)
    first, second = make_inventory(14, 15).gpus
    inventory = replace(make_inventory(), gpus=(replace(first, memory_mib=first.memory_mib + 1), second))
    written = allocations.binding_annotations(make_allocation("p", *grants), inventory, 77)
    assert written["devices.gpushare.dev/a"] == "GPU-0,GPU-1"
    assert written["index.gpushare.dev/a"] == "0,1"
    assert written["capacity.gpushare.dev/a"] == "14"
    assert written["devices.gpushare.dev/b"] == "GPU-1"
    assert written["ALIYUN_COM_GPU_MEM_POD"] == "10"
    assert "ALIYUN_COM_GPU_MEM_IDX" not in written


@pytest.mark.parametrize(("kind", "word"), [("INIT", "init"), ("SIDECAR", "sidecar"), ("APP", "app")])
def test_when_a_container_runs_is_written_as_previous_versions_read_it(kind: str, word: str) -> None:
    made = make_allocation("p", make_grant(1, kind=ContainerKind[kind]))
    written = allocations.binding_annotations(made, make_inventory(14, 15), 77)["gpushare.dev/allocation"]
    assert f'"kind":"{word}"' in written


DIFFERENT = "expected UUIDs of different GPUs, found"
IN_A_CONTAINER = [
    ('{"gpus":[]}', f"gpus: {DIFFERENT} []"),
    ('{"gpus":["a",1]}', "gpus[1]: expected a string, found a number"),
    ('{"gpus":["a","a"]}', f"gpus: {DIFFERENT} ['a', 'a']"),
    ('{"gpus":["a"],"kind":"x"}', "kind: expected init, sidecar or app, found 'x'"),
    ('{"gpus":["a"],"kind":"app"}', "name: expected a string, found nothing"),
    (
        '{"gpus":["a"],"kind":"app","name":"c","memoryMiB":-1}',
        "memoryMiB: expected a whole number, 0 or more, found -1",
    ),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "not JSON ("),
        ('{"version":1}', "node: expected a string, found nothing"),
        ('{"version":1,"node":"n"}', "containers: expected a list, found nothing"),
        *((f'{{"version":1,"node":"n","containers":[{one}]}}', f"containers[0].{why}") for one, why in IN_A_CONTAINER),
    ],
)
def test_a_broken_allocation_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(WireError, match=re.escape(f"{WHAT}: {message}")):
        allocations.decode(text, make_ref())


def test_a_pods_allocation_is_what_its_binding_wrote_and_one_without_holds_nothing() -> None:
    given = make_allocation("p", make_grant(1))
    annotations = allocations.binding_annotations(given, make_inventory(15, 15), 1)
    assert allocations.granted(make_pod(name="p", node="node-a", annotations=annotations), GIB) == given
    assert allocations.granted(make_pod(name="p", annotations=annotations), GIB) is None
    assert allocations.granted(make_pod(node="node-a"), GIB) is None


def test_an_allocation_for_another_node_or_with_a_broken_amount_is_refused() -> None:
    text = allocations.encode(make_allocation("p", make_grant(1)))
    pod = make_pod(node="node-b", annotations={"gpushare.dev/allocation": text})
    with pytest.raises(WireError, match=re.escape(f"{WHAT}: made for node node-a, but the pod is on node-b")):
        allocations.granted(pod, GIB)
    pod = make_pod(make_container("a", "1.5"), node="n", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
    with pytest.raises(WireError, match=re.escape("container a: 1.5 is not whole; a share is a whole number of units")):
        allocations.granted(pod, GIB)


def test_a_pod_of_acks_counts_by_the_numbers_of_its_containers_and_gpus() -> None:
    annotations = {"scheduler.framework.gpushare.allocation": '{"1":{"0":4,"3":5}}'}
    pod = make_pod(make_container("side"), make_container("b", 9), name="p", node="node-a", annotations=annotations)
    grants = make_grant(by_index(0), gib=4, container="b"), make_grant(by_index(3), gib=5, container="b")
    assert allocations.granted(pod, GIB) == make_allocation("p", *grants)


ODD_NUMBERS = [
    ("{", ""),
    ('{"7":{"0":1}}', "list index out of range)"),
    ('{"0":{"0":-1}}', "'-1' is no amount)"),
    ('{"-1":{"0":1}}', "'-1' is no index)"),
    ('{"0":{"0":99999999999}}', "'99999999999' is no amount)"),
    ('{"0":{"12345":1}}', "'12345' is no index)"),
    ("[1]", "'list' object has no attribute 'items')"),
]


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        *((IDX, text, f"expected the number of a GPU, found '{text:.99}") for text in ("x", "9" * 5000)),
        *((ACK, text, f"{NUMBERS} found {text!r} ({why}") for text, why in ODD_NUMBERS),
    ],
)
def test_a_broken_allocation_of_another_system_says_what_is_wrong(key: str, text: str, message: str) -> None:
    with pytest.raises(WireError, match=re.escape(f"annotation {key}: {message}")):
        allocations.granted(make_pod(node="node-a", annotations={key: text}), GIB)
