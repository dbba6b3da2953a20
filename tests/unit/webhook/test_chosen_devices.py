"""Authors who choose devices themselves: told at once, and marked for the Event that the controller posts."""

import pytest

from testing.reviews import ALL, RULES, VOID, WHOLE, Json, asking, container, mutated, pod, visible
from webhook import mutation
from webhook.mutation import Mutated, Untouched
from webhook.rules import Rules

MARK = "gpushare.dev/overridden"


def marked(value: Json, rules: Rules = RULES) -> str | None:
    found: str | None = mutated(value, rules)["metadata"].get("annotations", {}).get(MARK)
    return found


@pytest.mark.parametrize("asked", [{"mem": 3}, {"percent": 20}, {"gpu": 1}])
@pytest.mark.parametrize("value", ["all", "none", "0", "GPU-1234", "", "void"])
def test_a_container_that_chose_its_devices_is_marked(asked: dict[str, int], value: str) -> None:
    assert marked(pod({**asking("main", **asked), "env": [{**ALL, "value": value}]}), WHOLE) == "main"


def test_every_such_container_is_in_the_mark_in_the_order_in_which_they_start() -> None:
    foreign = container("n", env=[ALL], resources={"limits": {"nvidia.com/gpu": "1"}})
    silent = container("s", env=[VOID, {"name": "X", "value": "all"}])
    asked = pod(
        {**asking("a", mem=3), "env": [ALL]}, asking("b", mem=1), foreign, silent, init=[container("i", env=[ALL])]
    )
    assert marked(asked) == "i,a,n"


def test_a_pod_whose_author_chose_nothing_is_not_marked() -> None:
    assert marked(pod(asking(mem=3), container("b", env=[{"name": "X", "value": "1"}]))) is None


def test_only_the_last_of_several_values_is_a_choice() -> None:
    """It is the one that Kubernetes takes."""
    assert marked(pod(asking(mem=3), container("b", env=[ALL, VOID]))) is None
    assert marked(pod(asking(mem=3), container("b", env=[VOID, ALL]))) == "b"


def test_a_pod_that_asks_for_no_gpu_is_told_but_not_marked() -> None:
    """The controller does not watch it."""
    decision = mutation.mutate(pod(container(env=[ALL])), RULES)
    assert isinstance(decision, Mutated)
    assert "annotations" not in decision.pod["metadata"]
    assert len(decision.warnings) == 1


def test_the_mark_outlives_the_next_call() -> None:
    once = mutated(pod({**asking("a", mem=3), "env": [ALL]}, container("b", env=[ALL])))
    assert once["metadata"]["annotations"] == {MARK: "a,b"}
    assert mutation.mutate(once, RULES) == Untouched()


def test_a_container_that_another_webhook_adds_joins_the_mark() -> None:
    once = mutated(pod({**asking("a", mem=3), "env": [ALL]}))
    once["spec"]["containers"].insert(0, container("injected", env=[ALL]))
    assert marked(once) == "injected,a"


@pytest.mark.parametrize("forged", ["a", "b", "a,b", "x", "", ",,", "a\n,<b>"])
def test_an_author_cannot_write_the_mark(forged: str) -> None:
    asked = pod(asking("a", mem=3), container("b"), annotations={MARK: forged, "keep": "me"})
    decision = mutation.mutate(asked, RULES)
    assert isinstance(decision, Mutated)
    assert decision.pod["metadata"]["annotations"] == {"keep": "me"}
    assert decision.warnings == (
        "annotation removed, because only gpushare-webhook may write it: gpushare.dev/overridden",
    )


def test_nor_on_a_pod_without_a_request() -> None:
    decision = mutation.mutate(pod(container(env=[VOID]), annotations={MARK: "a"}), RULES)
    assert isinstance(decision, Mutated)
    assert decision.pod["metadata"]["annotations"] == {}


def test_all_that_a_perfect_forgery_gets_is_a_mark_on_his_own_containers() -> None:
    asked = pod({**asking("a", mem=3), "env": [visible("a")]}, container("b"), annotations={MARK: "z,b,a"})
    assert marked(asked) == "a"


def test_what_the_author_wrote_in_a_template_of_a_marked_pod_is_marked_again() -> None:
    asked = pod({**asking("a", mem=3), "env": [ALL]}, asking("b", mem=1), annotations={MARK: "b"})
    assert marked(asked) == "a"
