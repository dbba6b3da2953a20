"""Edits of a container's variables."""

import pytest

from webhook import env

OURS = env.fixed("A", "ours")


def test_what_is_written_is_the_only_one_of_its_name_and_comes_first() -> None:
    mine = [env.fixed("B", "1"), env.fixed("A", "mine"), env.fixed("C", "$(A)"), env.fixed("A", "again")]
    assert env.write(mine, [OURS]) == [OURS, env.fixed("B", "1"), env.fixed("C", "$(A)")]
    assert env.of_name(mine, "A") == [env.fixed("A", "mine"), env.fixed("A", "again")]


@pytest.mark.parametrize("name", [None, 1, ["A"], {"A": "A"}])
def test_a_name_that_is_no_string_is_none_of_ours(name: object) -> None:
    odd = {"name": name, "value": "1"}
    assert env.write([odd], [OURS]) == [OURS, odd]
    assert env.of_name([odd], "A") == []
