"""The picture of the imports is that of the code."""

import graphlib

import pytest

from release.pages import architecture


def test_the_import_graph_is_that_of_the_code() -> None:
    assert architecture.PAGE.read_text(encoding="utf-8") == architecture.page(), "run `make architecture`"


def test_an_arrow_that_follows_from_two_others_is_left_out() -> None:
    imports = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set[str]()}
    assert architecture._reduced(imports) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}


def test_packages_that_import_each_other_make_no_picture() -> None:
    with pytest.raises(graphlib.CycleError):
        architecture._reduced({"a": {"b"}, "b": {"a"}})
