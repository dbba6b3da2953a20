"""JSON Patch: applied by a library that we did not write, it makes the intended object."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook import review

SCALARS = st.none() | st.text(max_size=2) | st.integers(2, 4)
KEYS = st.sampled_from(["a", "b", "~", "/", "~1", ""])
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
FIELDS = st.dictionaries(KEYS, JSON, max_size=3)
CONTAINERS = st.lists(FIELDS, max_size=2)
PODS = st.builds(
    lambda more, spec, lists, metadata: {
        **more,
        "spec": {**spec, **lists},
        **({"metadata": metadata} if metadata else {}),
    },
    FIELDS,
    FIELDS,
    st.fixed_dictionaries({}, optional={"initContainers": CONTAINERS, "containers": CONTAINERS}),
    st.none() | FIELDS,
)


@given(PODS, PODS)
def test_a_patch_makes_the_one_out_of_the_other(before: Any, after: Any) -> None:
    kept = copy.deepcopy(before)
    operations = review.verified(before, after)
    assert before == kept
    assert jsonpatch.apply_patch(before, operations) == after
    assert (operations == []) == (before == after)


ENV = [{"name": f"v{i}"} for i in range(20_000)]


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        ({"a": 2}, {"a": 2}, []),
        ({}, {"x.y/z": "1"}, [("add", "/x.y~1z")]),
        ({"a~b": 2}, {}, [("remove", "/a~0b")]),
        (
            {"metadata": {"a": 1, "b": 1}},
            {"metadata": {"a": 2}},
            [("remove", "/metadata/b"), ("replace", "/metadata/a")],
        ),
        ({"metadata": None}, {"metadata": {"a": 2}}, [("replace", "/metadata")]),
        ({"metadata": {}}, {"metadata": {"a": 2}}, [("add", "/metadata/a")]),
        # A field of a container is replaced whole, however long, and so is a list that grew.
        (
            {"spec": {"containers": [{"name": "a", "env": ENV}], "initContainers": []}},
            {"spec": {"containers": [{"name": "a", "env": [*ENV[1:], ENV[0]]}], "initContainers": [{}]}},
            [("replace", "/spec/containers/0/env"), ("replace", "/spec/initContainers")],
        ),
    ],
)
def test_a_patch_names_only_what_differs(before: Any, after: Any, operations: list[tuple[str, str]]) -> None:
    found = review.verified({"spec": {}} | before, {"spec": {}} | after)
    assert [(each["op"], each["path"]) for each in found] == operations


def test_a_patch_that_would_give_another_object_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "changes", lambda *_: [{"op": "add", "path": "/a", "value": 1}])
    with pytest.raises(RuntimeError, match="the JSON patch does not give the intended object"):
        review.verified({"spec": {}}, {"spec": {}, "b": 1})
