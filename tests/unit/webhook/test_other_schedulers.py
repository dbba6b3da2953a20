"""A GPU pod that names a scheduler which does not ask this project is told so when it is created."""

from typing import Any

import pytest

from gpushare.resource_config import ResourceConfig
from testing.reviews import RULES, asking, container, pod
from webhook import mutation
from webhook.mutation import Mutated
from webhook.rules import Rules


def warnings(scheduler: str | None, rules: Rules = RULES, **spec: Any) -> tuple[str, ...]:
    decision = mutation.mutate(pod(asking("a", mem=1), schedulerName=scheduler, **spec), rules)
    assert isinstance(decision, Mutated)
    assert decision.pod["spec"]["schedulerName"] == (
        scheduler if scheduler not in {None, "", "default-scheduler"} else RULES.scheduler
    )
    return decision.warnings


@pytest.mark.parametrize("scheduler", ["jupyterhub-user-scheduler", "volcano"])
def test_its_author_is_told_what_happens_and_what_to_do(scheduler: str) -> None:
    assert warnings(scheduler) == (
        f"spec.schedulerName {scheduler} does not ask gpushare which GPUs are free: the pod waits on the node that it"
        " chooses until they are, or for ever; remove it, or write gpushare-scheduler",
    )
    assert mutation.mutate(pod(container("a"), schedulerName=scheduler), RULES).warnings == ()  # type: ignore[union-attr] # Mutated


@pytest.mark.parametrize("scheduler", [None, "", "default-scheduler", "gpushare-scheduler"])
def test_ours_and_the_default_need_no_word(scheduler: str | None) -> None:
    assert warnings(scheduler) == ()


def test_a_scheduler_that_the_administrator_names_needs_none_either() -> None:
    assert warnings("mine", Rules(resource_config=ResourceConfig(), other_schedulers=("mine",))) == ()


def test_where_the_clusters_own_scheduler_asks_us_it_needs_none() -> None:
    rules = Rules(resource_config=ResourceConfig(), scheduler="")
    for scheduler, told in ((None, 0), ("default-scheduler", 0), ("gpushare-scheduler", 1), ("volcano", 1)):
        decision = mutation.mutate(pod(asking("a", mem=1), schedulerName=scheduler), rules)
        assert isinstance(decision, Mutated)
        assert len(decision.warnings) == told
        assert all(text.endswith("remove it, or write default-scheduler") for text in decision.warnings)


def test_a_preset_node_is_told_instead() -> None:
    [text] = warnings("volcano", nodeName="node-a")
    assert text.startswith("spec.nodeName by-passes the scheduler")
