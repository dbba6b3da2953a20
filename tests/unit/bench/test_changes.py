"""Changes that go on while something is measured: they leave nothing, and do not end unnoticed."""

import itertools
import threading

import pytest

from bench import changes


def test_every_pod_is_deleted_and_the_next_changes_go_on_with_the_next_number() -> None:
    made: list[str] = []
    there: set[str] = set()

    def create(number: int) -> str:
        name = f"pod-{number}"
        there.add(name)
        made.append(name)
        created.set()
        return name

    numbers = itertools.count(7)
    for _ in range(2):
        created = threading.Event()
        with changes.going_on(numbers, create, there.remove):
            assert created.wait(10)
        assert there == set()
    assert len(made) >= 2
    assert made == [f"pod-{number}" for number in range(7, 7 + len(made))]


@pytest.mark.parametrize("fails", ["create", "delete"])
def test_a_change_that_fails_ends_the_measurement_with_its_error(fails: str) -> None:
    failed = threading.Event()

    def call(name: str) -> str:
        if name == fails:
            failed.set()
            raise RuntimeError(f"cannot {name}")
        return "pod"

    with (
        pytest.raises(RuntimeError, match=f"cannot {fails}"),
        changes.going_on(itertools.count(), lambda _number: call("create"), lambda _name: call("delete")),
    ):
        assert failed.wait(10)
