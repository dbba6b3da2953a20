"""Which GPUs a pod accepts, and beside whom."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare import names
from gpushare.errors import InvalidRequestError
from gpushare.model.gpu import Limit, MigInstance
from gpushare.model.request import ANY_GPU, GpuSelector, LabelSelector, MigChoice, Operator, RequestShape, is_model
from gpushare.units import GIB, MemoryUnit, ResourceConfig, parse_memory
from gpushare.wire import requests
from testing.builders import make_gpu, make_pod

LARGE = "NVIDIA A100-SXM4-80GB"


def shape(*limits: dict[str, str], **notes: Any) -> RequestShape:
    """Of a pod with a container for each of these limits, and annotations by what stands behind `gpushare.dev/`."""
    containers = [{"name": f"c{i}", "resources": {"limits": each}} for i, each in enumerate(limits)]
    keys = {f"gpushare.dev/{key}": text for key, text in notes.items()}
    found = requests.of_pod(make_pod(*containers, annotations=keys), ResourceConfig(whole_gpus=True))
    assert found is not None
    return found.shape


def test_a_pod_that_says_nothing_takes_any_gpu() -> None:
    assert shape().gpus is ANY_GPU
    assert shape().affinity is None
    assert ANY_GPU.why_not(make_gpu(0, mib=0)) == ""


@pytest.mark.parametrize(
    ("meant", "model", "expected"),
    [
        *((meant, LARGE, True) for meant in ("A100", "a100", "A100-SXM4", LARGE)),
        *(("A10", LARGE, False), ("SXM4 A100", LARGE, False), ("A100", "NVIDIA A10", False)),
        *((meant, "Tesla T4", True) for meant in ("T4", "Tesla-T4", " T4-")),
    ],
)
def test_a_model_is_meant_by_whole_words(meant: str, model: str, expected: bool) -> None:
    assert is_model(model, meant) is expected


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        *(({"gpu-model": text}, "") for text in ("T4", "A100, T4", "!A100")),
        *(({"gpu-model": text}, "other model") for text in ("A100", "!T4")),
        ({"gpu-uuid": "GPU-0"}, ""),
        *(({"gpu-uuid": text}, "other UUID") for text in ("GPU-1,GPU-2", "! GPU-0", "MIG-5a1f, MIG-GPU-0/1/2")),
        *(({"min-gpu-memory": text}, "") for text in ("15Gi", "15")),
        *(({"min-gpu-memory": "16Gi"}, "too small"), ({"gpu-model": "T4", "min-gpu-memory": "20GB"}, "too small")),
    ],
)
def test_a_gpu_is_chosen_by_what_it_is(annotations: dict[str, str], why: str) -> None:
    assert shape(**annotations).gpus.why_not(make_gpu(0, 15)) == why


INSTANCE = MigInstance(gpu=0, number=1, profile="1g.10gb")


@pytest.mark.parametrize(
    ("annotations", "limit", "mig", "why"),
    [
        ({"limit": "enforced"}, Limit.MIG, INSTANCE, ""),
        ({"limit": "enforced"}, Limit.CGROUP, None, ""),
        *(
            ({"limit": "enforced"}, Limit(each), None, f"limit {each}")
            for each in ("mps", "hami-core", "watchdog", "advisory")
        ),
        ({"limit": "enforced", "min-gpu-memory": "20Gi"}, Limit.ADVISORY, None, "too small"),
        ({"mig": "only"}, Limit.MIG, INSTANCE, ""),
        ({"mig": "only"}, Limit.CGROUP, None, "no MIG"),
        ({"mig": "never"}, Limit.CGROUP, None, ""),
        ({"mig": "never"}, Limit.MIG, INSTANCE, "MIG"),
        ({"mig": "never", "limit": "enforced"}, Limit.MIG, INSTANCE, "MIG"),
        ({"gpu-model": "T4"}, Limit.MIG, INSTANCE, ""),
    ],
)
def test_a_gpu_is_chosen_by_what_holds_its_shares(
    annotations: dict[str, str], limit: Limit, mig: MigInstance | None, why: str
) -> None:
    assert shape(**annotations).gpus.why_not(replace(make_gpu(0, 15), limit=limit, mig=mig)) == why


def test_whole_gpus_need_no_limit_and_need_not_refuse_oversubscription() -> None:
    assert shape({names.GPU: "1"}, limit="enforced", oversubscription="never").gpus is ANY_GPU
    assert shape({names.GPU: "1"}, limit="enforced", mig="never").gpus == GpuSelector(mig=MigChoice.NEVER)
    assert shape({names.GPU: "1"}, {names.GPU_MEM: "1"}, limit="enforced").gpus.enforced


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"gpu-model": "A100,!T4"}, "model A100, not T4"),
        ({"gpu-uuid": "!GPU-0", "min-gpu-memory": "2Gi"}, "UUID not GPU-0 and at least 2048 MiB in all"),
        ({"limit": "enforced"}, "an enforced limit"),
        (
            {"min-gpu-memory": "2Gi", "limit": "enforced", "mig": "only"},
            "at least 2048 MiB in all and an enforced limit and MIG",
        ),
        ({"mig": "never", "oversubscription": "never"}, "no MIG and no oversubscription"),
    ],
)
def test_a_selector_reads_as_a_sentence(annotations: dict[str, str], text: str) -> None:
    assert str(shape(**annotations).gpus) == text


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        *(("16Gi", 16384), ("16 GiB", 16384), ("40000Mi", 40000), ("20G", 19074), ("1.5Gi", 1536), ("3", 3072)),
        ("1Ti", 2**20),
    ],
)
def test_memory_is_read_as_people_write_it(text: str, mib: int) -> None:
    assert parse_memory(text, GIB) == mib
    assert parse_memory("3", MemoryUnit(256)) == 768


@pytest.mark.parametrize(
    ("selector", "matching", "others"),
    [
        ("app=web", [{"app": "web"}, {"app": "web", "x": "y"}], [{}, {"app": "api"}]),
        ("app==web", [{"app": "web"}], [{}]),
        ("app!=web", [{}, {"app": "api"}], [{"app": "web"}]),
        ("app in (web, api)", [{"app": "web"}, {"app": "api"}], [{}, {"app": "x"}]),
        ("app notin (web,api),tier", [{"tier": ""}], [{}, {"app": "web", "tier": "a"}]),
        ("app", [{"app": ""}], [{}]),
        ("!app", [{}], [{"app": ""}]),
        ("example.com/team=a,app=web", [{"example.com/team": "a", "app": "web"}], [{"app": "web"}]),
        ("app=", [{"app": ""}], [{}, {"app": "x"}]),
    ],
)
def test_a_label_selector_means_what_kubectl_means(
    selector: str, matching: list[dict[str, str]], others: list[dict[str, str]]
) -> None:
    parsed = LabelSelector.parse(selector)
    assert all(parsed.matches(one) for one in matching)
    assert not any(parsed.matches(one) for one in others)


def test_every_operator_counts_once_and_affinity_knows_its_namespace() -> None:
    parsed = LabelSelector.parse("a=1,b!=1,c,!d")
    wanted = [Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.ABSENT]
    assert [one.operator for one in parsed.requirements] == wanted
    assert str(parsed) == "a=1, b!=1, c, !d"
    assert len(LabelSelector.parse("a,a,a,!b").requirements) == 2
    affinity = shape(**{"same-gpu-as": "app=web", "other-gpu-than": "app=noisy"}).affinity
    assert affinity is not None
    assert (affinity.namespace, str(affinity.same), str(affinity.other)) == ("default", "app=web", "app=noisy")
    assert shape(**{"other-gpu-than": "app=noisy"}).affinity is not None


@pytest.mark.parametrize("case", (Path(__file__).parent / "golden/selectors.txt").read_text().splitlines())
def test_a_bad_request_says_where_and_what_to_do(case: str) -> None:
    asked, _, message = case.partition(" => ")
    key, _, text = asked.partition(": ")
    with pytest.raises(InvalidRequestError) as caught:
        shape(**{key: json.loads(text)})
    assert str(caught.value) == f"metadata.annotations[gpushare.dev/{key}]: {message}"


def test_a_long_selector_is_told_by_its_beginning() -> None:
    assert str(LabelSelector.parse("v" * 63 + "=" + "w" * 16)) == "v" * 63 + "=" + "w" * 16
    assert str(LabelSelector.parse("v" * 63 + "=" + "w" * 17)) == "v" * 63 + "=" + "w" * 13 + "..."
    selector = shape(**{"gpu-model": ",".join(f"MODEL{i}" for i in range(16))}).gpus
    assert str(selector).endswith("...")
    assert len(str(selector)) == len("model ") + 80
    assert len(str(LabelSelector.parse("app in (" + ",".join("v" * 9 for _ in range(20)) + ")"))) == 80
