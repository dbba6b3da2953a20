"""Owners of pods as files may have them, which no API server has checked."""

from collections.abc import Callable
from typing import Any

import pytest

from gpushare.errors import WireError
from gpushare_cli.simulate import kinds, replays
from gpushare_cli.simulate.objects import Found

OWNED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "n", "ownerReferences": [{"kind": ["ReplicaSet"], "controller": True}]},
}


@pytest.mark.parametrize(
    "look", [kinds.owner, lambda pod: replays.stays(Found(where="f", kind="Pod", namespace="n", name="p", value=pod))]
)
def test_a_kind_that_is_no_string_is_named(look: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(WireError, match=r"metadata\.ownerReferences\.kind"):
        look(OWNED)


def test_a_pod_without_a_spec_is_replaced_by_its_owner() -> None:
    pod = {"metadata": {"name": "p", "ownerReferences": [{"kind": "ReplicaSet", "uid": "u", "controller": True}]}}
    assert kinds.Kinds(()).of(pod, None).replicas_of == kinds.owner(pod)
