"""Bad amounts are refused with the words of `gpushare.wire.requests`, all of them at once."""

import pytest

from testing.reviews import asking, pod, review
from tests.unit.webhook.conftest import Webhook

LIMITS = "spec.containers[0].resources.limits"
LONELY = (
    f"{LIMITS}: aliyun.com/gpu-core.percentage is the part of compute beside aliyun.com/gpu-mem;"
    " add aliyun.com/gpu-mem, or ask for nano-gpu/gpu-percent alone, which is memory and compute"
)
SEVERAL = f"{LIMITS}: requests nvidia.com/gpu without a limit; write the same amount under limits | {LONELY}"


@pytest.mark.parametrize("path", ["/mutate", "/isolate"])
def test_the_author_reads_everything_that_is_wrong(whole: Webhook, path: str) -> None:
    whole.refuses(path, review(pod(asking(core=30, requests={"gpu": 1}))), SEVERAL)


@pytest.mark.parametrize("amount", [65, 0.5, "500m", "-1", "all"])
def test_whole_gpus_of_another_plugin_are_none_of_our_business(webhook: Webhook, amount: object) -> None:
    assert webhook.ask("/isolate", review(pod(asking(gpu=amount))))["allowed"]


def test_compute_beside_another_plugins_gpus_is_refused_all_the_same(webhook: Webhook) -> None:
    webhook.refuses("/mutate", review(pod(asking(gpu=1, core=30))), LONELY)


def test_a_whole_gpu_of_another_plugin_beside_a_share_is_no_contradiction(webhook: Webhook) -> None:
    assert webhook.ask("/mutate", review(pod(asking(mem=3, gpu=1))))["allowed"]
