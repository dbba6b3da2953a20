"""A request with a typing error is not lost without a word."""

import difflib
from collections.abc import Iterable
from typing import Any

import pytest

from testing.reviews import WHOLE, asking, pod
from webhook import mutation, unread
from webhook.mutation import Mutated


def told(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> tuple[str, ...]:
    value = pod(asking("main", mem=3), annotations=annotations or {}, labels=labels or {})
    decision = mutation.mutate(value, WHOLE)
    assert isinstance(decision, Mutated)
    return decision.warnings


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (
            "gpushare.dev/gpu-modell",
            "annotation gpushare.dev/gpu-modell is none that gpushare knows; it is ignored;"
            " do you mean gpushare.dev/gpu-model?",
        ),
        ("gpushare.dev/x", "annotation gpushare.dev/x is none that gpushare knows; it is ignored"),
        ("other.gpushare.dev/main", "annotation other.gpushare.dev/main is none that gpushare knows; it is ignored"),
        ("aliyun.com/gpu-count", "aliyun.com/gpu-count means something as a label only; it is ignored"),
    ],
)
def test_an_annotation_that_no_one_reads_is_told(annotation: str, message: str) -> None:
    assert told(annotations={annotation: "2"}) == (message,)


@pytest.mark.parametrize("key", ["gpushare.dev/gpus", "gpushare.dev/watchdog"])
def test_a_label_that_should_be_an_annotation_is_told(key: str) -> None:
    assert told(labels={key: "2"}) == (f"{key} means something as an annotation only; it is ignored",)


def test_a_policy_of_the_watchdog_that_is_none_is_told() -> None:
    message = "annotation gpushare.dev/watchdog: expected report, evict or kill, found 'Kill'; it is ignored"
    assert told({"gpushare.dev/watchdog": "Kill"}) == (message,)
    assert told({"gpushare.dev/watchdog": "kill"}) == ()


@pytest.mark.parametrize("key", ["gpushare.devx/y", "example.com/gpu-model", "gpushare.dev", "app"])
def test_names_of_others_are_none_of_our_business(key: str) -> None:
    assert told(annotations={key: "x"}, labels={key: "x"}) == ()


@pytest.mark.parametrize("key", ["gpushare.dev/gpus", "gpushare.dev/gpu-policy"])
def test_what_is_right_needs_no_word(key: str) -> None:
    assert told(annotations={key: "2" if key.endswith("gpus") else "spread"}) == ()


def test_thousands_of_unknown_names_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def counted(word: str, known: Iterable[str], **options: Any) -> list[str]:
        compared.append(word)
        return difflib.get_close_matches(word, list(known), **options)

    monkeypatch.setattr(unread, "difflib", type("Counting", (), {"get_close_matches": staticmethod(counted)}))
    found = told({f"gpushare.dev/gpu-model{i:05}": "" for i in range(20_000)}, {"gpushare.dev/gpus": "", "x": "y"})
    assert len(found) == 9
    assert found[7:] == (
        "annotation gpushare.dev/gpu-model00007 is none that gpushare knows; it is ignored;"
        " do you mean gpushare.dev/gpu-model?",
        "and 19993 more labels and annotations that gpushare does not read",
    )
    assert compared == [f"gpu-model{i:05}" for i in range(8)]


def test_eight_are_told_one_by_one() -> None:
    found = told(dict.fromkeys([f"gpushare.dev/{letter}" for letter in "abcde"], ""), {"gpushare.dev/f": ""})
    assert [text.split()[1] for text in found] == [f"gpushare.dev/{letter}" for letter in "abcdef"]


def test_a_name_that_is_too_long_for_kubernetes_is_compared_with_nothing() -> None:
    [text] = told({"gpushare.dev/" + "gpu-model" * 20_000: ""})
    assert text.startswith("annotation gpushare.dev/gpu-modelgpu-model")
    assert (len(text), text[-4:]) == (256, " ...")
