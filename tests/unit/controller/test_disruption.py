"""Budgets are followed in the version that the server has; without them everything else goes on."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from controller import disruption, optional
from controller.disruption import V1, V1BETA1, Budgets, BudgetSink
from gpushare.cluster.records import Bound
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from testing.builders import make_ref
from testing.clock import ManualClock, ending
from testing.fakes.kube import Call, FakeKube, Fault

COLLECTION = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def pdb(name: str = "web", allowed: object = 1, **selector: object) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed},
    }


def allowed(budgets: Budgets) -> dict[str, int]:
    return {budget.name: budget.allowed for budget in budgets.all()}


def sink(empty_is_all: bool = True) -> BudgetSink:
    return BudgetSink(budgets=Budgets(), empty_is_all=empty_is_all)


def test_the_sink_follows_the_collection() -> None:
    followed = sink()
    followed.replace([followed.read(pdb("a")), followed.read(pdb("b", 2))])
    assert allowed(followed.budgets) == {"a": 1, "b": 2}
    followed.upsert(followed.read(pdb("a", 0)))
    followed.upsert(followed.read(pdb("c", 3)))
    followed.remove(followed.read(pdb("b")))
    followed.remove(followed.read(pdb("unknown")))
    assert allowed(followed.budgets) == {"a": 0, "c": 3}


def test_a_budget_that_means_nothing_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    followed = sink()
    followed.replace([followed.read(pdb("a")), followed.read(pdb("b", "many"))])
    followed.upsert(followed.read(pdb("a", "many")))
    followed.upsert(followed.read({"metadata": {}}))
    assert allowed(followed.budgets) == {}
    fields = [record.gpushare_fields for record in caplog.records]  # type: ignore[attr-defined]  # set by `logs.event`
    assert [(line["budget"], line["error"]) for line in fields] == [
        ("default/b", "status.disruptionsAllowed: expected a whole number, 0 or more, found a string"),
        ("default/a", "status.disruptionsAllowed: expected a whole number, 0 or more, found a string"),
        ("None/None", "metadata.namespace: expected a string, found nothing"),
    ]


class Followed:
    """A watch, and what it has told."""

    def __init__(self, api: FakeKube, clock: ManualClock) -> None:
        self.budgets = Budgets()
        self.watch = disruption.watch(api=api, clock=clock, known=self.budgets)


def follow(api: FakeKube, waits: int = 1) -> tuple[Followed, ManualClock]:
    stop = threading.Event()
    clock = ending(stop, waits)
    followed = Followed(api, clock)
    api.close()
    assert not followed.watch.settled()
    followed.watch.run(stop)
    return followed, clock


def at(path: str) -> Callable[[Any], bool]:
    return lambda call: bool(call.path == path)


@pytest.mark.parametrize(("path", "protects"), [(V1, True), (V1BETA1, False)])
def test_an_old_server_has_an_older_version_in_which_an_empty_selector_means_no_one(path: str, protects: bool) -> None:
    api = FakeKube()
    if path == V1BETA1:
        api.fail_next(at(V1), MISSING)
    api.seed(path.replace("/pod", "/namespaces/default/pod"), pdb())
    followed, _ = follow(api)
    assert followed.watch.settled()
    [budget] = followed.budgets.all()
    assert budget.counts(Bound(ref=make_ref(), node=NodeName("n"), labels={"app": "web"})) is protects


FORBIDDEN, MISSING = kube.ForbiddenError("no"), kube.NotFoundError("the server could not find the requested resource")
GRANT = "grant the controller list and watch of poddisruptionbudgets in the API group policy"


def lines(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, object]]:
    return [record.gpushare_fields for record in caplog.records if record.getMessage() == name]  # type: ignore[attr-defined]  # set by `logs.event`


@pytest.mark.parametrize(
    ("faults", "fix"),
    [
        ({V1: FORBIDDEN}, GRANT),
        ({V1: MISSING, V1BETA1: FORBIDDEN}, GRANT),
        ({V1: MISSING, V1BETA1: MISSING}, "none; this server has no such objects"),
    ],
)
def test_the_controller_goes_on_without_the_right_to_read_budgets(
    caplog: pytest.LogCaptureFixture, faults: dict[str, Fault], fix: str
) -> None:
    api = FakeKube()
    api.seed(COLLECTION, pdb())
    for path, fault in faults.items():
        api.fail_next(at(path), fault)
    with caplog.at_level(logging.WARNING):
        refused, clock = follow(api)
    assert refused.watch.settled()
    assert allowed(refused.budgets) == {}
    assert clock.waits == [optional.ASK_AGAIN_S]
    [line] = lines(caplog, "not watched")
    assert (line["path"], line["fix"]) == (V1, fix)
    assert line["effect"] == "preemption takes no account of PodDisruptionBudgets"

    for path, fault in faults.items():
        api.fail_next(at(path), fault)
    granted, clock = follow(api, waits=2)
    assert allowed(granted.budgets) == {"web": 1}
    assert clock.waits[0] == optional.ASK_AGAIN_S


def test_a_server_that_is_upgraded_is_followed_in_its_new_version() -> None:
    api = FakeKube()
    api.seed(COLLECTION.replace("v1", "v1beta1"), pdb(allowed=1))
    api.seed(COLLECTION, pdb(allowed=2))
    api.fail_next(at(V1), MISSING)
    api.fail_next(lambda call: call.verb == "watch" and call.path == V1BETA1, MISSING)
    followed, _ = follow(api, waits=2)
    assert allowed(followed.budgets) == {"web": 2}
    assert [call.path for call in api.calls if call.verb == "watch"] == [V1BETA1, V1]


def test_a_right_that_is_taken_away_leaves_what_was_read_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeKube()
    api.seed(COLLECTION, pdb())
    api.fail_next(lambda call: call.verb == "watch", FORBIDDEN)
    asks = 0

    def second(call: Call) -> bool:
        nonlocal asks
        asks += call.params == {"limit": "1"}
        return asks == 2

    api.fail_next(second, FORBIDDEN)
    with caplog.at_level(logging.WARNING):
        followed, clock = follow(api, waits=3)
    assert allowed(followed.budgets) == {"web": 1}
    assert clock.waits[1] == optional.ASK_AGAIN_S
    [line] = lines(caplog, "not watched")
    assert line["effect"] == "what was read before stays as it was"
    assert api.count("watch") == 2


def test_a_collection_that_may_be_listed_but_not_watched_makes_no_storm() -> None:
    api = FakeKube()
    api.fail_next(lambda call: call.verb == "watch", FORBIDDEN, times=1000)
    _, clock = follow(api, waits=20)
    assert clock.waits[-1] >= 5
    assert api.count("watch") == 20


def test_a_server_that_does_not_answer_is_not_waited_for_forever(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeKube()
    api.fail_next(at(V1), kube.UnreachableError("no route to host"), times=100)
    stop = threading.Event()
    settled: list[bool] = []

    def look(at: float) -> None:
        settled.append(followed.watch.settled())
        assert settled[-1] == (at - 1000 >= optional.PATIENCE_S)
        if len(settled) == 100:
            stop.set()

    clock = ManualClock(on_wait=look)
    followed = Followed(api, clock)
    with caplog.at_level(logging.WARNING):
        followed.watch.run(stop)
    assert not settled[0]
    assert settled[-1]
    assert lines(caplog, "watch failed")[0]["error"] == "no route to host"
