"""Bad amounts of parts of a GPU, of compute and of whole GPUs: what exactly their author reads."""

import pytest

from gpushare import units
from testing.reviews import Json, asking, container, pod, review
from tests.unit.webhook.conftest import Webhook

LIMITS = "spec.containers[0].resources.limits"
PERCENT = f"{LIMITS}[nano-gpu/gpu-percent]"
CORE = f"{LIMITS}[aliyun.com/gpu-core.percentage]"
GPU = f"{LIMITS}[nvidia.com/gpu]"
NOTHING = "0 asks for nothing; remove the entry or write at least 1"
SO_MUCH = "write a whole number of per cent such as 3"
WHOLE = "a share is a whole number of per cent"
ALONE = "has a suffix, but the resource is counted in per cent; write the number alone, such as"
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

PARTS: list[tuple[object, str]] = [
    (0, f"{PERCENT}: {NOTHING}"),
    ("0", f"{PERCENT}: {NOTHING}"),
    (101, f"{PERCENT}: 101 per cent are more than one GPU; write up to 100; {SEVERAL}"),
    ("1k", f"{PERCENT}: 1000 per cent are more than one GPU; write up to 100; {SEVERAL}"),
    ("abc", f"{PERCENT}: 'abc' is not a number; {SO_MUCH}"),
    ("20%", f"{PERCENT}: '20%' is not a number; {SO_MUCH}"),
    ("0x14", f"{PERCENT}: '0x14' is not a number; {SO_MUCH}"),
    ("", f"{PERCENT}: '' is not a number; {SO_MUCH}"),
    (1.5, f"{PERCENT}: 1.5 is not whole; {WHOLE}"),
    ("500m", f"{PERCENT}: 500m is not whole (m stands for thousandths); {WHOLE}"),
    (-1, f"{PERCENT}: -1 is negative; {SO_MUCH}"),
    ("10Gi", f"{PERCENT}: 10Gi {ALONE} 10"),
    ("2e1", f"{PERCENT}: 2e1 {ALONE} 2"),
    ("2000M", f"{PERCENT}: 2000M is more than any node can hold; write a number of per cent up to 1000000000"),
    (None, f"{PERCENT}: None is not a number; {SO_MUCH}"),
    (True, f"{PERCENT}: True is not a number; {SO_MUCH}"),
    ([20], f"{PERCENT}: [20] is not a number; {SO_MUCH}"),
]
COMPUTE: list[tuple[object, str]] = [
    (0, f"{CORE}: {NOTHING}"),
    (101, f"{CORE}: 101 per cent are more than one GPU's compute; write up to 100"),
    ("half", f"{CORE}: 'half' is not a number; {SO_MUCH}"),
    ("1.5", f"{CORE}: 1.5 is not whole; {WHOLE}"),
    ("-1", f"{CORE}: -1 is negative; {SO_MUCH}"),
    ("30m", f"{CORE}: 30m is not whole (m stands for thousandths); {WHOLE}"),
]
WHOLES: list[tuple[object, str]] = [
    (65, f"{GPU}: 65 GPUs are more than any node has; write a number up to 64"),
    (0.5, f"{GPU}: 0.5 is not whole; a share is a whole number of GPUs"),
    ("500m", f"{GPU}: 500m is not whole (m stands for thousandths); a share is a whole number of GPUs"),
    ("-1", f"{GPU}: -1 is negative; write a whole number of GPUs such as 3"),
    ("all", f"{GPU}: 'all' is not a number; write a whole number of GPUs such as 3"),
    ("1Gi", f"{GPU}: 1Gi has a suffix, but the resource is counted in GPUs; write the number alone, such as 1"),
]


def both(problem: str) -> str:
    return f"{LIMITS}: asks for {problem}, which count the same GPUs in different ways; keep one of them"


def unlimited(resource: str) -> str:
    return f"{LIMITS}: requests {resource} without a limit; write the same amount under limits"


COMBINATIONS: list[tuple[Json, str]] = [
    (pod(asking(mem=3, percent=20)), both("aliyun.com/gpu-mem and nano-gpu/gpu-percent")),
    (pod(asking(mem=3, gpu=1)), both("aliyun.com/gpu-mem and nvidia.com/gpu")),
    (pod(asking(percent=3, gpu=1)), both("nano-gpu/gpu-percent and nvidia.com/gpu")),
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
    (pod(asking(gpu=1, core=30)), LONELY),
    (pod(container("x"), asking(core=30)), LONELY.replace("[0]", "[1]")),
    (pod(asking(requests={"core": 30})), f"{unlimited('aliyun.com/gpu-core.percentage')} | {LONELY}"),
    (pod(asking(count=1)), COUNTED),
    (pod(asking(requests={"count": 1})), COUNTED.replace("limits[", "requests[")),
    (pod(asking(count=1, core=30)), f"{COUNTED} | {LONELY}"),
    (pod(asking(gpu=1, count=1)), COUNTED),
    (pod(asking(percent=20, requests={"percent": 10})),
        f"{PERCENT.replace('limits', 'requests')}: 10 differs from the limit 20; write 20 or leave requests out"),
    (pod(asking(gpu=2, requests={"gpu": 1})),
        f"{GPU.replace('limits', 'requests')}: 1 differs from the limit 2; write 2 or leave requests out"),
    (pod(asking(mem=3, core=5, requests={"mem": 3, "core": 6})),
        f"{CORE.replace('limits', 'requests')}: 6 differs from the limit 5; write 5 or leave requests out"),
    (pod(asking(requests={"percent": 10})), unlimited("nano-gpu/gpu-percent")),
    (pod(asking(requests={"gpu": 1})), unlimited("nvidia.com/gpu")),
]  # fmt: skip


@pytest.mark.parametrize("path", ["/mutate", "/isolate"])
@pytest.mark.parametrize(
    ("obj", "message"),
    [
        *((pod(asking(percent=amount)), message) for amount, message in PARTS),
        *((pod(asking(mem=3, core=amount)), message) for amount, message in COMPUTE),
        *((pod(asking(gpu=amount)), message) for amount, message in WHOLES),
        *COMBINATIONS,
    ],
)
def test_the_author_reads_what_is_wrong_where_and_what_to_do(
    whole: Webhook, path: str, obj: Json, message: str
) -> None:
    whole.refuses(path, review(obj), message)


@pytest.mark.parametrize(("amount", "message"), [PARTS[0], PARTS[2], PARTS[4]])
def test_init_containers_are_read_alike(whole: Webhook, amount: object, message: str) -> None:
    asked = pod(asking("a", mem=3), init=[container("first"), asking("i", percent=amount)])
    whole.refuses("/mutate", review(asked), message.replace("containers[0]", "initContainers[1]"))


@pytest.mark.parametrize("amount", [amount for amount, _ in WHOLES if (units.quantity(amount) or 0) <= units.MAX_UNITS])
def test_whole_gpus_of_another_plugin_are_none_of_our_business(webhook: Webhook, amount: object) -> None:
    assert webhook.ask("/isolate", review(pod(asking(gpu=amount))))["allowed"]


def test_compute_beside_another_plugins_gpus_is_refused_all_the_same(webhook: Webhook) -> None:
    webhook.refuses("/mutate", review(pod(asking(gpu=1, core=30))), LONELY)


def test_a_whole_gpu_of_another_plugin_beside_a_share_is_no_contradiction(webhook: Webhook) -> None:
    assert webhook.ask("/mutate", review(pod(asking(mem=3, gpu=1))))["allowed"]
