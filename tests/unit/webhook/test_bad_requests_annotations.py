"""Bad words about which GPUs, beside whom and how: what exactly their author reads."""

import pytest

from testing.reviews import Json, asking, container, pod, review
from tests.unit.webhook.conftest import Webhook

MODEL, UUID, MIN = "gpushare.dev/gpu-model", "gpushare.dev/gpu-uuid", "gpushare.dev/min-gpu-memory"
SAME, OTHER = "gpushare.dev/same-gpu-as", "gpushare.dev/other-gpu-than"
LIMIT, MIG = "gpushare.dev/limit", "gpushare.dev/mig"
ENFORCED = "write enforced, or remove the annotation"
ONLY_NEVER = "does not say whether MIG instances are taken; write only or never"
FRAMEWORKS, SOME = "gpushare.dev/framework-variables", "write none, or some of jax, paddle, cupy, pytorch, each once"
COMMAS = f"{SOME}, with commas between them"
POLICY, GPUS, COUNT = "gpushare.dev/gpu-policy", "gpushare.dev/gpus", "aliyun.com/gpu-count"
MODELS = "write models such as A100 or T4, separated by commas; ! before one excludes it"
UUIDS = "write UUIDs as nvidia-smi -L prints them, separated by commas; ! before one excludes it"
MEMORY = "write one such as 16Gi or 40000Mi"
SELECTOR = "write a label selector such as app=web or app in (web, api)"
EVERY = f"it is empty, which would mean every pod; {SELECTOR}"
QUOTES = 'write a whole number in quotes, such as "2"'

WORDS = [
    (MODEL, "", f"'' is none; {MODELS}"),
    (MODEL, ",", f"'' is none; {MODELS}"),
    (MODEL, "!", f"'!' is none; {MODELS}"),
    (MODEL, "A100,,T4", f"'' is none; {MODELS}"),
    (MODEL, "T4, --", f"'--' is none; {MODELS}"),
    (MODEL, ",".join(["T4"] * 65), f"65 entries are more than 16; {MODELS}"),
    (UUID, "", f"'' is none; {UUIDS}"),
    (UUID, "0", f"'0' is none; {UUIDS}"),
    (UUID, "GPU-", f"'GPU-' is none; {UUIDS}"),
    (UUID, "gpu-1a2b", f"'gpu-1a2b' is none; {UUIDS}"),
    (UUID, "MIG-", f"'MIG-' is none; {UUIDS}"),
    (UUID, "GPU-1a2b,1", f"'1' is none; {UUIDS}"),
    (UUID, "GPU-1a2b GPU-3c4d", f"'GPU-1a2b GPU-3c4d' is none; {UUIDS}"),
    (MIN, "", f"'' is no amount of memory; {MEMORY}"),
    (MIN, "big", f"'big' is no amount of memory; {MEMORY}"),
    (MIN, "-1Gi", f"'-1Gi' is no amount of memory; {MEMORY}"),
    (MIN, "16Q", f"'16Q' is no amount of memory; {MEMORY}"),
    (MIN, "1,5Gi", f"'1,5Gi' is no amount of memory; {MEMORY}"),
    (MIN, "0", "0 asks for nothing; remove the annotation or write an amount such as 16Gi"),
    (MIN, "9999999999Ti", "9999999999Ti is more than any GPU has; write an amount such as 16Gi"),
    (LIMIT, "", f"'' is no strength of a limit; {ENFORCED}"),
    (LIMIT, "cgroup", f"'cgroup' is no strength of a limit; {ENFORCED}"),
    (LIMIT, "advisory", f"'advisory' is no strength of a limit; {ENFORCED}"),
    (MIG, "", f"'' {ONLY_NEVER}"),
    (MIG, "1g.10gb", f"'1g.10gb' {ONLY_NEVER}"),
    (FRAMEWORKS, "", f"'' is no framework that gpushare knows; {COMMAS}"),
    (FRAMEWORKS, "tensorflow", f"'tensorflow' is no framework that gpushare knows; {COMMAS}"),
    (FRAMEWORKS, "none,jax", f"'none' is no framework that gpushare knows; {COMMAS}"),
    (FRAMEWORKS, "jax, jax", f"'jax, jax' names a framework twice; {COMMAS}"),
    (SAME, "", EVERY),
    (SAME, "  ", EVERY),
    (SAME, "=web", f"'=web' is no condition on a label; {SELECTOR}"),
    (SAME, "app in web", f"'app in web' is no condition on a label; {SELECTOR}"),
    (SAME, "app in (web", f"'app in (web' is no condition on a label; {SELECTOR}"),
    (SAME, "app>3", f"'app>3' is no condition on a label; {SELECTOR}"),
    (SAME, "app=web,", f"'' is no condition on a label; {SELECTOR}"),
    (SAME, "app=$(x)", f"'$(x)' cannot be the value of a label; {SELECTOR}"),
    (SAME, "a=b," * 600, f"it has more than 256 characters; {SELECTOR}"),
    (OTHER, "", EVERY),
    (OTHER, "!", f"'!' is no condition on a label; {SELECTOR}"),
    (OTHER, "app notin (a, -)", f"'-' cannot be the value of a label; {SELECTOR}"),
    (OTHER, "{app: web}", f"'{{app: web}}' is no condition on a label; {SELECTOR}"),
    (POLICY, "", "'' is no policy; write binpack, spread, dense or fgd"),
    (POLICY, "Binpack", "'Binpack' is no policy; write binpack, spread, dense or fgd"),
    (POLICY, "binpack,spread", "'binpack,spread' is no policy; write binpack, spread, dense or fgd"),
    (GPUS, "", f"not a number of GPUs: '' is not a number; {QUOTES}"),
    (GPUS, "1Gi", "not a number of GPUs: 1Gi has a suffix, but the resource is counted in units;"
        f" {QUOTES}"),
    (GPUS, "1000", "1000 GPUs are more than any node has; write a number up to 64"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "text", "message"), WORDS)
