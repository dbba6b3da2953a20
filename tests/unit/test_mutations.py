"""What mutation testing changes."""

import ast

import pytest

from tests.mutations import mutants_of


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a is not b", {"a is b"}),
        ("a and b and c", {"a or b or c", "b and c", "a and c", "a and b"}),
        ("not a", {"a"}),
        ("a + 1", {"a - 1", "a + 2"}),
        (
            "'a' if b else ''",
            {"'a' if True else ''", "'a' if False else ''", "'' if b else ''", "'a' if b else 'other'"},
        ),
        ("f'{a:>3} b'", {"''"}),
        ("max(a, b)", {"min(a, b)", "a", "b"}),
        ("a.floor(b)", {"a.ceil(b)", "b"}),
        ("a.resolve(b)", {"b"}),
        ("a.copy()", {"a"}),
        ("f(a, b, late=True)", {"f(a, b)", "f(a, b, late=False)"}),
        ("zip(a, b, strict=True)", set()),
        ("[a for a in b if a if c]", {"[a for a in b if c]", "[a for a in b if a]"}),
    ],
)
def test_an_expression_is_changed_in_one_place(code: str, changed: set[str]) -> None:
    assert {mutant.source.removeprefix("x = ") for mutant in mutants_of(f"x = {code}")} == changed


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("f(a, b)", {"pass"}),
        ("a += b", {"pass", "a -= b"}),
        ("a.b = c", {"pass"}),
        ("raise a", {"pass"}),
        ("if a:\n    b", {"if True:\n    b", "if False:\n    b", "if a:\n    pass"}),
        ("while a:\n    break", {"while False:\n    break", "while a:\n    continue"}),
        ('def f(a: int) -> list[1]:\n    "Text."\n    return a', set()),
    ],
)
def test_a_statement_is_left_out_or_changed(code: str, changed: set[str]) -> None:
    assert {mutant.source for mutant in mutants_of(code)} == {ast.unparse(ast.parse(text)) for text in changed}


def test_a_mutant_says_where_it_is() -> None:
    (mutant,) = mutants_of("class A:\n    def f(self):\n        return not self")
    assert (mutant.line, str(mutant)) == (3, "A.f: not self -> self")
