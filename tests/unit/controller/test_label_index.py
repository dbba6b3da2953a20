"""Who holds GPUs with which labels is counted, not looked for; the count is what the pods themselves say."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cluster_index import label_index_of
from controller.label_index import LabelIndex
from gpushare import names
from gpushare.model.selector import LabelSelector, Operator, Requirement
from gpushare.wire import labels as labels_wire
from testing.controller.bypassing import add_bypassed
from testing.controller.world import World

Labels = dict[str, str]
KEYS: Final = st.sampled_from(["app", "tier"])
VALUES: Final = st.sampled_from(["a", "b", "c"])
found = st.lists(st.tuples(st.sampled_from(["one", "two"]), st.dictionaries(KEYS, VALUES)), max_size=12)
selectors = st.builds(
    LabelSelector,
    st.lists(
        st.builds(
            Requirement, KEYS, st.sampled_from(list(Operator)), st.lists(VALUES, max_size=3, unique=True).map(tuple)
        ),
        max_size=3,
    ).map(tuple),
    st.just(""),
)


def meant(known: LabelIndex, namespace: str, selector: LabelSelector) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(labels.items()) for labels in known.like(namespace, selector) if selector.matches(labels)}


@settings(max_examples=300)
@given(found, found, selectors)
def test_everybody_who_is_meant_is_found_and_no_one_who_has_gone(
    gone: list[tuple[str, Labels]], stays: list[tuple[str, Labels]], selector: LabelSelector
) -> None:
    known = LabelIndex([*gone, *stays])
    for namespace, labels in gone:
        known.remove(namespace, labels)
    assert known.counts() == LabelIndex(stays).counts()
    for name in ("one", "two", "three"):
        expected = {frozenset(labels.items()) for namespace, labels in stays if namespace == name}
        assert meant(known, name, selector) == {labels for labels in expected if selector.matches(dict(labels))}


@pytest.mark.parametrize(
    ("text", "most"), [("app=web", 1), ("app in (web,api)", 2), ("app=web,own=p7", 1), ("app!=job,none", 0)]
)
def test_a_question_looks_at_few_of_many_pods(text: str, most: int) -> None:
    """Pods of a StatefulSet or of a Job have a label each that no one else has."""
    same: list[Labels] = [{"app": name} for name in ("web", "api")] * 500
    known = LabelIndex(("team", labels) for labels in [*same, *({"app": "job", "own": f"p{i}"} for i in range(1000))])
    assert len(list(known.like("team", labels_wire.parse(text)))) <= most


def counted(world: World) -> dict[str, list[tuple[list[tuple[str, str]], int]]]:
    state = world.state
    reserved = [known.allocation for known in state._index.reservations.all()]
    assert state._index.label_index.counts() == label_index_of(state._index.pods.values(), reserved).counts()
    assert state.cache.snapshot().differences() == []
    return {
        namespace: sorted((sorted(labels), pods) for labels, pods in of.items())
        for namespace, of in state._index.label_index.counts().items()
    }


def test_labels_are_counted_from_the_choice_until_the_pod_ends(world: World) -> None:
    pod = world.add_pod(3, labels={"app": "web"})
    web = {"team": [([("app", "web")], 1)]}
    assert counted(world) == {}
    assert world.bind(pod).error == ""
    assert counted(world) == web
    world.see()
    assert counted(world) == web
    world.edit_pod(pod, lambda found: found["metadata"].update(labels={}))
    world.see()
    assert counted(world) == {"team": [([], 1)]}
    world.finish(pod)
    world.see()
    assert counted(world) == {}


def test_a_choice_that_is_given_back_does_not_count(world: World) -> None:
    pod = world.add_pod(3, labels={"app": "web"})
    world.api.fail_next(lambda call: call.path.endswith("/binding"), "lost-request")
    world.bind(pod)
    assert counted(world) == {"team": [([("app", "web")], 1)]}
    world.clock.at += 130
    world.reconciler.tick()
    assert counted(world) == {}


def test_a_choice_that_the_api_server_knows_otherwise_counts_as_it_has_it(world: World) -> None:
    pod = world.add_pod(3, labels={"app": "web"})
    world.see()
    world.edit_pod(pod, lambda found: found["metadata"].update(labels={"app": "api"}))
    world.api.fail_next(lambda call: call.path.endswith("/binding"), "lost-reply")
    assert world.bind(pod).error == ""
    assert counted(world) in ({"team": [([("app", name)], 1)]} for name in ("web", "api"))
    world.see()
    assert counted(world) == {"team": [([("app", "api")], 1)]}


def test_what_another_system_bound_counts_and_what_waits_on_its_node_does_not(world: World) -> None:
    add_bypassed(world, 3, labels={"app": "web"}, annotations={names.ALIYUN_IDX: "1"})
    add_bypassed(world, 99, labels={"app": "api"})
    world.see()
    assert counted(world) == {"team": [([("app", "web")], 1)]}


def test_a_count_that_is_wrong_is_found(world: World) -> None:
    world.state._index.label_index.add("team", {"app": "web"})
    assert world.state.cache.snapshot().differences() == [
        "namespace team: disagree about the labels of pods that hold GPUs"
    ]


@settings(max_examples=100)
@given(found, found, selectors)
def test_what_is_not_to_be_counted_hides_only_as_many_pods(
    own: list[tuple[str, Labels]], others: list[tuple[str, Labels]], selector: LabelSelector
) -> None:
    known = LabelIndex([*own, *others])
    mine = [labels for namespace, labels in own if namespace == "one"]
    shown = {frozenset(labels.items()) for labels in known.like("one", selector, mine) if selector.matches(labels)}
    assert shown == meant(LabelIndex(others), "one", selector)
