from controller.extender import inspect
from gpushare.identity import ContainerName, GpuUuid, NodeName, by_index
from gpushare.model.allocation import Grant
from gpushare.model.ledger import NodeLedger
from gpushare.units import MemoryUnit
from testing.builders import make_allocation, make_grant, make_inventory

LEDGERS = {
    NodeName("node-b"): NodeLedger.of(make_inventory(15, node="node-b")),
    NodeName("node-a"): NodeLedger.of(
        make_inventory(15, 7),
        [
            make_allocation("second", make_grant(0, gib=2), make_grant(1, gib=1, container="other")),
            make_allocation("first", make_grant(by_index(0), gib=3)),
        ],
    ),
}


def test_the_layout_is_that_of_aliyun() -> None:
    assert inspect.report(LEDGERS) == {
        "nodes": [
            {
                "name": "node-a",
                "totalGPU": 22,
                "usedGPU": 6,
                "devs": [
                    {
                        "id": 0,
                        "uuid": "GPU-0",
                        "totalGPU": 15,
                        "usedGPU": 5,
                        "pods": [
                            {"name": "first", "namespace": "default", "usedGPU": 3},
                            {"name": "second", "namespace": "default", "usedGPU": 2},
                        ],
                    },
                    {
                        "id": 1,
                        "uuid": "GPU-1",
                        "totalGPU": 7,
                        "usedGPU": 1,
                        "pods": [{"name": "second", "namespace": "default", "usedGPU": 1}],
                    },
                ],
            },
            {
                "name": "node-b",
                "totalGPU": 15,
                "usedGPU": 0,
                "devs": [{"id": 0, "uuid": "GPU-0", "totalGPU": 15, "usedGPU": 0, "pods": []}],
            },
        ]
    }


def test_use_is_rounded_up_and_size_down_in_a_coarse_unit() -> None:
    inventory = make_inventory(15, unit=MemoryUnit(4096))
    ledger = NodeLedger.of(inventory, [make_allocation("p", make_grant(0, gib=5))])
    device = inspect.report({NodeName("node-a"): ledger})["nodes"][0]["devs"][0]
    assert (device["totalGPU"], device["usedGPU"]) == (3, 2)


def test_a_part_of_a_gpu_that_no_one_wrote_down_in_mib_is_counted() -> None:
    part = Grant(container=ContainerName("c"), gpus=(GpuUuid("GPU-1"),), memory_mib=0, memory_percent=50)
    ledger = NodeLedger.of(make_inventory(15, 8), [make_allocation("nano", part)])
    devices = inspect.report({NodeName("node-a"): ledger})["nodes"][0]["devs"]
    assert [(device["usedGPU"], device["pods"]) for device in devices] == [
        (0, []),
        (4, [{"name": "nano", "namespace": "default", "usedGPU": 4}]),
    ]


def test_a_gpu_that_a_pod_has_for_itself_is_used_up() -> None:
    grown = Grant(container=ContainerName("c"), gpus=(GpuUuid("GPU-0"),), memory_mib=14 * 1024, whole=True)
    ledger = NodeLedger.of(make_inventory(15, 7), [make_allocation("whole", grown)])
    [node] = inspect.report({NodeName("node-a"): ledger})["nodes"]
    assert (node["usedGPU"], node["devs"][0]["usedGPU"], node["devs"][0]["pods"][0]["usedGPU"]) == (15, 15, 15)
