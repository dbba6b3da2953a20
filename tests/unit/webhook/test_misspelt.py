"""A wish with a typing error is not lost without a word."""

import pytest

from tests.unit.webhook.builders import WHOLE, asking, pod
from webhook import mutation
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
def test_an_annotation_that_nobody_reads_is_told(annotation: str, message: str) -> None:
    assert told(annotations={annotation: "2"}) == (message,)


def test_a_label_that_should_be_an_annotation_is_told() -> None:
    message = "gpushare.dev/gpus means something as an annotation only; it is ignored"
    assert told(labels={"gpushare.dev/gpus": "2"}) == (message,)


@pytest.mark.parametrize("key", ["gpushare.devx/y", "example.com/gpu-model", "gpushare.dev", "app"])
def test_names_of_others_are_none_of_our_business(key: str) -> None:
    assert told(annotations={key: "x"}, labels={key: "x"}) == ()


@pytest.mark.parametrize("key", ["gpushare.dev/gpus", "gpushare.dev/gpu-policy"])
def test_what_is_right_needs_no_word(key: str) -> None:
    assert told(annotations={key: "2" if key.endswith("gpus") else "spread"}) == ()
