"""JSON Patch: applied by a library that we did not write, it makes the intended object."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook import patch

SCALARS = st.none() | st.text(max_size=2) | st.integers(2, 4)
KEYS = st.sampled_from(["a", "b", "~", "/", "~1", ""])
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)


@given(st.dictionaries(KEYS, JSON), st.dictionaries(KEYS, JSON))
def test_a_patch_makes_the_one_out_of_the_other(before: Any, after: Any) -> None:
    operations = list(patch.between(before, after))
    assert jsonpatch.apply_patch(before, operations) == after
    assert (operations == []) == (before == after)


@given(st.dictionaries(KEYS, JSON), st.dictionaries(KEYS, JSON))
def test_a_patch_is_applied_as_the_library_does_and_leaves_the_object_as_it_was(before: Any, after: Any) -> None:
    kept = copy.deepcopy(before)
    operations = list(patch.between(before, after))
    assert patch.applied(before, operations) == jsonpatch.apply_patch(before, operations)
    assert before == kept


def test_what_a_patch_does_not_change_is_not_copied() -> None:
    before = {"a": {"b": [{"c": 1}, {"d": 2}]}, "e": {"f": 3}}
    done: Any = patch.applied(before, [{"op": "replace", "path": "/a/b/0/c", "value": 4}])
    assert done == {"a": {"b": [{"c": 4}, {"d": 2}]}, "e": {"f": 3}}
    assert done["e"] is before["e"]
    assert done["a"]["b"][1] is before["a"]["b"][1]  # type: ignore[index]


def test_what_a_patch_brings_is_not_copied() -> None:
    value = {"deep": [1, 2]}
    done: Any = patch.applied({"b": 1}, [{"op": "add", "path": "/a", "value": value}])
    assert done["a"] is value
    assert done == {"a": {"deep": [1, 2]}, "b": 1}


def test_what_moves_in_a_long_list_replaces_it() -> None:
    before = [{"name": f"v{i}"} for i in range(20_000)]
    after = [before[-1], *before[:-1]]
    operations = patch.verified({"a": before}, {"a": after})
    assert operations == [{"op": "replace", "path": "/a", "value": after}]


def test_many_removals_replace_the_object_that_holds_them() -> None:
    before = {"a": {f"k{i}": "" for i in range(3000)} | {"z": ""}}
    assert patch.verified(before, {"a": {"z": ""}}) == [{"op": "replace", "path": "/a", "value": {"z": ""}}]
    small = {"a": {f"k{i}": "" for i in range(1000)}}
    assert len(patch.verified(small, {"a": {}})) == 1000


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        ({"a": 2}, {"a": 2}, []),
        ({}, {"x.y/z": "1"}, [{"op": "add", "path": "/x.y~1z", "value": "1"}]),
        ({"a~b": 2}, {}, [{"op": "remove", "path": "/a~0b"}]),
        ({"a": [2, 3]}, {"a": [2, 4]}, [{"op": "replace", "path": "/a/1", "value": 4}]),
        ({"a": [2, 3]}, {"a": [2]}, [{"op": "replace", "path": "/a", "value": [2]}]),
        ({"a": {"b": None}}, {"a": {"b": 3}}, [{"op": "replace", "path": "/a/b", "value": 3}]),
    ],
)
def test_a_patch_names_only_what_differs(before: Any, after: Any, operations: list[Any]) -> None:
    assert list(patch.between(before, after)) == operations


def test_a_patch_that_would_give_another_object_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "between", lambda _before, _after: [{"op": "add", "path": "/a", "value": 1}])
    with pytest.raises(RuntimeError, match="the JSON patch does not give the intended object"):
        patch.verified({}, {"b": 1})
