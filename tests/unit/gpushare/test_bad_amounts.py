"""Bad amounts of parts of a GPU, of compute and of whole GPUs: what exactly their author reads.

How numbers are read is in test_fields.py.
"""

import json
from pathlib import Path

import pytest

from gpushare.errors import InvalidRequestError
from gpushare.units import ResourceConfig
from gpushare.wire import requests
from testing.reviews import Json, asking, container, pod

LIMITS = "spec.containers[0].resources.limits"
PERCENT = f"{LIMITS}[nano-gpu/gpu-percent]"
CORE = f"{LIMITS}[aliyun.com/gpu-core.percentage]"
GPU = f"{LIMITS}[nvidia.com/gpu]"
NOTHING = "0 asks for nothing; remove the entry or write at least 1"
SEVERAL = (
    "for several GPUs ask for aliyun.com/gpu-mem with the annotation gpushare.dev/gpus, which gives so much on each"
)
LONELY = (
    f"{LIMITS}: aliyun.com/gpu-core.percentage is the part of compute beside aliyun.com/gpu-mem;"
    " add aliyun.com/gpu-mem, or ask for nano-gpu/gpu-percent alone, which is memory and compute"
)
COUNTED = (
    f"{LIMITS}[aliyun.com/gpu-count]: this resource is for the node's ledger and cannot be requested;"
    " remove it; to use several GPUs, put the label aliyun.com/gpu-count on the pod (amounts are totals)"
    " or the annotation gpushare.dev/gpus (amounts are per GPU)"
)
LABELLED: Json = {"labels": {"aliyun.com/gpu-count": "2"}}
PER_GPU: Json = {"annotations": {"gpushare.dev/gpus": "2"}}

AMOUNTS = [line.partition(" => ") for line in (Path(__file__).parent / "golden/parts.txt").read_text().splitlines()]


def both(problem: str) -> str:
    return f"{LIMITS}: asks for {problem}, which count the same GPUs in different ways; keep one of them"


def unlimited(resource: str) -> str:
    return f"{LIMITS}: requests {resource} without a limit; write the same amount under limits"


COMBINATIONS: list[tuple[Json, str]] = [
    (pod(asking(mem=3, percent=20)), both("aliyun.com/gpu-mem and nano-gpu/gpu-percent")),
    (pod(asking(mem=3, gpu=1)), both("aliyun.com/gpu-mem and nvidia.com/gpu")),
    (pod(asking(mem=1, percent=3, gpu=1)), both("aliyun.com/gpu-mem and nano-gpu/gpu-percent and nvidia.com/gpu")),
    (pod(asking(mem=3, requests={"percent": 20})), f"{unlimited('nano-gpu/gpu-percent')} | "
        + both("aliyun.com/gpu-mem and nano-gpu/gpu-percent")),
    (pod(asking(percent=20), **LABELLED), "metadata.labels[aliyun.com/gpu-count]: container a asks for"
        f" nano-gpu/gpu-percent, which is a part of one GPU; remove it; {SEVERAL}"),
    (pod(asking(percent=20), **PER_GPU), "metadata.annotations[gpushare.dev/gpus]: container a asks for"
        f" nano-gpu/gpu-percent, which is a part of one GPU; remove it; {SEVERAL}"),
    (pod(asking(mem=4, core=20), **LABELLED), "metadata.labels[aliyun.com/gpu-count]: container a asks for"
        " aliyun.com/gpu-core.percentage, which is a part of one GPU; remove it, or remove"
        " aliyun.com/gpu-core.percentage"),
    (pod(asking(mem=4, core=20), **PER_GPU), "metadata.annotations[gpushare.dev/gpus]: container a asks for"
        " aliyun.com/gpu-core.percentage, which is a part of one GPU; remove it, or remove"
        " aliyun.com/gpu-core.percentage"),
    (pod(asking(core=30)), LONELY),
    (pod(asking(percent=20, core=30)), LONELY),
    (pod(container("x"), asking(core=30)), LONELY.replace("[0]", "[1]")),
    (pod(asking(count=1)), COUNTED),
    (pod(asking(requests={"count": 1})), COUNTED.replace("limits[", "requests[")),
    (pod(asking(percent=20, requests={"percent": 10})),
        f"{PERCENT.replace('limits', 'requests')}: 10 differs from the limit 20; write 20 or leave requests out"),
    (pod(asking(mem=3, core=5, requests={"mem": 3, "core": 6})),
        f"{CORE.replace('limits', 'requests')}: 6 differs from the limit 5; write 5 or leave requests out"),
    (pod(asking(requests={"percent": 10})), unlimited("nano-gpu/gpu-percent")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        *((pod(asking(**json.loads(amounts))), message) for amounts, _, message in AMOUNTS),
        *COMBINATIONS,
        (
            pod(asking("a", mem=3), init=[container("first"), asking("i", percent=0)]),
            f"{PERCENT}: {NOTHING}".replace("containers[0]", "initContainers[1]"),
        ),
    ],
)
def test_the_author_reads_what_is_wrong_where_and_what_to_do(obj: Json, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        requests.of_pod(obj, ResourceConfig(whole_gpus=True))
    assert " | ".join(map(str, caught.value.errors)) == message
