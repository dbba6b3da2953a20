"""Whether a pod that wants to be beside others may begin on its own."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpushare.cluster import groups
from gpushare.model.selector import Affinity, LabelSelector
from testing.builders import make_shape

WEB = LabelSelector.parse("app=web")
SHAPE = make_shape(3)
BESIDE = replace(SHAPE, affinity=Affinity(namespace="team", same=WEB))
FIRST = replace(SHAPE, affinity=Affinity(namespace="team", same=WEB, first=True))


@pytest.mark.parametrize(
    ("own", "others", "first"),
    [
        ({"app": "web"}, [], True),
        ({"app": "web"}, [{"app": "db"}], True),
        ({"app": "web"}, [{"app": "db"}, {"app": "web"}], False),
        ({"app": "db"}, [], False),
        ({}, [], False),
    ],
)
def test_who_finds_no_member_is_first(own: Mapping[str, str], others: list[Mapping[str, str]], first: bool) -> None:
    asked = []

    def labels_in(namespace: str) -> list[Mapping[str, str]]:
        asked.append(namespace)
        return others

    assert groups.resolved(BESIDE, own, labels_in) == (FIRST if first else BESIDE)
    assert groups.resolved(FIRST, own, labels_in) == (FIRST if first else BESIDE)
    assert set(asked) <= {"team"}


def test_what_does_not_change_stays_the_same_object() -> None:
    away = replace(SHAPE, affinity=Affinity(namespace="team", other=WEB))
    for shape in (SHAPE, away, BESIDE):
        assert groups.resolved(shape, {}, lambda _namespace: []) is shape