@pytest.mark.parametrize("asked", [{"mem": 64}, {"gpu": 1}])
def test_an_annotation_that_means_nothing_is_refused(
    whole: Webhook, asked: dict[str, int], key: str, text: str, message: str
) -> None:
    refused = pod(asking(**asked), annotations={key: text})
    whole.refuses("/mutate", review(refused), f"metadata.annotations[{key}]: {message}")


CONTRADICTIONS: list[tuple[Json, str]] = [
    (
        pod(asking(mem=6), labels={COUNT: "2"}, annotations={GPUS: "3"}),
        f"metadata.annotations[{GPUS}]: the label {COUNT} (amounts are totals) contradicts it (amounts are per GPU);"
        " keep one of the two",
    ),
    (
        pod(asking(mem=7), labels={COUNT: "2"}),
        "spec.containers[0].resources.limits[aliyun.com/gpu-mem]: 7 cannot be split evenly over 2 GPUs; write 6 or 8",
    ),
    (
        pod(asking("a", mem=6), asking("b", mem=1), labels={COUNT: "3"}),
        "spec.containers[1].resources.limits[aliyun.com/gpu-mem]: 1 cannot be split evenly over 3 GPUs; write 3",
    ),
    (
        pod(asking(mem=6), annotations={GPUS: "2", "gpushare.dev/limits-are-totals": "no"}),
        "metadata.annotations[gpushare.dev/limits-are-totals]: 'no' is no value of it; remove it, or write \"true\" if"
        " the limits are totals over all GPUs already",
    ),
]


@pytest.mark.parametrize(("obj", "message"), CONTRADICTIONS)
def test_contradictions_are_refused(whole: Webhook, obj: Json, message: str) -> None:
    whole.refuses("/mutate", review(obj), message)


def test_everything_that_is_wrong_is_said_at_once(whole: Webhook) -> None:
    marks = {MODEL: "!", UUID: "x", MIN: "?", SAME: "", OTHER: "=", POLICY: "fast", GPUS: "two"}
    asked = pod(asking("a", percent=101), asking("b", core=1), annotations=marks, labels={COUNT: "-1"})
    whole.refuses(
        "/mutate",
        review(asked),
        " | ".join(
            [
                f"metadata.labels[{COUNT}]: not a number of GPUs: -1 is negative; {QUOTES}",
                f"metadata.annotations[{GPUS}]: not a number of GPUs: 'two' is not a number; {QUOTES}",
                "spec.containers[0].resources.limits[nano-gpu/gpu-percent]: 101 per cent are more than one GPU; write"
                f" up to 100; for several GPUs ask for aliyun.com/gpu-mem with the annotation {GPUS}, which gives so"
                " much on each",
                "spec.containers[1].resources.limits: aliyun.com/gpu-core.percentage is the part of compute beside"
                " aliyun.com/gpu-mem; add aliyun.com/gpu-mem, or ask for nano-gpu/gpu-percent alone, which is memory"
                " and compute",
                f"metadata.annotations[{POLICY}]: 'fast' is no policy; write binpack, spread, dense or fgd",
                f"metadata.annotations[{MODEL}]: '!' is none; {MODELS}",
                f"metadata.annotations[{UUID}]: 'x' is none; {UUIDS}",
                f"metadata.annotations[{MIN}]: '?' is no amount of memory; {MEMORY}",
                f"metadata.annotations[{SAME}]: {EVERY}",
                f"metadata.annotations[{OTHER}]: '=' is no condition on a label; {SELECTOR}",
            ]
        ),
    )


@pytest.mark.parametrize(("key", "text", "message"), WORDS)
def test_such_words_refuse_no_pod_that_asks_for_nothing(whole: Webhook, key: str, text: str, message: str) -> None:
    assert message
    assert whole.ask("/isolate", review(pod(container(), annotations={key: text})))["allowed"]


@pytest.mark.parametrize("key", [MODEL, UUID, MIN, SAME, OTHER, POLICY, GPUS, "gpushare.dev/overridden"])
@pytest.mark.parametrize(
    ("value", "found"), [(3, "a number"), (True, "true or false"), (None, "nothing"), ([], "a list")]
)
def test_an_annotation_is_a_text(webhook: Webhook, key: str, value: object, found: str) -> None:
    sent = pod(asking(mem=3))
    sent["metadata"]["annotations"] = {key: value}
    message = f"metadata.annotations[{key}]: expected a string, found {found}"
    webhook.refuses("/mutate", review(sent), f"{message}; see kubectl explain pod.metadata.annotations")


@pytest.mark.parametrize(("value", "found"), [(2, "a number"), ({}, "an object")])
@pytest.mark.parametrize("key", [COUNT, "nano-gpu/assume"])
def test_so_is_a_label(webhook: Webhook, key: str, value: object, found: str) -> None:
    sent = pod(asking(mem=3))
    sent["metadata"]["labels"] = {key: value}
    message = f"metadata.labels[{key}]: expected a string, found {found}"
    webhook.refuses("/mutate", review(sent), f"{message}; see kubectl explain pod.metadata.labels")
