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


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        ({"a": 2}, {"a": 2}, []),
        ({}, {"x.y/z": "1"}, [{"op": "add", "path": "/x.y~1z", "value": "1"}]),
        ({"a~b": 2}, {}, [{"op": "remove", "path": "/a~0b"}]),
        ({"metadata": {"a": 1, "b": 1}}, {"metadata": {"a": 2}}, [("remove", "b", None), ("replace", "a", 2)]),
        ({"metadata": None}, {"metadata": {"a": 2}}, [{"op": "replace", "path": "/metadata", "value": {"a": 2}}]),
    ],
)
def test_a_patch_names_only_what_differs(before: Any, after: Any, operations: list[Any]) -> None:
    wanted = [
        {"op": each[0], "path": f"/metadata/{each[1]}"} | ({} if each[2] is None else {"value": each[2]})
        if isinstance(each, tuple)
        else each
        for each in operations
    ]
    assert review.verified({"spec": {}} | before, {"spec": {}} | after) == wanted


def test_a_field_of_a_container_is_replaced_whole_and_a_list_that_grew_too() -> None:
    """However long: no operation names an index inside of it."""
    env = [{"name": f"v{i}"} for i in range(20_000)]
    before = {"spec": {"containers": [{"name": "a", "env": env}], "initContainers": []}}
    after = {"spec": {"containers": [{"name": "a", "env": [env[-1], *env[:-1]]}], "initContainers": [{}]}}
    paths = [each["path"] for each in review.verified(before, after)]
    assert paths == ["/spec/containers/0/env", "/spec/initContainers"]


def test_a_patch_that_would_give_another_object_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "changes", lambda *_: [{"op": "add", "path": "/a", "value": 1}])
    with pytest.raises(RuntimeError, match="the JSON patch does not give the intended object"):
        review.verified({"spec": {}}, {"spec": {}, "b": 1})
